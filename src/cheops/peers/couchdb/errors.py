"""What goes wrong at either end of the protocol.

The server's errors are sent in CouchDB's form, `{"error": …, "reason": …}`, which replicators know how to
read. The client's are reported to the agent, and what failed is tried again.
"""

from typing import ClassVar

from cheops.errors import CheopsError, ClientError, Fault
from cheops.text import printable, shortened


class CouchError(ClientError):
    """A request that the server refuses; `error` is CouchDB's word for it."""

    error: ClassVar[str] = "bad_request"


class NotFoundError(CouchError):
    error = "not_found"
    status = 404


class ForbiddenError(CouchError):
    error = "forbidden"
    status = 403


class NotAllowedError(CouchError):
    error = "method_not_allowed"
    status = 405


class ExistsError(CouchError):
    error = "file_exists"
    status = 412


class TooLargeError(CouchError):
    error = "too_large"
    status = 413


class BadContentError(CouchError):
    error = "bad_content_type"
    status = 415


class BusyError(CouchError):
    error = "too_many_requests"
    status = 429
    definite = False


class RefusedError(CheopsError):
    """A document that came in and cannot be taken: it is passed over, and the rest goes on."""

    fault = Fault.PEER
    status = 403

    def __init__(self, id_: str, rev: str, reason: str) -> None:
        super().__init__(f"document '{printable(shortened(id_, 100))}': {reason}")
        self.id, self.rev, self.reason = id_, rev, reason


class BadUrlError(ClientError):
    """What was given as the address of a database is none. It is not repeated: it may hold a password."""


class RemoteError(CheopsError):
    """The other database did not answer as the protocol says; what failed is tried again later."""

    fault = Fault.PEER
    definite = False
    status = 502

    def __init__(self, message: str, answered: int | None = None) -> None:
        super().__init__(message)
        self.answered = answered  # the HTTP status, where there was one


class TooLargeAnswerError(RemoteError):
    """An answer that is larger than we read: less must be asked for at once."""
