"""Connections to the agent's address, with limits: in number, in the size of a request's head, and in time.

A connection is closed if its headers take too long, its body trickles, or its response is not read.
"""

import asyncio
import http
from collections import Counter
from typing import Any, ClassVar, Protocol

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cheops.config.security import ClientsConfig
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.security.tls import TOO_MANY, TOO_MANY_OF_ONE, identity_at
from cheops.store.codec import MAX_MESSAGE_BYTES

MIN_BODY_BYTES = 1024  # that a body must bring within the time in which it may stall
_LOOKS = 4  # within the shortest time that somebody is given
_LEAST_LOOK_S = 0.05


class LimitedConnection(Protocol):
    """A connection, as far as it is watched."""

    def overdue(self, now_s: float) -> str:
        """Why it is to be closed; empty: it is not."""

    def turn_out(self, status: int, reason: str) -> None:
        """Close it, with this answer if none has begun."""


class ConnectionLimiter:
    """Belongs to one event loop."""

    def __init__(self, node: Node) -> None:
        self.limits: ClientsConfig = node.config.clients
        self._node = node
        self._inside: set[LimitedConnection] = set()
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._inside)

    def enter(self, one: LimitedConnection, address: str) -> str:
        """Why there is no place for one more; empty: it has one. Without an address it comes by the Unix
        socket: whoever administrates the agent always gets in."""
        if address and len(self._inside) >= self.limits.connections:
            return TOO_MANY
        if address and self._by_address[address] >= self.limits.connections_each:
            return TOO_MANY_OF_ONE
        self._inside.add(one)
        if address:
            self._by_address[address] += 1
        return ""

    def leave(self, one: LimitedConnection, address: str) -> None:
        if one not in self._inside:
            return
        self._inside.discard(one)
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def refused(self, reason: str, address: str, status: int) -> None:
        self._node.refusal_log.request(reason, "", address or "unix", status=status)

    async def watch(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        shortest_s = min(self.limits.head_timeout_s, self.limits.stall_timeout_s)
        while True:
            await asyncio.sleep(max(_LEAST_LOOK_S, min(1.0, shortest_s / _LOOKS)))
            now_s = loop.time()
            for one in list(self._inside):
                if reason := one.overdue(now_s):
                    one.turn_out(408, reason)


_CLOSED = b"connection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"


class LimitedProtocol(HttpToolsProtocol):
    """`crowd` is set in a class of its own for each agent."""

    crowd: ClassVar[ConnectionLimiter]

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._address = ""
        self._is_out = False
        self._head_since_s: float | None = None  # None: no head is being told
        self._head_bytes = 0
        self._is_mid_message = False
        self._needless = 0  # bytes of a body that came after the answer: a client reads it when all is sent
        self._received = self._mark = 0
        self._mark_s = 0.0
        self._unread_since_s: float | None = None
        self._cycles: list[Any] = []  # requests without a complete response: more than one where a client pipelines

    # -- coming and going ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = str(self.client[0]) if self.client else ""
        self._head_since_s = self.loop.time()
        if reason := self.crowd.enter(self, self._address):
            self.turn_out(503, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnect_cycles()
        self.crowd.leave(self, self._address)
        super().connection_lost(exc)

    def turn_out(self, status: int, reason: str) -> None:
        """Close it, with this answer if none has begun."""
        if self._is_out:
            return
        self._is_out = True
        self.crowd.refused(reason, self._address, status)
        if self.cycle is None or self.cycle.response_complete:
            line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode()
            self.transport.write(line + _CLOSED)
            self.transport.close()
        else:
            self._disconnect_cycles()
            self.transport.abort()  # a response has begun, so no other can be sent

    def _disconnect_cycles(self) -> None:
        """uvicorn marks only the newest request of a connection as disconnected. With pipelining an older one is
        still sending, and would write to a transport that is closed."""
        for cycle in self._cycles:
            cycle.disconnected = True

    # -- sizes -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_out:
            return
        self._received += len(data)
        if self._head_since_s is not None:
            self._head_bytes += len(data)
        elif self._is_mid_message and self.cycle is not None and self.cycle.response_complete:
            self._needless += len(data)
        super().data_received(data)
        if self._needless > max(MAX_MESSAGE_BYTES, self.crowd.limits.upload_bytes):
            self.turn_out(413, "body too large")
        if self._head_since_s is not None and self._head_bytes > self.crowd.limits.head_bytes:
            self.turn_out(431, "head too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_mid_message, self._needless = True, 0
        self._mark, self._mark_s = self._received, self.loop.time()
        if self._head_since_s is None:
            self._head_since_s, self._head_bytes = self.loop.time(), 0

    def on_headers_complete(self) -> None:
        self._head_since_s, self._head_bytes = None, 0
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.crowd.limits.head_bytes:
            self.turn_out(431, "head too large")
        if not self._is_out:
            super().on_headers_complete()
            self._cycles = [cycle for cycle in (*self._cycles, self.cycle) if cycle and not cycle.response_complete]

    def on_body(self, body: bytes) -> None:
        if not self._is_out:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_mid_message = False
        if not self._is_out:
            super().on_message_complete()

    # -- times -----------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since_s = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since_s = None

    def overdue(self, now_s: float) -> str:
        limits = self.crowd.limits
        if self._head_since_s is not None:
            return "slow head" if now_s - self._head_since_s > limits.head_timeout_s else ""
        if self._unread_since_s is not None and now_s - self._unread_since_s > limits.stall_timeout_s:
            return "answer not read"
        if not self._is_mid_message or self.flow.read_paused:
            self._mark, self._mark_s = self._received, now_s
        elif now_s - self._mark_s > limits.stall_timeout_s:
            brought = self._received - self._mark
            self._mark, self._mark_s = self._received, now_s
            return "slow body" if brought < MIN_BODY_BYTES else ""
        return ""


class Connection(LimitedProtocol):
    """One of a client or of another site."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, **connection_state(transport)}


def connection_state(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """What a connection tells of its other end."""
    try:
        identity = identity_at(transport)
    except CheopsError as error:
        return {"peer": None, "certificate": None, "bad_certificate": str(error)}
    return {"peer": identity.site if identity else None, "certificate": identity}
