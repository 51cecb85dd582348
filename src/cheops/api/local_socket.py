"""The agent's Unix socket in its data directory: who connects is who the kernel says it is.

Root and the agent's own user administrate by it, without any token: so a site can always be managed from its
own machine. Its name may be longer than addresses of sockets can be, so it is bound and found by way of its
directory.
"""

import asyncio
import os
import socket
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cheops.api.bounded import Bounded
from cheops.errors import CheopsError

NAME = "agent.sock"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class SocketError(CheopsError):
    """The socket cannot be made."""


class LocalConnection(Bounded):
    """A connection by the Unix socket. `state` has the user at its other end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        told = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _pid, uid, _gid = _CREDENTIALS.unpack(told)
        self.app_state = {**self.app_state, "peer": None, "local_uid": uid}
        super().connection_made(transport)


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket at this path, for its owner only; raises SocketError. Whoever calls has locked the store: what
    is left there is of an agent that is gone."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        os.fchmod(listening.fileno(), 0o600)  # before it has a name: at no time may others connect
        with reachable(path) as name:
            listening.bind(name)
        listening.listen(backlog)
        listening.setblocking(False)
    except BaseException as error:
        listening.close()
        if not isinstance(error, OSError):
            raise
        raise SocketError(f"the agent's own socket {path} cannot be made: {error.strerror}") from error
    return listening


def remove(path: Path, listening: socket.socket) -> None:
    """Take the name away, and close it."""
    listening.close()
    path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SocketError(f"{path} is in the way: the agent makes its own socket there. Remove it")
    path.unlink()


@contextmanager
def reachable(path: Path) -> Iterator[str]:
    """A name for a socket that is short enough, for as long as this is open."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)
