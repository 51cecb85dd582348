"""Requests that HAProxy hands to the agent: the Unix sockets, the client's address, and the request as it was sent."""

import asyncio
import os
import re
import socket
from pathlib import Path

from cheops.config.gateway import ForwardedHeaders
from cheops.errors import CheopsError
from cheops.gateway.connection import Wire
from cheops.gateway.headers import Header, RequestHead, via_name, without_forged_headers

_MAX_LINE = 107  # bytes, by the specification of the PROXY protocol (version 1)
_LINE = re.compile(rb"PROXY (?:TCP[46] ([0-9A-Fa-f:.]+) [0-9A-Fa-f:.]+ \d+ \d+|UNKNOWN[^\r\n]*)\r\n")


class HandoverWire(Wire):
    """A connection from HAProxy, whose first line has the client's address (PROXY protocol)."""

    __slots__ = ("_client", "_first", "_has_line")

    @property
    def is_handed(self) -> bool:
        return True

    @property
    def peer(self) -> str:
        return self._client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._client = ""
        self._first = b""
        self._has_line = False
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if self._has_line:
            super().data_received(data)
            return
        self._first += data
        line = _LINE.match(self._first)
        if line:
            self._has_line = True
            self._client = (line[1] or b"").decode("ascii").removeprefix("::ffff:")
            rest, self._first = self._first[line.end() :], b""
            if rest:
                super().data_received(rest)
        elif len(self._first) > _MAX_LINE:
            self.abort()  # no PROXY line: this is not HAProxy


_ADDED = {
    ForwardedHeaders.CLIENT: ("x-forwarded-for",),
    ForwardedHeaders.ALL: ("x-forwarded-for", "forwarded"),
    ForwardedHeaders.NOTHING: (),
}


def original_request(head: RequestHead, here: str, base: str, added: ForwardedHeaders) -> RequestHead:
    """The request as its client sent it, without what HAProxy added for the target that failed.

    `base` is the prefix of the service's paths; `added` says which headers with the client's address HAProxy adds.
    Each is a line of its own, and the last with its name.
    """
    headers = list(without_forged_headers(head).headers)
    _drop_last(headers, "via", f"1.1 {via_name(here)}")
    for name in _ADDED[added]:
        _drop_last(headers, name)
    target = head.target
    if base and target.startswith(f"{base}/"):
        target = target[len(base) :]
    return RequestHead(head.method, target, tuple(headers))


def _drop_last(headers: list[Header], name: str, value: str | None = None) -> None:
    for place in range(len(headers) - 1, -1, -1):
        given, given_value = headers[place]
        if given.lower() == name:
            if value is None or given_value == value:
                del headers[place]
            return


def listen(path: Path, backlog: int) -> socket.socket:
    """A socket at this path, for its owner only. The folder is the agent's own, so a file with this name is a
    leftover of an earlier agent."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.unlink(missing_ok=True)
        os.fchmod(listening.fileno(), 0o600)  # before it has a name: at no time may others connect
        # The name of a Unix socket has at most 107 bytes: through its folder's descriptor, a long path fits, too.
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            listening.bind(f"/proc/self/fd/{folder}/{path.name}")
        finally:
            os.close(folder)
        listening.listen(backlog)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise CheopsError(f"{path} cannot be created: {error.strerror}") from error
    return listening


def remove(path: Path, listening: socket.socket) -> None:
    listening.close()
    path.unlink(missing_ok=True)
