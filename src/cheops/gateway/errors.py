"""What can go wrong between a client, this gateway, and a service."""

from cheops.errors import CheopsError, ClientError, Fault


class GatewayRequestError(ClientError):
    """A request that cannot be understood, or that could be understood in two ways. The connection ends."""

    def __init__(self, text: str, status: int = 400) -> None:
        super().__init__(text)
        self.status = status  # type: ignore[misc]  # of a family of statuses, one per request


class GoneError(CheopsError):
    """The client went away before its request was complete, or before it had its answer."""

    fault = Fault.CLIENT
    definite = False
    status = 499  # nobody is there to read it; it is what logs of proxies know


class UpstreamError(CheopsError):
    """A service did not answer, or broke off.

    `why` is a word or two for people (`connection refused`). `may_have_had_effect` is False where certainly
    nothing of the request reached it.
    """

    fault = Fault.APPLICATION
    definite = False
    status = 502

    def __init__(self, text: str, why: str, *, may_have_had_effect: bool, status: int = 502) -> None:
        super().__init__(text)
        self.why = why
        self.may_have_had_effect = may_have_had_effect
        self.status = status  # type: ignore[misc]  # 502, or 504 for a timeout
