"""The root of all errors that Cheops raises on purpose.

The tree is shallow. A class answers three questions, so that whoever catches it need not know it:
whose fault it is (who can mend it), whether it is definite (asking again gives the same answer), and
which HTTP status it is. Foreign exceptions are translated into one of these once, at the edge where
they appear; anything else that escapes is a bug.
"""

from enum import StrEnum
from typing import ClassVar


class Fault(StrEnum):
    """Who can mend it."""

    CLIENT = "client"
    APPLICATION = "application"
    PEER = "peer"
    US = "us"


class CheopsError(Exception):
    """Something Cheops refuses or could not do; its text says what is wrong, where, and what to do."""

    fault: ClassVar[Fault] = Fault.US
    definite: ClassVar[bool] = True
    status: ClassVar[int] = 500


class ClientError(CheopsError):
    """The request itself cannot be right, whatever the state of the system."""

    fault = Fault.CLIENT
    status = 400
