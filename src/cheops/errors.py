"""The base classes of all errors that Cheops raises on purpose.

The tree is shallow. An error has three properties, so that the code that catches it need not know its class:
whose fault it is (who can fix it), whether it is definite (the same request gets the same response), and
its HTTP status. A class of its own is for errors that some code catches; anything else is raised as
`ClientError(text, status=409)` or `CheopsError(text)`. Foreign exceptions are translated into one of these once,
at the edge where they appear; any other exception that escapes is a bug.
"""

from enum import StrEnum


class Fault(StrEnum):
    """Who can fix it."""

    CLIENT = "client"
    APPLICATION = "application"
    PEER = "peer"
    US = "us"


class CheopsError(Exception):
    """Something that Cheops refuses or cannot do. Its text says what is wrong, where, and what to do."""

    fault: Fault = Fault.US
    definite: bool = True
    status: int = 500
    reason: str = ""  # a few fixed words, by which /metrics and the audit log count refusals of this kind

    def __init__(
        self,
        *args: object,
        status: int | None = None,
        definite: bool | None = None,
        fault: Fault | None = None,
        reason: str | None = None,
    ) -> None:
        super().__init__(*args)
        if status is not None:
            self.status = status
        if definite is not None:
            self.definite = definite
        if fault is not None:
            self.fault = fault
        if reason is not None:
            self.reason = reason


class ClientError(CheopsError):
    """The request is wrong, whatever the state of the system."""

    fault = Fault.CLIENT
    status = 400
