"""The feed: the journal for all who read it, from any place on, and as it grows.

Web hooks, commands and mails are sent from it, and the API's streams read it. What is new comes from memory
(tail.py), and who follows a resource is woken only when something happened to it. A reader is nothing but a
place, so a slow one costs no memory.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import NamedTuple

from cheops.errors import ClientError
from cheops.notify.event import Event
from cheops.notify.journal import EventRange, Journal

MAX_PAGE = 1_000
_PAGE = 100
_PLACE = re.compile(r"([0-9a-f]{1,16})-([0-9]{1,18})")


class Position(NamedTuple):
    """Between two events. The token is the journal's: a place in one that was lost is none in the next."""

    token: str
    seq: int

    def __str__(self) -> str:
        return f"{self.token}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Position":
        found = _PLACE.fullmatch(text)
        if not found:
            raise ClientError("a place in the feed looks like 'a1b2c3-17': give back what an earlier answer said")
        return cls(found[1], int(found[2]))


@dataclass(frozen=True, slots=True)
class Page:
    """Events in their order, and where to go on. `reset`: some that were asked for are gone."""

    events: tuple[Event, ...]
    last: Position
    reset: bool = False

    @property
    def start(self) -> Position:
        """Right before the first of them."""
        return Position(self.last.token, self.events[0].sequence - 1) if self.events else self.last


class Feed:
    """Belongs to one event loop; `in_thread` runs what blocks."""

    def __init__(
        self, journal: Journal, in_thread: Callable[[Callable[[], EventRange]], Awaitable[EventRange]]
    ) -> None:
        self._journal = journal
        self._in_thread = in_thread
        self._waiting: dict[str | None, set[asyncio.Future[int]]] = {}  # None: for events of any resource
        self._told = journal.last  # of all events up to this number, those who wait have heard
        self.is_closed = False

    # -- reading ---------------------------------------------------------------------------------------------

    @property
    def end(self) -> Position:
        """After everything that is there now."""
        return self.at(self._journal.last)

    def at(self, seq: int) -> Position:
        return Position(self._journal.token, seq)

    async def read(self, since: Position, limit: int = _PAGE, resource: str | None = None, wait_s: float = 0.0) -> Page:
        """The events after a place, perhaps of one resource. If there are none, wait so long for the first.

        Of a place in another journal nobody can say what came after it: it goes on from now.
        """
        if since.token != self._journal.token or since.seq > self._journal.last:
            return Page((), self.end, reset=True)
        seq, loop = since.seq, asyncio.get_running_loop()
        until_s = loop.time() + wait_s
        while True:
            found = await self._after(seq, limit, resource)
            left_s = until_s - loop.time()
            if found.events or not found.is_whole or left_s <= 0 or self.is_closed:
                return Page(found.events, self.at(found.end), reset=not found.is_whole)
            seq = await self._next(found.end, resource, left_s)

    async def follow(self, since: Position, resource: str | None = None, *, silent_s: float) -> AsyncIterator[Page]:
        """Pages as things happen, and an empty one after so much silence; until the feed is closed."""
        while not self.is_closed:
            page = await self.read(since, _PAGE, resource, silent_s)
            since = page.last
            yield page

    async def _after(self, seq: int, limit: int, resource: str | None) -> EventRange:
        found = self._journal.tail.after(seq, limit, resource)
        if found is None:
            found = await self._in_thread(lambda: self._journal.after(seq, limit, resource))
        return found

    # -- waiting ---------------------------------------------------------------------------------------------

    async def _next(self, seq: int, resource: str | None, wait_s: float) -> int:
        """Wait for an event after this number; gives a number that none comes before."""
        if self._told > seq:
            return seq  # told while the disk was read
        news: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(resource, set()).add(news)
        try:
            await asyncio.wait((news,), timeout=wait_s)
        finally:
            self._leave(resource, news)
        return max(seq, news.result() if news.done() else self._told)

    def _leave(self, resource: str | None, news: asyncio.Future[int]) -> None:
        if waiting := self._waiting.get(resource):
            waiting.discard(news)
            if not waiting:
                del self._waiting[resource]

    def tell(self) -> None:
        """The journal was written: wake those for whom there is something."""
        before, self._told = self._told, self._journal.last
        if self._told == before or not self._waiting:
            return
        found = self._journal.tail.after(before, self._told - before)
        if found is None:  # so much at once that it is not all in memory
            self._wake_all(before)
            return
        for event in found.events:
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
        """The agent stops: whoever follows goes home."""
        self.is_closed = True
        self._wake_all(self._told)
