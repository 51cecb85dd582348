"""The kinds of store that the acceptance suite (test_store.py, test_feed.py) holds for: a new one is one more line."""

from collections.abc import Callable
from pathlib import Path

from cheops.engine.documents import Document, Key
from cheops.store.interface import Store
from cheops.store.memory import MemoryStore
from cheops.store.sqlite import SQLiteStore
from tests.store.documents import keys

# A kind of store, by how a new one is opened in an empty directory.
STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "sqlite": lambda directory: SQLiteStore(directory / "site.db"),
}


def feed(store: Store, site: str | None = None, since: int = 0) -> tuple[Key, ...]:
    """The keys in the feed, after a check that their numbers grow."""
    changes = store.changes(since, 10_000, site)
    numbers = [change.seq for change in changes]
    assert numbers == sorted(set(numbers))
    assert all(since < number <= store.last_seq() for number in numbers)
    return tuple(change.key for change in changes)


def feed_is(store: Store, *documents: Document, site: str | None = None, since: int = 0) -> None:
    assert feed(store, site, since) == keys(documents)
