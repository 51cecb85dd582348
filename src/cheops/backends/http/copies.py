"""This site's copies of replicated resources: an index in memory, and the SQLite file that keeps it.

A copy is written before the engine gets the outcome of its create, so no id that a service gave is ever lost. Other
sites never see this file. A copy is *away* while its resource is not at this site: to clients it is then an ordinary
resource of the service; if the resource comes back, it is its copy again.

A local id that is a UUID or another long hexadecimal number is recognized as the whole of any value. One such as `5`
or `web-server-2026` is recognized only together with its collection: in a path below it, or where responses about that
collection have ids.
"""

import asyncio
import re
import sqlite3
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote

from msgspec import Struct

from cheops.backends.http.ids import META_ID, Form, Local, NoCopyError, text_to_local
from cheops.backends.http.paths import MAX_SEGMENTS, canonical, collection_of, filled, folded, prefixes, trimmed
from cheops.bounded import BoundedMap
from cheops.store import space
from cheops.store.database import create_file, translate_errors

_DISTINCTIVE_CHARACTERS = 12
_UNMISTAKABLE = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=.*[0-9])[0-9a-f]{16,128}", re.IGNORECASE)
K = TypeVar("K")
V = TypeVar("V")


class Copy(Struct, frozen=True):
    """This site's copy of a replicant. `item` is where clients find it: with `{id}`, and meta-ids for what it
    is part of; for what clients name themselves it is the path as it stands."""

    meta_id: str
    service: str
    item: str
    local_id: str
    is_number: bool = False
    is_named: bool = False
    client: str = ""  # whose it is, with `replicate_as: mapped`

    @property
    def path(self) -> str:
        """Its path for clients."""
        return self.item if self.is_named else filled(self.item, self.meta_id)


def is_unmistakable(local_id: str) -> bool:
    """Whether an id is a UUID or another long hexadecimal number, and so nothing else has it by chance. Only such an id
    is recognized wherever it is; a text that somebody may have chosen is not."""
    return _UNMISTAKABLE.fullmatch(local_id) is not None


def is_distinctive(local_id: str) -> bool:
    """Whether the last part of a path looks like an id, rather than like the name of a collection."""
    return len(local_id) >= _DISTINCTIVE_CHARACTERS and any(character.isdigit() for character in local_id)


