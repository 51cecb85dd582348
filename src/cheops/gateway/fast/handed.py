"""Connections that HAProxy hands to the agent over a Unix socket: the first line says who the client is.

Nobody but the agent's own user can reach these sockets, so what that line says (PROXY protocol, version 1) is
believed.
"""

import asyncio
import re

from cheops.gateway.wire import Wire

_MOST_LINE = 107
_LINE = re.compile(rb"PROXY (?:TCP[46] ([0-9A-Fa-f:.]+) [0-9A-Fa-f:.]+ \d+ \d+|UNKNOWN[^\r\n]*)\r\n")


class HandedWire(Wire):
    """A connection whose client stands in its first line."""

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
        found = _LINE.match(self._first)
        if found:
            self._has_line = True
            self._client = (found[1] or b"").decode("ascii").removeprefix("::ffff:")
            rest, self._first = self._first[found.end() :], b""
            if rest:
                super().data_received(rest)
        elif len(self._first) > _MOST_LINE:
            self.abort()  # this is not HAProxy
