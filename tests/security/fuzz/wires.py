"""Connections in memory: what a gateway reads and writes, without sockets."""

import asyncio
from collections.abc import Callable
from typing import Any

from cheops.gateway.connection import UpstreamAddress, Wire
from tests.security.fuzz import samples


class Pipe(asyncio.Transport):
    """One end of a connection: what is written is kept, what is to be read is pushed in."""

    def __init__(self, protocol: asyncio.Protocol, wrote: Callable[[bytes], None] | None = None) -> None:
        super().__init__({"peername": ("127.0.0.1", 7)})
        self.written = bytearray()
        self._protocol = protocol
        self._wrote = wrote
        self._closing = False

    def write(self, data: Any) -> None:
        self.written += data
        if self._wrote:
            self._wrote(bytes(data))

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    abort = close

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None: ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...


class Service:
    """What the gateway stands in front of: answers every connection with the same bytes, and closes it."""

    answer = samples.ANSWERS[0]

    async def fresh(self, _place: UpstreamAddress, *_more: Any, **_options: Any) -> Wire:
        wire = Wire()
        seen = bytearray()

        def asked(data: bytes) -> None:
            seen.extend(data)
            if b"\r\n\r\n" in seen:
                seen.clear()
                asyncio.get_running_loop().call_soon(self._reply, wire)

        wire.connection_made(Pipe(wire, asked))
        return wire

    def _reply(self, wire: Wire) -> None:
        if not wire.transport.is_closing():
            wire.data_received(self.answer)
            wire.eof_received()