class Index:
    """All copies of this site, in memory."""

    def __init__(self, copies: Iterable[Copy] = ()) -> None:
        self.copies: dict[str, Copy] = {}
        self._places: dict[str, tuple[str, str]] = {}  # of each copy: service and local path
        self._services: dict[str, int] = {}
        self._paths: dict[tuple[str, str], str] = {}  # service and local path → meta-id
        self._collections: dict[tuple[str, str], dict[str, str]] = {}  # … of a collection → local id → meta-id
        self._unmistakable: dict[str, dict[str, None]] = {}  # local id → meta-ids
        self._alike: dict[tuple[str, str], dict[str, str]] = {}  # service and folded path → local path → meta-id
        self._above: Counter[tuple[str, str]] = Counter()  # service and path → how many copies are below
        self._directly_above: Counter[tuple[str, str]] = Counter()
        for copy in copies:
            self.add(copy)

    def __len__(self) -> int:
        return len(self.copies)

    def has_service(self, service: str) -> bool:
        return service in self._services

    # -- changing ------------------------------------------------------------------------------------------

    def add(self, copy: Copy) -> None:
        """Add a copy. Another copy at the same path is dropped: the service has reused an id."""
        self.drop(copy.meta_id)
        if before := self.whose_place(copy):
            self.drop(before)
        place = self._place(copy)
        self.copies[copy.meta_id] = copy
        self._services[copy.service] = self._services.get(copy.service, 0) + 1
        self._places[copy.meta_id], self._paths[place] = place, copy.meta_id
        if (plain := folded(place[1])) != place[1]:
            self._alike.setdefault((copy.service, plain), {})[place[1]] = copy.meta_id
        self._above.update(_above(place))
        self._directly_above[copy.service, collection_of(place[1])] += 1
        if not copy.is_named:
            collection = (copy.service, collection_of(place[1]))
            self._collections.setdefault(collection, {})[copy.local_id] = copy.meta_id
            if is_unmistakable(copy.local_id):
                self._unmistakable.setdefault(copy.local_id, {})[copy.meta_id] = None

    def whose_place(self, copy: Copy) -> str | None:
        """The other replicant at the local path of a copy."""
        found = self._paths.get(self._place(copy))
        return None if found == copy.meta_id else found

    def drop(self, meta_id: str) -> None:
        copy = self.copies.pop(meta_id, None)
        if copy is None:
            return
        place = self._places.pop(meta_id)
        self._paths.pop(place, None)
        _take_out(self._alike, (copy.service, folded(place[1])), place[1])
        for above in _above(place):
            _count_down(self._above, above)
        _count_down(self._directly_above, (copy.service, collection_of(place[1])))
        self._services[copy.service] -= 1
        if not self._services[copy.service]:
            del self._services[copy.service]
        _take_out(self._collections, (copy.service, collection_of(place[1])), copy.local_id)
        _take_out(self._unmistakable, copy.local_id, meta_id)

    # -- looking up ----------------------------------------------------------------------------------------

    def local_of(self, meta_id: str) -> Local | None:
        copy = self.copies.get(meta_id)
        return Local(copy.local_id, copy.is_number) if copy else None

    def at(self, service: str, path: str) -> Copy | None:
        """The copy that a local path leads to, itself or to something below it."""
        for prefix in prefixes(canonical(path)):
            if meta_id := self._paths.get((service, prefix)):
                return self.copies[meta_id]
        return None

    def is_at(self, service: str, path: str) -> bool:
        """Whether a copy is at a local path."""
        return self.whose_path(service, path) is not None

    def whose_path(self, service: str, path: str) -> str | None:
        """The replicant whose copy is at a local path."""
        return self._paths.get((service, trimmed(canonical(path))))

    def alike(self, service: str, path: str) -> str:
        """Another replicant whose local path a service may take for this one, or for one above it; empty if there is
        none."""
        own = trimmed(canonical(path))
        for prefix in prefixes(folded(own)):
            found = {prefix: self._paths.get((service, prefix)), **self._alike.get((service, prefix), {})}
            others = [one for place, one in found.items() if one and not f"{own}/".startswith(f"{place}/")]
            if others:
                return others[0]
        return ""

    def has_below(self, service: str, path: str) -> bool:
        """Whether there are copies below a local path."""
        place = trimmed(canonical(path))
        return self.has_service(service) if place == "/" else (service, place) in self._above

    def is_collection(self, service: str, path: str) -> bool:
        """Whether a path is that of a collection that contains copies. Where clients choose the names, only a slash at
        the end shows that a path is a collection."""
        place = service, trimmed(canonical(path))
        return place in self._collections or (path.endswith("/") and place in self._directly_above)

    def below(self, meta_id: str) -> list[str]:
        """The copies below a copy."""
        return self.below_path(*self._places[meta_id])

    def below_path(self, service: str, path: str) -> list[str]:
        """The copies below a local path. Looks at all copies of the site, if there are any."""
        if not self.has_below(service, path):
            return []
        places, start = self._places.items(), f"{trimmed(canonical(path)).rstrip('/')}/"
        return [one for one, (owner, found) in places if owner == service and found.startswith(start)]

    def in_collection(self, service: str, collection: str, local_id: str) -> str | None:
        return self._collections.get((service, collection), {}).get(local_id)

    def has_collection(self, service: str, collection: str) -> bool:
        """Whether copies are in a collection whose items the service names."""
        return (service, collection) in self._collections

    def anywhere(self, local_id: str) -> str | None:
        """The meta-id of an unmistakable local id, unless two replicants have it."""
        found = self._unmistakable.get(local_id, {})
        return next(iter(found)) if len(found) == 1 else None

    def path_with_meta_ids(self, service: str, path: str, *, by_place: bool = True) -> str:
        """A local path, or one from somewhere above the service's root, with meta-ids in it. Without
        `by_place` only for ids that are known wherever they stand."""
        segments = path.split("/")
        if len(segments) > MAX_SEGMENTS:
            return path
        for place, segment in enumerate(segments):
            here = self._ending_at(service, segments, place) if by_place else None
            meta_id = here or self.anywhere(unquote(segment))
            if meta_id and not self.copies[meta_id].is_named:
                segments[place] = meta_id
        return "/".join(segments)

    def _ending_at(self, service: str, segments: list[str], place: int) -> str | None:
        """The copy whose path ends at a segment; `segments` before it may hold meta-ids already."""
        for start in range(place):
            path = "/" + "/".join(segments[start + 1 : place + 1])
            try:
                local = text_to_local(path, self.local_of, Form.URL) if META_ID.search(path) else path
            except NoCopyError:
                continue
            if meta_id := self._paths.get((service, canonical(local))):
                return meta_id
        return None

    def _place(self, copy: Copy) -> tuple[str, str]:
        item = copy.item if copy.is_named else filled(copy.item, copy.local_id)
        try:
            return copy.service, trimmed(canonical(text_to_local(item, self.local_of, Form.URL)))
        except NoCopyError:  # what it is part of is gone
            return copy.service, trimmed(canonical(item))


