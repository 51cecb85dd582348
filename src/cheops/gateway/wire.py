"""One TCP connection, read and written with back-pressure.

Nothing is kept beyond what came in while nobody asked: then reading pauses, and the kernel slows down the
other side. An end is noticed when it happens, also while nobody reads (`on_end`): so a client that goes away
can end what is done for it. There is no task and no buffer per connection that only waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

MOST_WAITING_BYTES = 64 * 1024
_WRITE_BYTES = 256 * 1024


class Wire(asyncio.Protocol):
    """A connection that came in, or was made."""

    __slots__ = (
        "_drained", "_ended", "_error", "_is_paused", "_loop", "_on_made", "_pieces", "_reader",
        "_waiting_bytes", "_writable", "on_end", "transport",
    )  # fmt: skip

    def __init__(self, on_made: "Callable[[Wire], None] | None" = None) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_made = on_made
        self._pieces: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_paused = False
        self._ended = False
        self._error: Exception | None = None
        self._reader: asyncio.Future[None] | None = None
        self._drained: asyncio.Future[None] | None = None
        self._writable = True
        self.on_end: Callable[[], None] | None = None
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)

    # -- what the event loop says ------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(_WRITE_BYTES)
        if self._on_made:
            made, self._on_made = self._on_made, None
            made(self)

    def data_received(self, data: bytes) -> None:
        self._pieces.append(data)
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= MOST_WAITING_BYTES and not self._is_paused:
            self._is_paused = True
            self.transport.pause_reading()
        _wake(self._reader)

    def eof_received(self) -> bool:
        self._end()
        # What is under way may still be written; but TLS has no such half of a connection.
        return self.transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        self._error = error or self._error or ConnectionResetError("the connection is closed")
        self._end()
        _wake(self._drained)

    def pause_writing(self) -> None:
        self._writable = False

    def resume_writing(self) -> None:
        self._writable = True
        _wake(self._drained)

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            _wake(self._reader)
            if self.on_end:
                self.on_end()

    @property
    def is_handed(self) -> bool:
        """Whether it is HAProxy that says who is at the other end."""
        return False

    @property
    def peer(self) -> str:
        """The address of whoever is at the other end."""
        found = self.transport.get_extra_info("peername")
        return str(found[0]).removeprefix("::ffff:") if found else ""

    # -- reading -----------------------------------------------------------------------------------------

    @property
    def has_ended(self) -> bool:
        """Whether the other side will send nothing more; what it sent before may still wait here."""
        return self._ended

    @property
    def is_lost(self) -> bool:
        return self._error is not None

    @property
    def is_quiet(self) -> bool:
        """Whether the connection is as it was made: open, and nothing said."""
        return not (self._ended or self._pieces or self.transport.is_closing())

    async def read(self, timeout_s: float) -> bytes:
        """What came in, at once if there is something; b"" at the end. Raises TimeoutError."""
        while not self._pieces:
            if self._ended:
                return b""
            await self._wait("_reader", timeout_s)
        return self.read_now()

    def read_now(self) -> bytes:
        """What is here already; b"" if nothing is."""
        if not self._pieces:
            return b""
        data = self._pieces.popleft()
        self._waiting_bytes -= len(data)
        if self._is_paused and self._waiting_bytes < MOST_WAITING_BYTES and not self.transport.is_closing():
            self._is_paused = False
            self.transport.resume_reading()
        return data

    # -- writing -----------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        """Without waiting: to be followed by `drain`."""
        if not self.transport.is_closing():
            self.transport.write(data)

    async def drain(self, timeout_s: float) -> None:
        """Wait while the other side does not take what was written. Raises TimeoutError, OSError."""
        while not self._writable and self._error is None:
            await self._wait("_drained", timeout_s)
        if self._error is not None or self.transport.is_closing():
            raise ConnectionResetError(str(self._error or "the connection is closed"))

    def write_end(self) -> None:
        """Say that nothing more will be written."""
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def close(self) -> None:
        """After what was written has gone out."""
        self.transport.close()

    def abort(self) -> None:
        """At once."""
        self.transport.abort()

    async def _wait(self, name: str, timeout_s: float) -> None:
        waiter = self._loop.create_future()
        setattr(self, name, waiter)
        timer = self._loop.call_later(timeout_s, _expire, waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            setattr(self, name, None)


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)


def _expire(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
