"""Wakes those who wait for the feed to go on. Belongs to one event loop, from which all of it is called."""

import asyncio


class Pulse:
    def __init__(self) -> None:
        self._last_seq = 0
        self._waiting: dict[asyncio.Future[None], int] = {}  # and beyond which number
        self.closed = False

    def beat(self, last_seq: int) -> None:
        """The feed has come this far."""
        self._last_seq = max(self._last_seq, last_seq)
        self._wake()

    def close(self) -> None:
        """Nobody waits any longer."""
        self.closed = True
        self._wake()

    async def beyond(self, seq: int, timeout_s: float | None) -> bool:
        """Wait until the feed has gone beyond a number; False when the time is over, or it all ends."""
        if self.closed or self._last_seq > seq:
            return not self.closed
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = seq
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            del self._waiting[waiter]
        return self._last_seq > seq and not self.closed

    def _wake(self) -> None:
        for waiter, seq in self._waiting.items():
            if not waiter.done() and (self.closed or self._last_seq > seq):
                waiter.set_result(None)
