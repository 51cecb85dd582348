"""The feed of changes: the journal for those who ask, from any place on, and as it grows.

A place in it is a text, `<token>-<sequence>`. The token is the journal's: a place in one that was lost is not
taken for one in its successor.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from cheops.errors import ClientError
from cheops.notify.events import Event
from cheops.notify.journal import Journal

MAX_PAGE = 1_000
_PLACE = re.compile(r"([0-9a-f]{1,16})-([0-9]{1,18})")


class PlaceError(ClientError):
    """A text is not a place in a feed."""


@dataclass(frozen=True, slots=True)
class Page:
    """Events in their order, and where to go on. `reset`: some that were asked for are gone."""

    events: tuple[Event, ...]
    last: str
    reset: bool = False


class News:
    """Wakes all who wait for something new."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        told, self._event = self._event, asyncio.Event()
        told.set()

    @property
    def next(self) -> asyncio.Event:
        """To be taken before looking, and waited for if there was nothing."""
        return self._event


class Feed:
    """Belongs to one event loop; `in_thread` runs what blocks."""

    def __init__(
        self, journal: Journal, in_thread: Callable[[Callable[[], Page]], Awaitable[Page]], news: News
    ) -> None:
        self._journal = journal
        self._in_thread = in_thread
        self._news = news

    async def read(self, since: str = "", limit: int = 100, resource: str | None = None) -> Page:
        """The events after a place; without one, from the oldest that is left. Raises PlaceError."""
        token, seq = _parsed(since) if since else (self._journal.token, 0)
        most = max(1, min(limit, MAX_PAGE))
        return await self._in_thread(lambda: self._page(token, seq, most, resource, bool(since)))

    async def follow(self, since: str = "", resource: str | None = None) -> AsyncIterator[Page]:
        """Pages with something new in them, for ever."""
        while True:
            news = self._news.next
            page = await self.read(since, resource=resource)
            since = page.last
            if page.events or page.reset:
                yield page
            else:
                await news.wait()

    async def end(self) -> str:
        """The place after everything that is there now."""
        page = await self._in_thread(lambda: Page((), self._place(self._journal.last)))
        return page.last

    def place(self, event: Event) -> str:
        return self._place(event.sequence)

    def _place(self, seq: int) -> str:
        return f"{self._journal.token}-{seq}"

    def _page(self, token: str, seq: int, limit: int, resource: str | None, is_asked: bool) -> Page:
        last, trimmed = self._journal.last, self._journal.trimmed
        is_lost = token != self._journal.token or seq > last
        reset = is_asked and (is_lost or seq < trimmed)
        start = 0 if is_lost else seq
        events = tuple(self._journal.after(start, limit, resource))
        if events:
            return Page(events, self._place(events[-1].sequence), reset)
        return Page((), self._place(max(start, last)), reset)


def _parsed(text: str) -> tuple[str, int]:
    found = _PLACE.fullmatch(text)
    if not found:
        raise PlaceError("a place in the feed looks like 'a1b2c3-17': give back what an earlier answer said")
    return found[1], int(found[2])