def _above(place: tuple[str, str]) -> list[tuple[str, str]]:
    service, path = place
    return [(service, prefix) for prefix in prefixes(collection_of(path))]


def _count_down(counts: Counter[K], key: K) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]


def _take_out(table: dict[K, dict[str, V]], key: K, inner: str) -> None:
    found = table.get(key)
    if found is not None:
        found.pop(inner, None)
        if not found:
            del table[key]


_SCHEMA = """
CREATE TABLE IF NOT EXISTS copies (
  meta_id TEXT PRIMARY KEY, service TEXT NOT NULL, item TEXT NOT NULL, local_id TEXT NOT NULL,
  is_number INTEGER NOT NULL, is_named INTEGER NOT NULL, client TEXT NOT NULL, is_away INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS approvals (meta_id TEXT PRIMARY KEY, op TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tries (meta_id TEXT PRIMARY KEY, op TEXT NOT NULL) WITHOUT ROWID;
"""
_PUT = "INSERT OR REPLACE INTO copies VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM copies WHERE meta_id = ?"
_APPROVE = "INSERT OR REPLACE INTO approvals VALUES (?, ?)"
_TRY = "INSERT OR REPLACE INTO tries VALUES (?, ?)"
_NO_TRY = "DELETE FROM tries WHERE meta_id = ?"
_NO_APPROVAL = "DELETE FROM approvals WHERE meta_id = ?"
_FORGET_APPROVALS = "DELETE FROM approvals WHERE rowid <= (SELECT max(rowid) FROM approvals) - ?"
_MAX_APPROVALS = 10_000
_REST_S = 5.0  # without writes, after which the file gives space back


_Rows = tuple[list[tuple[Copy, bool]], list[tuple[str, str]], list[tuple[str, str]]]


