"""Why a request for something replicated is refused, or cannot be answered now."""

from cheops.errors import CheopsError, ClientError, Fault
from cheops.gateway.errors import UpstreamError


class ReplicationRequestError(ClientError):
    """A request that cannot be meant so."""


class NoReplicantError(ClientError):
    """Nothing replicated is there."""

    status = 404


class NotMetError(ClientError):
    """A condition of the request (`If-Match` and the like) does not hold."""

    status = 412


class NotPossibleError(ClientError):
    """It cannot be taken as things are."""

    status = 409


class UnderWayError(CheopsError):
    """A change that was taken before decides, and it is not done yet."""

    status = 503
    definite = False


class OtherRequestError(ClientError):
    """An `Idempotency-Key` comes again with another request."""

    status = 422


class LevelError(CheopsError):
    """A level of consistency that this version does not have."""

    status = 501


class MovingError(ClientError):
    """MOVE and COPY of what is replicated."""

    status = 501


class WholeError(ClientError):
    """A collection, or something else that holds replicants and is none."""

    status = 409


class NoReplicaError(CheopsError):
    """No replica can be reached now."""

    status = 503
    definite = False


class NotTranslatableError(CheopsError):
    """The service's answer cannot be shown: nobody could tell which ids it holds."""

    fault = Fault.APPLICATION
    status = 502


class UnknownOutcomeError(UpstreamError):
    """The service may have done it or not."""

    def __init__(self, text: str) -> None:
        super().__init__(text, "unknown outcome", may_have_had_effect=True, status=504)
