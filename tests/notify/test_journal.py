"""The journal: in order, each event once, bounded, and told to each target from where it was."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import pytest

from cheops.config.notify import EventKind
from cheops.notify.event import Event
from cheops.notify.journal import EventRange, Journal
from cheops.store.interface import StoreError


def event(name: str, resource: str = "n") -> Event:
    return Event(id=name, kind=EventKind.RAN, time="", site="site1", resource=resource)


def events(start: int, end: int) -> list[Event]:
    return [event(f"e{number}") for number in range(start, end)]


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with closing(Journal(tmp_path / "notify.db")) as made:
        yield made


def ids(found: EventRange) -> list[str]:
    return [one.id for one in found.events]


def test_events_are_kept_in_order(journal: Journal) -> None:
    journal.append([event("a"), event("b", "m")])
    journal.append([event("c")])
    found = journal.after(0, 10)
    assert ids(found) == ["a", "b", "c"]
    numbers = [one.sequence for one in found.events]
    assert numbers == sorted(set(numbers))
    assert journal.last == found.end == numbers[-1]
    one = journal.after(numbers[0], 1)
    assert (ids(one), one.end) == (["b"], numbers[1])
    one = journal.after(0, 10, "m")
    assert (ids(one), one.end) == (["b"], numbers[-1])


def test_what_was_not_kept_gets_no_number(journal: Journal) -> None:
    journal.append([event("a")])
    with suppress(RuntimeError), journal.writing() as db:
        journal.append_within(db, [event("b")])
        raise RuntimeError
    journal.append([event("c")])
    in_memory = journal.tail.after(0, 10)
    assert in_memory == journal.after(0, 10)
    assert ids(journal.after(0, 10)) == ["a", "c"]
    assert journal.tail.counts == {("ran", ""): 2}


def test_a_new_target_begins_now_and_one_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "notify.db")) as journal:
        journal.append(events(0, 3))
        journal.keep_targets(["old"])
        journal.append(events(3, 5))
        assert ids(journal.after(journal.cursor("old"), 10)) == ["e3", "e4"]
        journal.move("old", journal.after(0, 10).events[3].sequence)
    with closing(Journal(tmp_path / "notify.db")) as journal:
        assert ids(journal.after(journal.cursor("old"), 10)) == ["e4"]
        assert journal.keep_targets(["new"]) == {"old": 1}
        assert ids(journal.after(journal.cursor("new"), 10)) == []


def test_numbers_that_a_power_cut_took_are_not_given_again(tmp_path: Path) -> None:
    path = tmp_path / "notify.db"
    with closing(Journal(path)) as journal:
        journal.append(events(0, 3))
    kept = {name: (tmp_path / name).read_bytes() for name in ("notify.db",)}
    with closing(Journal(path)) as journal:
        journal.append(events(3, 9))
        lost = journal.last
    path.write_bytes(kept["notify.db"])
    with closing(Journal(path)) as journal:
        journal.append([event("other")])
        assert ids(journal.after(0, 10))[-1] == "other"
        # A cut can take what was not synced since, which is less than what a start skips.
        assert journal.last + 100_000 > lost
    with closing(Journal(path)) as journal:
        journal.append([event("after the cut")])
        assert journal.last > lost


@pytest.mark.parametrize(("target", "left"), [(None, 1_000), ("slow", 2_000)])
def test_what_everybody_has_is_dropped_and_the_rest_is_bounded(tmp_path: Path, target: str | None, left: int) -> None:
    with closing(Journal(tmp_path / "notify.db", kept=1_000, most_kept=2_000)) as journal:
        journal.keep_targets([target] if target else [])
        for start in range(0, 6_000, 1_000):
            journal.append(events(start, start + 1_000))
        found = journal.after(0, 10_000)
        assert ids(found) == [f"e{number}" for number in range(6_000 - left, 6_000)]
        assert not found.is_whole
        assert journal.after(found.events[0].sequence - 1, 1).is_whole


def test_a_target_that_keeps_up_costs_no_more_than_the_feed(tmp_path: Path) -> None:
    with closing(Journal(tmp_path / "notify.db", kept=1_000, most_kept=5_000)) as journal:
        journal.keep_targets(["quick", "slow"])
        for start in range(0, 4_000, 1_000):
            journal.append(events(start, start + 1_000))
            journal.move("quick", journal.last)
        assert len(ids(journal.after(0, 10_000))) == 4_000, "the slow one still needs them"
        journal.move("slow", journal.last)
        journal.append(events(4_000, 5_000))
        assert len(ids(journal.after(0, 10_000))) == 1_000


def test_sync_and_closing(journal: Journal) -> None:
    journal.append(events(0, 3))
    journal.sync()
    journal.sync()
    journal.close()
    with pytest.raises(StoreError, match="closed"):
        journal.append(events(3, 4))


@pytest.mark.parametrize("content", [b"hello" * 1000, None])
def test_a_file_that_is_no_journal_is_not_touched(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "notify.db"
    if content is None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE other (x)")
        content = path.read_bytes()
    else:
        path.write_bytes(content)
    with pytest.raises(StoreError, match=r"notify\.db"):
        Journal(path)
    assert path.read_bytes() == content


def test_large_events_are_in_memory_only_up_to_a_size(tmp_path: Path) -> None:
    large = msgspec.structs.replace(event("large"), output="x" * 1_000)
    with closing(Journal(tmp_path / "notify.db", in_memory_bytes=10_000)) as journal:
        for _ in range(50):
            journal.append([large])
        assert 8_000 < journal.tail.bytes <= 10_000
        kept = journal.tail.after(journal.last - 8, 100)
        assert kept == journal.after(journal.last - 8, 100)
        assert journal.tail.after(journal.last - 20, 100) is None, "these are only on the disk"
        journal.append([event("small")])
        assert journal.tail.bytes <= 10_000
