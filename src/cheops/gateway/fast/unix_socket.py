"""Unix sockets in a folder whose name may be longer than addresses of sockets can be."""

import os
import socket
from pathlib import Path

from cheops.errors import CheopsError


class UnixSocketError(CheopsError):
    """The socket cannot be made."""


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket at this path, for its owner only. The folder is the agent's own, so whatever has the name was
    left by an agent that is gone."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(listening.fileno(), 0o600)  # before it has a name: at no time may others connect
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise UnixSocketError(f"{path} cannot be made: {error.strerror}") from error
    return listening


def remove(path: Path, listening: socket.socket) -> None:
    listening.close()
    path.unlink(missing_ok=True)
