"""A store in memory, for tests.

It holds documents as bytes, as a store on disk does: a loaded document is decoded, never the same object as before. So
a test on this store also notices if the codec loses something.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import merge
from itertools import islice
from threading import Lock
from typing import Any

from msgspec import Struct, field

from cheops.engine.documents import Document, Key
from cheops.engine.events import Recovered, Save
from cheops.engine.health import State
from cheops.store.batch import AddSignatures, Forget, Put, writes_of
from cheops.store.codec import ascii_lower, decode, decode_plain, encode_plain
from cheops.store.interface import Change, StoreError, recovered_from
from cheops.store.space import DELETED, Space

_EVERYTHING, _MATRICES = object(), object()  # feeds besides those of the sites; no site name can equal them


class _Row(Struct):
    put: Put
    numbers: dict[object, int] = field(default_factory=dict)  # its number in each feed


class MemoryStore:
    """See `interface.Store`."""

    def __init__(self) -> None:
        self.incarnation = secrets.token_hex(6)
        self._rows: dict[Key, _Row] = {}
        self._by_resource: dict[str, dict[Key, _Row]] = {}
        self._involved: dict[str, dict[str, None]] = {}
        self._feeds: dict[object, dict[int, Key]] = {}  # numbers only grow, so each dictionary stays sorted
        self._last_seq = 0
        self._notes: dict[str, bytes] = {}
        self._lock = Lock()
        self._dropped: set[str] = set()
        self.free_bytes = 0
        self._is_open = True
        self.add_signatures: AddSignatures | None = None

    # -- writing ---------------------------------------------------------------------------------

    def begin_incarnation(self) -> None:
        self._check_open()
        self.incarnation = secrets.token_hex(6)

    def commit(self, saves: Sequence[Save]) -> int:
        self._check_open()
        writes = writes_of(saves, self.add_signatures)  # everything that can fail comes before the first change
        with self._lock:
            for write in writes:
                if isinstance(write, Put):
                    self._put(write)
                else:
                    self._forget(write)
            # A resource without documents involves no site, and backends should forget it.
            for resource in {write.resource for write in writes}:
                if not self._by_resource.get(resource):
                    self._by_resource.pop(resource, None)
                    self._involved.pop(resource, None)
                    self._dropped |= {resource} if resource else set()
            return self._last_seq

    def dropped(self, limit: int = 1000) -> tuple[str, ...]:
        self._check_open()
        with self._lock:
            return tuple(sorted(self._dropped - self._by_resource.keys())[:limit])

    def clear_dropped(self, resources: Iterable[str]) -> None:
        self._check_open()
        with self._lock:
            self._dropped -= {*resources, *self._by_resource}

    def _put(self, put: Put) -> None:
        for site in put.sites:
            self._involve(site, put.resource)
        row = self._rows.setdefault(put.key, _Row(put))
        row.put = put
        self._by_resource.setdefault(put.resource, {})[put.key] = row
        if put.is_shared and _EVERYTHING not in row.numbers:
            others = self._involved.get(put.resource, ()) if put.resource else (_MATRICES,)
            self._append(row, _EVERYTHING, *others)

    def _involve(self, site: str, resource: str) -> None:
        involved = self._involved.setdefault(resource, {})
        if site in involved:
            return
        involved[site] = None
        earlier = [row for row in self._by_resource.get(resource, {}).values() if row.numbers]
        # New numbers at the end of the site's feed: the site may have read beyond the old ones.
        for row in sorted(earlier, key=lambda row: row.numbers[_EVERYTHING]):
            self._append(row, site)

    def _append(self, row: _Row, *feeds: object) -> None:
        self._last_seq += 1
        for feed in feeds:
            row.numbers[feed] = self._last_seq
            self._feeds.setdefault(feed, {})[self._last_seq] = row.put.key

    def _forget(self, forget: Forget) -> None:
        row = self._rows.pop(forget.key, None)
        if row is not None:
            del self._by_resource[forget.resource][forget.key]
            for feed, seq in row.numbers.items():
                del self._feeds[feed][seq]

    # -- reading ---------------------------------------------------------------------------------

    def load(self, resource: str) -> tuple[Document, ...]:
        self._check_open()
        with self._lock:
            bodies = [row.put.body for row in self._by_resource.get(resource, {}).values()]
        return tuple(map(decode, bodies))

    @property
    def damaged(self) -> Mapping[str, frozenset[str]]:
        return {}

    def rewrite(self, documents: Sequence[Document]) -> None:
        self.commit([Save(tuple(documents))])

    def set_unknown(self, resource: str) -> None:
        with self._lock:
            for row in self._by_resource.get(resource, {}).values():
                row.put = row.put._replace(state=State.UNKNOWN.value) if row.put.state else row.put

    def sites_of(self, resource: str) -> tuple[str, ...]:
        with self._lock:
            return tuple(sorted(self._involved.get(resource, ())))

    def recovered(self) -> Recovered:
        documents = self.load("")
        with self._lock:
            unsynced = sorted(row.put.resource for row in self._rows.values() if row.put.is_unsynced)
        return recovered_from(documents, unsynced)

    def involving(self, site: str) -> tuple[str, ...]:
        self._check_open()
        with self._lock:
            return tuple(sorted(resource for resource, sites in self._involved.items() if site in sites))

    def resources(self, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        self._check_open()
        with self._lock:
            return tuple(sorted(resource for resource in self._by_resource if resource > after)[:limit])

    def search(self, text: str, site: str | None = None, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        resources = self.resources(after, len(self._by_resource)) if site is None else self.involving(site)
        text = ascii_lower(text)
        matches = (resource for resource in resources if resource > after and text in ascii_lower(resource))
        return tuple(islice(matches, limit))

    def states(self) -> dict[str, int]:
        self._check_open()
        with self._lock:
            return dict(Counter(row.put.state for row in self._rows.values() if row.put.state))

    def in_states(
        self, states: Sequence[str], text: str = "", site: str | None = None, after: str = "", limit: int = 1000
    ) -> tuple[str, ...]:
        self._check_open()
        wanted = set(states)
        with self._lock:
            found = {row.put.resource for row in self._rows.values() if row.put.state in wanted}
        return tuple(
            islice((one for one in self.search(text, site, after, len(self._by_resource)) if one in found), limit)
        )

    def due(self, by_ms: int, limit: int = 1000) -> tuple[str, ...]:
        self._check_open()
        with self._lock:
            puts = [row.put for row in self._rows.values() if row.put.due_ms is not None and row.put.due_ms <= by_ms]
        return tuple(put.resource for put in sorted(puts, key=lambda put: put.due_ms or 0)[:limit])

    def shares(self) -> dict[str, int]:
        self._check_open()
        with self._lock:
            return dict(Counter(site for sites in self._involved.values() for site in sites))

    def read(self, keys: Iterable[Key]) -> dict[Key, Document]:
        self._check_open()
        with self._lock:
            bodies = {key: self._rows[key].put.body for key in keys if key in self._rows}
        return {key: decode(body) for key, body in bodies.items()}

    def last_seq(self) -> int:
        self._check_open()
        return self._last_seq

    def changes(self, since: int, limit: int, site: str | None = None) -> tuple[Change, ...]:
        self._check_open()
        feeds = (_EVERYTHING,) if site is None else (site, _MATRICES)
        with self._lock:
            items = merge(*(self._feeds.get(feed, {}).items() for feed in feeds), key=lambda item: item[0])
            return tuple(islice((Change(seq, key) for seq, key in items if seq > since), limit))

    # -- notes -----------------------------------------------------------------------------------

    def note(self, name: str) -> dict[str, Any] | None:
        self._check_open()
        body = self._notes.get(name)
        return None if body is None else decode_plain(body)

    def put_note(self, name: str, note: dict[str, Any] | None) -> None:
        self._check_open()
        if note is None:
            self._notes.pop(name, None)
        else:
            self._notes[name] = encode_plain(note)

    def space(self, *, is_brief: bool = False) -> Space:
        del is_brief
        self._check_open()
        with self._lock:
            dead = {row.put.resource for row in self._rows.values() if row.put.state == DELETED}
            sizes = [(row.put.resource in dead, len(row.put.body)) for row in self._rows.values()]
        dead_bytes = sum(size for is_dead, size in sizes if is_dead)
        return Space(sum(size for _, size in sizes), 0, 0, len(sizes), len(dead), dead_bytes)

    def shrink(self) -> bool:
        self._check_open()
        return False

    def close(self) -> None:
        self._is_open = False

    def _check_open(self) -> None:
        if not self._is_open:
            raise StoreError("the store is closed")
