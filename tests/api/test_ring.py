"""The ring of events: bounded, numbered, and with a bell."""

import asyncio

from cheops.node.events import Events


def filled(kept: int, n: int) -> Events:
    events = Events(kept)
    for number in range(n):
        events.add("reply", f"r{number % 2}", status="OK")
    return events


def numbers(events: Events, after: int, resource: str | None = None, limit: int = 1000) -> list[int]:
    return [event.n for event in events.after(after, resource, limit).events]


def test_it_keeps_the_newest_and_says_when_some_are_gone() -> None:
    events = filled(10, 25)
    assert numbers(events, 20) == [21, 22, 23, 24, 25]
    assert not events.after(15).lost
    assert events.after(14).lost
    assert numbers(events, 0) == list(range(16, 26))
    assert events.counts["reply", "OK"] == 25


def test_a_reader_of_one_resource_gets_on() -> None:
    events = filled(100, 10)
    first = events.after(0, "r1", 2)
    assert [event.n for event in first.events] == [2, 4]
    assert numbers(events, first.last, "r1") == [6, 8, 10]
    assert events.after(10, "r1").last == 10


def test_places_are_of_one_run_only() -> None:
    events = filled(10, 3)
    assert events.place(events.name(2)) == 2
    for odd in (
        "",
        "-",
        "x-2",
        f"{events.epoch}-",
        f"{events.epoch}-x",
        f"{events.epoch}-99",
        f"{events.epoch}--1",
    ):
        assert events.place(odd) is None


def test_the_bell_wakes_those_who_wait() -> None:
    async def play() -> None:
        events = filled(10, 1)
        assert await events.more(0, 0)
        assert not await events.more(1, 0.01)
        waiting = asyncio.create_task(events.more(1, 30))
        await asyncio.sleep(0)
        events.add("reply")
        assert await waiting
        waiting = asyncio.create_task(events.more(2, 30))
        await asyncio.sleep(0)
        events.close()
        assert not await waiting

    asyncio.run(play())
