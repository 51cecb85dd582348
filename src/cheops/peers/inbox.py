"""One-way requests that arrive through a channel: collected, and handled one after the other.

The sender learns how many bytes were handled only now and then, by credit for stream 0. At rest it gets nothing back.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from cheops.peers.frames import FrameError, Opening
from cheops.peers.requests import FORMS, RequestKind

_MOST_COLLECTED = 96 * 1024 * 1024  # bytes that are not handled: the largest request, and what the sender may be ahead
_MOST_ARRIVED = 50_000  # requests that are not handled: an empty one has no bytes, and takes memory all the same
_CREDIT_BYTES = 1024 * 1024  # reported at once

Take = Callable[[str, bytes], Awaitable[None]]
Grant = Callable[[int, int], None]  # the number of a stream, and bytes


class _OneWay:
    def __init__(self, number: int, kind: str) -> None:
        self.number = number
        self.kind = kind
        self.body = bytearray()  # in one piece: a sender may cut it into single bytes


class Inbox:
    """Belongs to one channel. `take` handles a request; `rested` is called when none is left."""

    def __init__(self, take: Take, grant: Grant, rested: Callable[[], None]) -> None:
        self._take = take
        self._grant = grant
        self._rested = rested
        self._arriving: _OneWay | None = None  # not complete yet; there is at most one
        self._arrived: deque[_OneWay] = deque()
        self._has_arrived = asyncio.Event()
        self._collected = 0  # bytes that are here and not handled
        self._handled = 0  # bytes that are handled and not reported
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._take_all())

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    @property
    def has_any(self) -> bool:
        """Whether one is not handled, or not complete."""
        return self._arriving is not None or bool(self._arrived)

    def is_collecting(self, number: int) -> bool:
        return self._arriving is not None and self._arriving.number == number

    def begin(self, number: int, opening: Opening, *, end: bool) -> None:
        """Raises FrameError."""
        if self._arriving is not None:
            raise FrameError("a one-way request begins within another")
        if opening.kind not in FORMS:
            raise FrameError("a one-way request of an unknown kind")
        self._arriving = _OneWay(number, opening.kind)
        self.collect(opening.body, end=end)

    def collect(self, piece: bytes, *, end: bool) -> None:
        """More of the one that is not complete; raises FrameError."""
        request = self._arriving
        assert request is not None  # noqa: S101 - the caller has asked
        request.body += piece
        self._collected += len(piece)
        if len(request.body) > FORMS[RequestKind(request.kind)].max_bytes:
            raise FrameError("a one-way request that is too large")
        if self._collected > _MOST_COLLECTED or len(self._arrived) >= _MOST_ARRIVED:
            raise FrameError("more one-way requests than there was credit for")
        if end:
            self._arriving = None
            self._arrived.append(request)
            self._has_arrived.set()
        elif piece:
            self._grant(request.number, len(piece))

    async def _take_all(self) -> None:
        while True:
            await self._has_arrived.wait()
            while self._arrived:
                request = self._arrived[0]
                await self._take(request.kind, bytes(request.body))
                self._arrived.popleft()
                self._collected -= len(request.body)
                self._handled += len(request.body)
                if self._handled >= _CREDIT_BYTES:
                    self._grant(0, self._handled)
                    self._handled = 0
            self._has_arrived.clear()
            self._rested()
