"""What every way of telling somebody has in common: it succeeds, or says why not, and is tried again."""

from pathlib import Path
from typing import Protocol

from cheops.errors import CheopsError, Fault
from cheops.notify.events import Event

_MAX_SECRET_BYTES = 4_096


class DeliveryError(CheopsError):
    """A target could not be told; it will be tried again."""

    fault = Fault.APPLICATION
    definite = False
    status = 502


class Sender(Protocol):
    """One way to one target."""

    async def send(self, event: Event) -> None:
        """Return when the target has the event; raises DeliveryError."""


def read_secret(path: Path) -> bytes:
    """What a file holds, without the end of its line. Read each time: so it can be changed."""
    try:
        with path.open("rb") as file:
            secret = file.read(_MAX_SECRET_BYTES + 1).rstrip(b"\r\n")
    except OSError as error:
        raise DeliveryError(f"{path} cannot be read: {error.strerror}") from error
    if not 0 < len(secret) <= _MAX_SECRET_BYTES:
        raise DeliveryError(f"{path} must hold 1 to {_MAX_SECRET_BYTES} bytes")
    return secret
