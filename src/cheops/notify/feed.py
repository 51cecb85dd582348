"""The feed: the journal as readers see it, from any position on, and as it grows.

Web hooks, commands and mails are sent from it, and the API's streams read it. New events come from memory
(`journal.EventBuffer`). A reader of one resource is woken only by events of that resource. A reader is only a position,
so a slow one costs no memory.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from msgspec import Struct

from cheops.errors import ClientError
from cheops.notify.event import Event
from cheops.notify.journal import EventRange, Journal

MAX_PAGE = 1_000
_PAGE = 100
_POSITION = re.compile(r"([0-9a-f]{1,16})-([0-9]{1,18})")


class Position(NamedTuple):
    """A place between two events. The token is the journal's: a position means nothing in another journal."""

    token: str
    seq: int

    def __str__(self) -> str:
        return f"{self.token}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        parts = _POSITION.fullmatch(text)
        if not parts:
            raise ClientError("a position in the feed looks like 'a1b2c3-17'; use one from an earlier response")
        return cls(parts[1], int(parts[2]))


class Page(Struct, frozen=True):
    """Events in order, and where to continue. `reset`: some of the requested events are deleted."""

    events: tuple[Event, ...]
    last: Position
    reset: bool = False

    @property
    def start(self) -> Position:
        """Right before the first event."""
        return Position(self.last.token, self.events[0].sequence - 1) if self.events else self.last


class Feed:
    """Belongs to one event loop; `in_thread` runs what blocks."""

    def __init__(
        self, journal: Journal, in_thread: Callable[[Callable[[], EventRange]], Awaitable[EventRange]]
    ) -> None:
        self._journal = journal
        self._in_thread = in_thread
        self._waiting: dict[str | None, set[asyncio.Future[int]]] = {}  # None: for events of any resource
        self._announced = journal.last  # readers were woken for all events up to this number
        self.is_closed = False

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def end(self) -> Position:
        """After the newest event."""
        return self.at(self._journal.last)

    def at(self, seq: int) -> Position:
        return Position(self._journal.token, seq)

    async def read(self, since: Position, limit: int = _PAGE, resource: str | None = None, wait_s: float = 0.0) -> Page:
        """The events after a position, of all resources or of one. If there are none, wait for the first.

        After a position in another journal the reader continues with new events: what it missed is unknown.
        """
        # A greater number than the last is of events that a power cut took.
        if since.token != self._journal.token or since.seq > self._journal.last:
            return Page((), self.end, reset=True)
        seq, loop = since.seq, asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            batch = await self._after(seq, limit, resource)
            left_s = until_s - loop.time()
            if batch.events or not batch.is_whole or left_s <= 0 or self.is_closed:
                return Page(batch.events, self.at(batch.end), reset=not batch.is_whole)
            seq = await self._next(batch.end, resource, left_s)

    async def follow(self, since: Position, resource: str | None = None, *, silent_s: float) -> AsyncIterator[Page]:
        """Pages as events happen, and an empty one after each `silent_s` without any; until the feed is closed."""
        while not self.is_closed:
            page = await self.read(since, _PAGE, resource, silent_s)
            since = page.last
            yield page

    async def _after(self, seq: int, limit: int, resource: str | None) -> EventRange:
        batch = self._journal.tail.after(seq, limit, resource)
        if batch is None:
            batch = await self._in_thread(lambda: self._journal.after(seq, limit, resource))
        return batch

    # -- waiting ---------------------------------------------------------------------------------------------

    async def _next(self, seq: int, resource: str | None, wait_s: float) -> int:
        """Wait for an event after this number. Returns the number to read on from."""
        if self._announced > seq:
            return seq  # announced while the disk was read: waiting now would miss it
        news: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(resource, set()).add(news)
        try:
            await asyncio.wait((news,), timeout=wait_s)
        finally:
            self._leave(resource, news)
        return max(seq, news.result() if news.done() else self._announced)

    def _leave(self, resource: str | None, news: asyncio.Future[int]) -> None:
        if waiting := self._waiting.get(resource):
            waiting.discard(news)
            if not waiting:
                del self._waiting[resource]

    def announce(self) -> None:
        """The journal has grown: wake the readers that have something to read."""
        before, self._announced = self._announced, self._journal.last
        if self._announced == before or not self._waiting:
            return
        batch = self._journal.tail.after(before, self._announced - before)
        if batch is None:  # too many at once: they are not all in memory
            self._wake_all(before)
            return
        for event in batch.events:
            self._wake(None, event.sequence - 1)
            self._wake(event.resource, event.sequence - 1)

    def _wake(self, resource: str | None, before: int) -> None:
        for news in self._waiting.pop(resource, ()):
            if not news.done():
                news.set_result(before)

    def _wake_all(self, before: int) -> None:
        for resource in tuple(self._waiting):
            self._wake(resource, before)

    def close(self) -> None:
        """The agent stops: end all reads."""
        self.is_closed = True
        self._wake_all(self._announced)
