"""The feed: from any place on, from memory where it can, and nobody is woken for nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from cheops.config.notify import EventKind
from cheops.errors import ClientError
from cheops.notify.event import Event
from cheops.notify.feed import Feed, Page, Position
from cheops.notify.journal import EventRange, Journal

FOREVER_S = 60.0


class Desk:
    """A journal and its feed, with a count of how often the disk was asked."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.reads = 0
        self.feed = Feed(journal, self._in_thread)

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        self.reads += 1
        return await asyncio.to_thread(work)

    def happen(self, *numbers: int, resource: str = "n") -> None:
        self.journal.append(event(number, resource) for number in numbers)
        self.feed.announce()

    @asynccontextmanager
    async def waiting(self, since: Position, resource: str | None = None) -> AsyncIterator[asyncio.Task[Page]]:
        """One who waits for what comes after a place."""
        task = asyncio.create_task(self.feed.read(since, resource=resource, wait_s=FOREVER_S))
        await self.settle()
        try:
            yield task
        finally:
            task.cancel()

    async def settle(self) -> None:
        """Let all others do what they can without waiting."""
        for _ in range(10):
            await asyncio.sleep(0)


def event(number: int, resource: str = "n") -> Event:
    return Event(id=f"ran:{number}", kind=EventKind.RAN, time="", site="site1", resource=resource)


def on_desk(path: Path, test: Callable[[Desk], Awaitable[None]], **options: int) -> None:
    async def whole() -> None:
        with closing(Journal(path / "notify.db", **options)) as journal:
            await test(Desk(journal))

    asyncio.run(whole())


def numbers(page: Page) -> list[int]:
    return [int(one.id.removeprefix("ran:")) for one in page.events]


