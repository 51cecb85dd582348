"""Connections with limits: in number, in the size of a request's head, and in time (see crowd.py)."""

import asyncio
import http
from typing import Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cheops.api.crowd import LEAST_BYTES, Crowd
from cheops.store.codec import MAX_MESSAGE_BYTES

_CLOSED = b"connection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"


class Bounded(HttpToolsProtocol):
    """`crowd` is set in a class of its own for each agent."""

    crowd: ClassVar[Crowd]

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

    # -- coming and going ------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = str(self.client[0]) if self.client else ""
        self._head_since_s = self.loop.time()
        if reason := self.crowd.enter(self, self._address):
            self.turn_out(503, reason)

    def connection_lost(self, exc: Exception | None) -> None:
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
            self.transport.abort()  # what it was answered so far is all it gets

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
            return "slow body" if brought < LEAST_BYTES else ""
        return ""