class Copies:
    """Belongs to one event loop; the file is written by a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.index = Index()
        self.away: dict[str, Copy] = {}
        # Of each resource, the last create or delete of a client that the service here has accepted. Its credentials
        # are gone after a crash; an operation that was accepted before needs none.
        self.approvals: BoundedMap[str, str] = BoundedMap(_MAX_APPROVALS)
        # Of each resource, the operation that was sent to the service here last, and whose response may have been lost:
        # only creations, and requests that have another effect, or none, when they are sent again.
        self._tries: dict[str, str] = {}
        self._path = path
        self._thread = ThreadPoolExecutor(1, "copies")
        self._connection: sqlite3.Connection | None = None
        self._shrink_timer: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        self._take(*await asyncio.get_running_loop().run_in_executor(self._thread, self._open))

    def _take(
        self, rows: list[tuple[Copy, bool]], approvals: list[tuple[str, str]], tries: list[tuple[str, str]]
    ) -> None:
        self.approvals.update(approvals)
        self._tries.update(tries)
        here = (copy for copy, is_away in rows if not is_away)
        self.index = Index(sorted(here, key=lambda copy: copy.item.count("/")))  # wholes before parts
        self.away = {copy.meta_id: copy for copy, is_away in rows if is_away}

    async def bind(self, copy: Copy, approved: str = "") -> None:
        """Remember a copy; durable when this returns. Doing it again changes nothing. `approved` is the operation, if
        the service accepted it with the credentials of its client."""
        if self.index.copies.get(copy.meta_id) == copy and not approved:
            return
        taken = self.index.whose_place(copy)
        dropped = [(_DROP, (taken,))] if taken else []
        known = [(_NO_TRY, (copy.meta_id,))] if self._tries.pop(copy.meta_id, None) else []
        await self._write([(_PUT, _row(copy)), *dropped, *known, *self._approve(copy.meta_id, approved)])
        self.index.add(copy)
        self.away.pop(copy.meta_id, None)

    async def unbind(self, meta_id: str, approved: str = "") -> None:
        """The copy is gone, and with it what the service had below it. `approved` as above."""
        if meta_id in self.index.copies:
            gone = [meta_id, *self.index.below(meta_id)]
            for one in gone:
                self.index.drop(one)
            known = [(_NO_TRY, (one,)) for one in gone if self._tries.pop(one, None)]
            await self._write([*((_DROP, (one,)) for one in gone), *known, *self._approve(meta_id, approved)])
        else:
            await self.forget_try(meta_id)

    def _approve(self, meta_id: str, op: str) -> list[tuple[str, tuple[object, ...]]]:
        if not op:
            return []
        self.approvals[meta_id] = op
        return [(_APPROVE, (meta_id, op)), (_FORGET_APPROVALS, (_MAX_APPROVALS,))]

    def has_tried(self, meta_id: str, op: str) -> bool:
        """Whether an operation was sent to the service before, and nobody knows what became of it."""
        return self._tries.get(meta_id) == op

    def may_have_created(self, meta_id: str) -> bool:
        """Of a resource without a copy: whether the service may have it all the same."""
        return meta_id in self._tries

    async def note_try(self, meta_id: str, op: str) -> None:
        """An operation is about to be sent; durable when this returns."""
        if not self.has_tried(meta_id, op):
            self._tries[meta_id] = op
            await self._write([(_TRY, (meta_id, op))])

    async def forget_try(self, meta_id: str) -> None:
        """The response is known."""
        if self._tries.pop(meta_id, None):
            await self._write([(_NO_TRY, (meta_id,))])

    async def send_away(self, meta_id: str) -> None:
        """The resource has left this site."""
        if copy := self.index.copies.get(meta_id):
            await self._write([(_PUT, _row(copy, is_away=True))])
            self.index.drop(meta_id)
            self.away[meta_id] = copy

    async def welcome(self, meta_id: str) -> None:
        """The resource is at this site, perhaps again."""
        if copy := self.away.get(meta_id):
            await self.bind(copy)

    async def forget(self, meta_ids: Iterable[str]) -> None:
        """Nothing is left of these resources, so nothing refers to them any more; durable when this returns."""
        known = [
            one
            for one in meta_ids
            if one in self.index.copies or one in self.away or one in self._tries or one in self.approvals
        ]
        for one in known:
            self.index.drop(one)
            for kept in (self.away, self._tries, self.approvals):
                kept.pop(one, None)
        if known:
            await self._write([(statement, (one,)) for one in known for statement in (_DROP, _NO_TRY, _NO_APPROVAL)])

    async def close(self) -> None:
        if self._shrink_timer:
            self._shrink_timer.cancel()
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _write(self, rows: list[tuple[str, tuple[object, ...]]]) -> None:
        loop = asyncio.get_running_loop()
        if self._shrink_timer:
            self._shrink_timer.cancel()
        self._shrink_timer = loop.call_later(_REST_S, self._thread.submit, self._shrink)
        await loop.run_in_executor(self._thread, self._commit, rows)

    def _open(self) -> _Rows:
        with translate_errors(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            create_file(self._path)
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            space.prepare(self._connection)
            self._connection.execute("PRAGMA journal_mode = WAL")
            # A copy must survive a power failure: no other site knows its local id.
            self._connection.execute("PRAGMA synchronous = FULL")
            return self._read(self._connection)

    @staticmethod
    def _read(connection: sqlite3.Connection) -> _Rows:
        connection.executescript(_SCHEMA)
        found = connection.execute("SELECT * FROM copies").fetchall()
        approvals = connection.execute("SELECT meta_id, op FROM approvals ORDER BY rowid").fetchall()
        tries = connection.execute("SELECT meta_id, op FROM tries").fetchall()
        copies = [(Copy(a, b, c, d, bool(e), bool(f), g), bool(h)) for a, b, c, d, e, f, g, h in found]
        return copies, approvals, tries

    def _commit(self, rows: list[tuple[str, tuple[object, ...]]]) -> None:
        with translate_errors(self._path):
            if self._connection is None:
                raise sqlite3.ProgrammingError("it is closed")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, values in rows:
                    self._connection.execute(statement, values)
            except BaseException:
                self._connection.execute("ROLLBACK")
                raise
            self._connection.execute("COMMIT")

    def _shrink(self) -> None:
        if self._connection is not None:
            while space.shrink(self._connection, at_rest=True):
                pass
            space.empty_log(self._connection, self._path)

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _row(copy: Copy, *, is_away: bool = False) -> tuple[object, ...]:
    return (copy.meta_id, copy.service, copy.item, copy.local_id, copy.is_number, copy.is_named, copy.client, is_away)
