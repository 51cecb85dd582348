"""A map that holds a limited number of entries and evicts the oldest.

Everything that grows with the input of clients and peers needs a bound: otherwise they decide how much memory an agent
takes.
"""

from collections.abc import Callable, Iterator, MutableMapping
from typing import TypeVar, overload

K = TypeVar("K")
V = TypeVar("V")
T = TypeVar("T")


class BoundedMap(MutableMapping[K, V]):
    """A mapping with at most `most` entries. An entry is as old as its last assignment, or `touch`."""

    def __init__(self, most: int, evicted: Callable[[K, V], None] | None = None) -> None:
        """`evicted` is called with each entry that a new one replaces, after its removal from the map."""
        self.most = most
        self._evicted = evicted
        self._entries: dict[K, V] = {}  # in the order of age, the oldest first

    def __getitem__(self, key: K) -> V:
        return self._entries[key]

    @overload
    def get(self, key: K, default: None = None, /) -> V | None: ...

    @overload
    def get(self, key: K, default: V | T, /) -> V | T: ...

    def get(self, key: K, default: V | T | None = None, /) -> V | T | None:
        """As `Mapping.get`, in one call instead of three."""
        return self._entries.get(key, default)

    def __setitem__(self, key: K, value: V) -> None:
        self._entries.pop(key, None)  # so that the assignment puts it at the end, as the newest
        self._entries[key] = value
        while len(self._entries) > self.most:
            self.evict()

    def __delitem__(self, key: K) -> None:
        del self._entries[key]

    def __iter__(self) -> Iterator[K]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def touch(self, key: K) -> None:
        """Make an entry the newest: with this at each read, the map evicts the least recently used."""
        self._entries[key] = self._entries.pop(key)

    def evict(self) -> tuple[K, V]:
        """Remove the oldest entry. The map must not be empty."""
        key = next(iter(self._entries))
        value = self._entries.pop(key)
        if self._evicted is not None:
            self._evicted(key, value)
        return key, value
