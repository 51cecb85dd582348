"""Connections by a Unix socket. Its path may be longer than the address of a socket can be: then it is
reached by way of its directory.
"""

import http.client
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

_MOST_BYTES = 100  # of the address of a socket, everywhere


@contextmanager
def short_path(path: str) -> Iterator[str]:
    """A name for the same socket that is short enough, for as long as this is open."""
    if len(os.fsencode(path)) <= _MOST_BYTES:
        yield path
        return
    directory, name = os.path.split(path)
    opened = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{opened}/{name}"
    finally:
        os.close(opened)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.sock.settimeout(self.timeout)
            with short_path(self._path) as name:
                self.sock.connect(name)
        except OSError:
            self.sock.close()
            raise