def test_it_goes_on_from_any_place(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        start = desk.feed.end
        desk.happen(1, 2)
        desk.happen(3, resource="m")
        page = await desk.feed.read(start, limit=2)
        assert (numbers(page), page.start, page.reset) == ([1, 2], start, False)
        page = await desk.feed.read(page.last)
        assert (numbers(page), page.last) == ([3], desk.feed.end)
        assert numbers(await desk.feed.read(start, resource="m")) == [3]
        only_n = await desk.feed.read(start, resource="n")
        assert (numbers(only_n), only_n.last) == ([1, 2], desk.feed.end)
        assert numbers(await desk.feed.read(page.last)) == []
        assert desk.reads == 0, "what is new comes from memory"

    on_desk(tmp_path, test)


def test_it_goes_on_after_a_restart(tmp_path: Path) -> None:
    places: list[str] = []

    async def before(desk: Desk) -> None:
        desk.happen(1, 2, 3)
        places.append(str((await desk.feed.read(desk.feed.at(0), limit=1)).last))

    async def after(desk: Desk) -> None:
        desk.happen(4)
        page = await desk.feed.read(Position.parse(places[0]), limit=2)
        assert (numbers(page), page.reset) == ([2, 3], False)
        page = await desk.feed.read(page.last)
        assert (numbers(page), page.reset, page.last) == ([4], False, desk.feed.end)

    on_desk(tmp_path, before)
    on_desk(tmp_path, after)


def test_places_are_of_one_journal(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        desk.happen(1, 2)
        end = desk.feed.end
        assert Position.parse(str(end)) == end
        for elsewhere in (Position("0", 1), end._replace(seq=end.seq + 1)):
            assert await desk.feed.read(elsewhere, wait_s=FOREVER_S) == Page((), end, reset=True)
        for odd in ("", "-", "yesterday", "x-2", f"{end.token}-", f"{end}x", f"{end.token}--1"):
            with pytest.raises(ClientError, match="looks like"):
                Position.parse(odd)

    on_desk(tmp_path, test)


def test_it_says_when_what_was_asked_for_is_gone(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        start = desk.feed.end
        for first in range(0, 4_000, 1_000):
            desk.happen(*range(first, first + 1_000))
        page = await desk.feed.read(start, limit=1)
        assert (numbers(page), page.reset) == ([3_000], True)
        assert numbers(await desk.feed.read(page.start, limit=1)) == [3_000]
        assert not (await desk.feed.read(page.start)).reset, "it is said once"
        page = await desk.feed.read(page.last, limit=1)
        assert (numbers(page), page.reset) == ([3_001], False)

    on_desk(tmp_path, test, kept=1_000)


def test_what_is_older_than_memory_comes_from_the_journal(
    tmp_path: Path,
) -> None:
    async def test(desk: Desk) -> None:
        start = desk.feed.end
        desk.happen(1, 2, 3)
        desk.happen(4, resource="m")
        desk.happen(5, 6)
        seen: list[int] = []
        place = start
        while place != desk.feed.end:
            page = await desk.feed.read(place, limit=2)
            seen += numbers(page)
            place = page.last
        assert (seen, desk.reads) == ([1, 2, 3, 4, 5, 6], 2)
        assert numbers(await desk.feed.read(start, resource="n")) == [1, 2, 3, 5, 6]
        assert numbers(await desk.feed.read(desk.feed.at(3), resource="m")) == [4]
        assert desk.reads == 3

    on_desk(tmp_path, test, in_memory=3)


def test_whom_an_event_concerns_is_woken_and_nobody_else(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        end = desk.feed.end
        async with (
            desk.waiting(end, "n") as of_n,
            desk.waiting(end, "m") as of_m,
            desk.waiting(end) as of_all,
        ):
            desk.happen(1)
            await desk.settle()
            assert (of_n.done(), of_m.done(), of_all.done()) == (True, False, True)
            assert numbers(await of_n) == numbers(await of_all) == [1]
            desk.feed.announce()  # the journal was written, and no event came of it
            await desk.settle()
            assert not of_m.done()
            desk.happen(2, resource="m")
            assert numbers(await of_m) == [2]
        assert desk.reads == 0

    on_desk(tmp_path, test)


def test_one_who_waits_for_a_quiet_resource_is_not_left_behind(
    tmp_path: Path,
) -> None:
    """However much happens elsewhere, it need not ask the disk, and is not told that something is gone."""

    async def test(desk: Desk) -> None:
        async with desk.waiting(desk.feed.end, "m") as of_m:
            for first in range(0, 3_000, 5):
                desk.happen(*range(first, first + 5))
            await desk.settle()
            assert not of_m.done()
            desk.happen(1, resource="m")
            page = await of_m
        assert (numbers(page), page.reset, desk.reads) == ([1], False, 0)

    on_desk(tmp_path, test, kept=1_000, in_memory=10)


def test_more_at_once_than_memory_holds_wakes_all(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        async with desk.waiting(desk.feed.end, "n") as of_n, desk.waiting(desk.feed.end, "m") as of_m:
            desk.happen(1, 2, 3, 4, 5)
            assert numbers(await of_n) == [1, 2, 3, 4, 5]
            while desk.reads < 2:  # the other had to look as well
                await asyncio.sleep(0.001)
            assert not of_m.done()
            desk.happen(6, resource="m")
            assert numbers(await of_m) == [6]

    on_desk(tmp_path, test, in_memory=3)


def test_what_happens_while_the_disk_is_read_is_not_missed(tmp_path: Path) -> None:
    async def first(desk: Desk) -> None:
        desk.happen(1)

    async def test(desk: Desk) -> None:
        real = desk.journal.after

        def slow(seq: int, limit: int, resource: str | None = None) -> EventRange:
            found = real(seq, limit, resource)
            desk.journal.append([event(2, "m")])
            return found

        desk.journal.after = slow  # type: ignore[method-assign]
        async with desk.waiting(desk.feed.at(1), "m") as of_m:
            while not desk.journal.tail.counts:
                await asyncio.sleep(0.001)
            desk.feed.announce()
            assert numbers(await of_m) == [2]

    on_desk(tmp_path, first)
    on_desk(tmp_path, test)


def test_silence_gives_an_empty_page_that_goes_on_later(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        following = desk.feed.follow(desk.feed.end, "m", silent_s=0.02)
        desk.happen(1)
        page = await anext(following)
        assert (page.events, page.last, page.reset) == ((), desk.feed.end, False)
        desk.happen(2, resource="m")
        assert numbers(await anext(following)) == [2]

    on_desk(tmp_path, test)


def test_closing_sends_everybody_home(tmp_path: Path) -> None:
    async def test(desk: Desk) -> None:
        following = desk.feed.follow(desk.feed.end, silent_s=FOREVER_S)
        coming = asyncio.ensure_future(anext(following))
        async with desk.waiting(desk.feed.end, "n") as of_n:
            desk.feed.close()
            assert numbers(await of_n) == numbers(await coming) == []
        with pytest.raises(StopAsyncIteration):
            await anext(following)

    on_desk(tmp_path, test)


def test_readers_cost_no_memory(tmp_path: Path) -> None:
    """A slow one is a place and nothing else, and one that has gone leaves nothing behind."""

    async def test(desk: Desk) -> None:
        slow = desk.feed.follow(desk.feed.end, silent_s=FOREVER_S)
        desk.happen(*range(5_000))
        assert len(numbers(await anext(slow))) == 100, "a page at a time"
        kept = desk.journal.tail.after(desk.journal.last - 500, 10_000)
        assert kept is not None
        assert len(kept.events) == 500
        assert desk.journal.tail.after(desk.journal.last - 501, 1) is None
        for resource in ("a", "b", None):
            async with desk.waiting(desk.feed.end, resource):
                assert desk.feed._waiting
        await desk.settle()
        assert not desk.feed._waiting

    on_desk(tmp_path, test, in_memory=500)
