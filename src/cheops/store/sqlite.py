"""The documents of a site in one SQLite file.

Durability: a write-ahead log, synced at every commit, so commits survive kill -9 and power loss. One connection writes
and a second one reads: a reader of the feed and a commit do not wait for each other. One process at a time has the file
open (see database.py), which must be on a local disk.

Size: SQLite copies the log into the file every 1000 pages. Pages of forgotten documents are used again, or returned to
the file system: see space.py.

Invariants of the feeds: a shared document has a row in the whole feed, and one in the feed of each site that
its resource involves (a matrix: one for every site). Its number is the same in all of them, unless `late` has
another for a site. No number is given twice, even when the document that had it is forgotten.
"""

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

from msgspec.structs import replace

from cheops.engine.documents import Document, Key
from cheops.engine.events import Recovered, Save
from cheops.engine.health import State
from cheops.store import queries, space
from cheops.store.batch import AddSignatures, Forget, Put, Write, writes_of
from cheops.store.checked_rows import Row, checksum, verified, verified_all
from cheops.store.codec import ascii_lower, decode_plain, encode_plain, id_of, key_of_id, resource_of
from cheops.store.database import (
    EVERY_SITE,
    EVERYTHING,
    FileLock,
    create_file,
    new_incarnation,
    open_reader,
    open_writer,
    transaction,
    translate_errors,
)
from cheops.store.interface import Change, CodecError, DamagedError, StoreError, recovered_from
from cheops.store.space import DELETED, MOST_COUNTED, Space

_MAX_CACHED_RESOURCES = 2_000  # whose sites are cached in memory
_MOST_DAMAGED = 1_000  # resources with damaged documents that are remembered

_UPSERT = (
    "INSERT INTO documents (resource, id, unsynced, state, seq, body, checksum, due_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (resource, id) DO UPDATE SET body = excluded.body, unsynced = excluded.unsynced,"
    " state = excluded.state, seq = coalesce(seq, excluded.seq), checksum = excluded.checksum, due_ms = excluded.due_ms"
)
_UPSERT_SHARED = _UPSERT + " RETURNING doc, seq"
_SOME_OF_RESOURCE = "SELECT id, body, checksum FROM documents WHERE resource = ? AND id > ? ORDER BY id LIMIT ?"
_ROWS_AT_ONCE, _ALL_ROWS = 1_000, -1


class Writer:
    """Writes to the tables. Caches the last number, and the sites of recently written resources."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._sites: dict[str, int] = {}
        self._involved: dict[str, tuple[int, ...]] = {}
        self._feed_rows: list[tuple[int, int, int]] = []  # site, seq, doc: inserted together, in order of the key
        self._must_store_seq = False  # whether the whole feed may not end with the highest number any more
        self._next = self._last = self._stored_last()  # last number assigned, last number committed

    @property
    def last_seq(self) -> int:
        """The last number that is durable."""
        return self._last

    def commit(self, writes: Sequence[Write]) -> None:
        try:
            with transaction(self._connection):
                self._apply(writes)
        except BaseException:
            self._sites.clear()  # the transaction was rolled back, so the caches may be ahead of the file
            self._involved.clear()
            self._next = self._last
            raise
        finally:
            self._feed_rows.clear()
            self._must_store_seq = False
        self._last = self._next

    def _apply(self, writes: Sequence[Write]) -> None:
        own: list[tuple[object, ...]] = []  # not shared: no number to read back, so one executemany
        forgotten: set[str] = set()
        written: set[str] = set()
        for write in writes:
            if isinstance(write, Forget):
                self._forget(write)
                forgotten.add(write.resource)
                continue
            written.add(write.resource)
            if write.sites:
                self._involve(write.sites, write.resource)
            if write.is_shared:
                self._put_shared(write)
            else:
                own.append(_row(write, None))
        self._connection.executemany(_UPSERT, own)
        self._flush()
        self._drop_empty(forgotten - written)
        if self._must_store_seq:
            self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('last_seq', ?)", (self._next,))

    def _put_shared(self, put: Put) -> None:
        ((doc, seq),) = self._connection.execute(_UPSERT_SHARED, _row(put, self._next + 1)).fetchall()
        if seq == self._next + 1:  # otherwise it kept its number, and is in the feeds already
            self._next = seq
            self._feed_rows.append((EVERYTHING, seq, doc))
            for feed in self._sites_of(put.resource) if put.resource else (EVERY_SITE,):
                self._feed_rows.append((feed, seq, doc))

    def _forget(self, forget: Forget) -> None:
        statement = "DELETE FROM documents WHERE resource = ? AND id = ? RETURNING doc, seq"
        for doc, seq in self._all(statement, forget.resource, forget.id):
            if seq is not None:
                self._leave_feeds(doc, seq, forget.resource)

    def _leave_feeds(self, doc: int, seq: int, resource: str) -> None:
        self._flush()  # the rows to delete may be among those that are not inserted yet
        late = self._all("SELECT site, seq FROM late WHERE doc = ?", doc)
        own = [(feed, seq) for feed in (EVERYTHING, EVERY_SITE, *self._sites_of(resource))]
        self._connection.executemany("DELETE FROM feeds WHERE site = ? AND seq = ?", [*own, *late])
        if late:
            self._connection.execute("DELETE FROM late WHERE doc = ?", (doc,))
        self._must_store_seq = True  # this may have been the highest number, which must not be used again

    # -- involved sites ----------------------------------------------------------------------------

    def _involve(self, names: Iterable[str], resource: str) -> None:
        known = self._sites_of(resource)
        new = [site for site in dict.fromkeys(map(self._site, names)) if site not in known]
        if not new:
            return
        self._connection.executemany("INSERT INTO involved VALUES (?, ?)", [(site, resource) for site in new])
        self._involved[resource] = (*known, *new)
        earlier = self._all("SELECT doc FROM documents WHERE resource = ? AND seq IS NOT NULL ORDER BY seq", resource)
        for site in new:
            self._give_new_numbers(site, [doc for (doc,) in earlier])

    def _give_new_numbers(self, site: int, docs: Sequence[int]) -> None:
        """At the end of one site's feed: the site may have read beyond the numbers that the documents have."""
        if docs:
            rows = [(doc, site, seq) for doc, seq in zip(docs, count(self._next + 1), strict=False)]
            self._connection.executemany("INSERT INTO late VALUES (?, ?, ?)", rows)
            self._feed_rows.extend((site, seq, doc) for doc, site, seq in rows)
            self._next += len(docs)
            self._must_store_seq = True

    def _sites_of(self, resource: str) -> tuple[int, ...]:
        if resource not in self._involved:
            # Clearing all is simpler than evicting the oldest, and costs one query per resource that is written again.
            if len(self._involved) >= _MAX_CACHED_RESOURCES:
                self._involved.clear()
            rows = self._all("SELECT site FROM involved WHERE resource = ?", resource)
            self._involved[resource] = tuple(site for (site,) in rows)
        return self._involved[resource]

    def _site(self, name: str) -> int:
        if name not in self._sites:
            self._connection.execute("INSERT OR IGNORE INTO sites (name) VALUES (?)", (name,))
            ((self._sites[name],),) = self._all("SELECT site FROM sites WHERE name = ?", name)
        return self._sites[name]

    def _drop_empty(self, resources: Iterable[str]) -> None:
        """A resource without documents involves no site, and backends should forget it."""
        for resource in resources:
            if resource and not self._all("SELECT 1 FROM documents WHERE resource = ? LIMIT 1", resource):
                self._connection.execute("DELETE FROM involved WHERE resource = ?", (resource,))
                self._connection.execute("INSERT OR IGNORE INTO dropped VALUES (?)", (resource,))
                self._involved.pop(resource, None)

    # -- helpers -----------------------------------------------------------------------------------

    def _flush(self) -> None:
        if self._feed_rows:
            self._connection.executemany("INSERT INTO feeds VALUES (?, ?, ?)", sorted(self._feed_rows))
            self._feed_rows.clear()

    def _stored_last(self) -> int:
        ((stored,),) = self._all("SELECT coalesce(max(value), 0) FROM meta WHERE name = 'last_seq'")
        ((in_feed,),) = self._all("SELECT coalesce(max(seq), 0) FROM feeds WHERE site = ?", EVERYTHING)
        return max(int(stored), int(in_feed))

    def _all(self, statement: str, *values: object) -> list[tuple[int, ...]]:
        return self._connection.execute(statement, values).fetchall()


def _row(put: Put, seq: int | None) -> tuple[object, ...]:
    sum_ = checksum(put.resource, put.id, put.body)
    return put.resource, put.id, put.is_unsynced, put.state, seq, put.body, sum_, put.due_ms


def _frees_space(write: Write) -> bool:
    """Whether a write may free pages. Every run forgets that it has started: one small document, and the next run
    takes its place."""
    return isinstance(write, Forget) and write.key[0] != "started"


_SHRINK_EVERY = 256  # commits
_COUNT_FREE_EVERY = 16  # commits; those that only write use a few free pages each
_DEAD = """
SELECT coalesce(sum(length(body)), 0) FROM documents
WHERE resource IN (SELECT resource FROM documents WHERE state = ? LIMIT ?)
"""


class SQLiteStore:
    """See `interface.Store`. With `site`, a new file gets this owner, and an existing one must have it."""

    def __init__(self, path: str | PathLike[str], site: str | None = None, *, busy_timeout_s: float = 5.0) -> None:
        self.path = Path(path).absolute()
        self._write_lock, self._read_lock = Lock(), Lock()
        self._commits = 0
        self.add_signatures: AddSignatures | None = None
        self._damaged: dict[str, frozenset[str]] = {}
        with ExitStack() as stack, translate_errors(self.path):
            lock = FileLock(self.path)
            stack.callback(lock.release)
            create_file(self.path)
            self._connection = open_writer(self.path, busy_timeout_s)
            # Callbacks run in reverse order: the reader closes first, because the last connection copies the log into
            # the file, and the reader may not write.
            stack.callback(self._connection.close)
            self._reader = open_reader(self.path, busy_timeout_s)
            stack.callback(self._reader.close)
            self._writer = Writer(self._connection)
            self.free_bytes = space.free_bytes(self._connection)
            self._check_site(site)
            self.incarnation = str(self._meta("incarnation"))
            self._resources: ExitStack | None = stack.pop_all()

    def _check_site(self, site: str | None) -> None:
        owner = self._meta("site")
        if site is not None and owner is None:
            with transaction(self._connection):
                self._connection.execute("INSERT INTO meta VALUES ('site', ?)", (site,))
        elif site is not None and site != owner:
            raise StoreError(
                f"{self.path} is the store of site '{owner}', not of '{site}': give each site a file of its own"
            )

    def _meta(self, name: str) -> object:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row and row[0]

    # -- writing ---------------------------------------------------------------------------------

    def begin_incarnation(self) -> None:
        with self._write_lock, translate_errors(self.path):
            self._check_open()
            incarnation = new_incarnation()
            with transaction(self._connection):
                self._connection.execute("UPDATE meta SET value = ? WHERE name = 'incarnation'", (incarnation,))
            self.incarnation = incarnation

    def commit(self, saves: Sequence[Save]) -> int:
        writes = writes_of(saves, self.add_signatures)  # before the lock: other writers need not wait for this
        with self._write_lock, translate_errors(self.path):
            self._check_open()
            self._writer.commit(writes)
            if self._damaged:
                self._note_replaced(writes)
            self._commits += 1
            if self._commits % _SHRINK_EVERY == 0:
                space.shrink(self._connection, at_rest=False)
            if self._commits % _COUNT_FREE_EVERY == 0 or any(map(_frees_space, writes)):
                self.free_bytes = space.free_bytes(self._connection)
            return self._writer.last_seq

    def dropped(self, limit: int = 1000) -> tuple[str, ...]:
        return tuple(resource for (resource,) in self._rows(queries.DROPPED, limit))

    def clear_dropped(self, resources: Iterable[str]) -> None:
        with self._write_lock, translate_errors(self.path):
            self._check_open()
            with transaction(self._connection):
                statement = "DELETE FROM dropped WHERE resource = ?"
                self._connection.executemany(statement, [(resource,) for resource in resources])
                self._connection.execute(f"DELETE FROM dropped WHERE {queries.IS_BACK}")  # noqa: S608 - our own  # nosec B608

    # -- reading ---------------------------------------------------------------------------------

    @property
    def damaged(self) -> Mapping[str, frozenset[str]]:
        return dict(self._damaged)

    def load(self, resource: str) -> tuple[Document, ...]:
        rows = self._rows(_SOME_OF_RESOURCE, resource, "", _ROWS_AT_ONCE)
        if len(rows) == _ROWS_AT_ONCE:  # very many at once would take more memory than the documents
            before = self._version()
            documents, damaged = verified_all(resource, self._rows_in_parts(resource))
            if self._version() == before:
                return self._undamaged(resource, documents, damaged)
            # Somebody else has committed between two of the reads. One read is consistent.
            rows = self._rows(_SOME_OF_RESOURCE, resource, "", _ALL_ROWS)
        return self._undamaged(resource, *verified_all(resource, rows))

    def _rows_in_parts(self, resource: str) -> Iterator[Row]:
        after = ""
        while rows := self._rows(_SOME_OF_RESOURCE, resource, after, _ROWS_AT_ONCE):
            yield from rows
            after = rows[-1][0]

    def _undamaged(self, resource: str, documents: list[Document], damaged: list[str]) -> tuple[Document, ...]:
        if damaged:
            self._note_damaged(resource, damaged)
            raise DamagedError(self.path, resource, damaged)
        return tuple(documents)

    def _version(self) -> int:
        """Another number after each commit."""
        return int(self._rows("PRAGMA data_version")[0][0])

    def _note_damaged(self, resource: str, ids: Iterable[str]) -> None:
        if len(self._damaged) < _MOST_DAMAGED or resource in self._damaged:
            self._damaged[resource] = self._damaged.get(resource, frozenset()).union(ids)

    def _note_replaced(self, writes: Iterable[Write]) -> None:
        for write in writes:
            if (ids := self._damaged.get(write.resource)) and write.id in ids:
                if left := ids - {write.id}:
                    self._damaged[write.resource] = left
                else:
                    del self._damaged[write.resource]

    def rewrite(self, documents: Sequence[Document]) -> None:
        self.commit([Save(tuple(documents))])

    def set_unknown(self, resource: str) -> None:
        statement = "UPDATE documents SET state = ? WHERE resource = ? AND state IS NOT NULL"
        with self._write_lock, translate_errors(self.path):
            self._check_open()
            with transaction(self._connection):
                self._connection.execute(statement, (State.UNKNOWN.value, resource))

    def sites_of(self, resource: str) -> tuple[str, ...]:
        statement = "SELECT name FROM involved JOIN sites USING (site) WHERE resource = ? ORDER BY name"
        return tuple(name for (name,) in self._rows(statement, resource))

    def recovered(self) -> Recovered:
        unsynced = self._rows("SELECT resource FROM documents WHERE unsynced ORDER BY resource")
        return recovered_from(self.load(""), [resource for (resource,) in unsynced])

    def involving(self, site: str) -> tuple[str, ...]:
        rows = self._rows(
            "SELECT resource FROM involved WHERE site = (SELECT site FROM sites WHERE name = ?) ORDER BY resource",
            site,
        )
        return tuple(resource for (resource,) in rows)

    def resources(self, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        return tuple(resource for (resource,) in self._rows(queries.RESOURCES, after, limit))

    def search(self, text: str, site: str | None = None, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        text = ascii_lower(text)
        if site is None:
            rows = self._rows(queries.SEARCH, after, text, text, limit)
        else:
            rows = self._rows(queries.SEARCH_AT_SITE, site, after, text, text, limit)
        return tuple(resource for (resource,) in rows)

    def states(self) -> dict[str, int]:
        return dict(self._rows("SELECT state, resources FROM states WHERE resources > 0"))

    def in_states(
        self, states: Sequence[str], text: str = "", site: str | None = None, after: str = "", limit: int = 1000
    ) -> tuple[str, ...]:
        values = (after, ascii_lower(text), site, limit, *states)
        rows = self._rows(queries.in_states(len(states)), *values) if states else []
        return tuple(sorted(resource for (resource,) in rows)[:limit])

    def due(self, by_ms: int, limit: int = 1000) -> tuple[str, ...]:
        statement = "SELECT resource FROM documents WHERE due_ms <= ? ORDER BY due_ms LIMIT ?"
        return tuple(resource for (resource,) in self._rows(statement, by_ms, limit))

    def shares(self) -> dict[str, int]:
        return dict(self._rows(queries.SHARES))

    def read(self, keys: Iterable[Key]) -> dict[Key, Document]:
        documents: dict[Key, Document] = {}
        for key in keys:
            id_, resource = id_of(key), resource_of(key)
            statement = "SELECT body, checksum FROM documents WHERE resource = ? AND id = ?"
            for body, stored in self._rows(statement, resource, id_):
                if (document := verified(resource, id_, body, stored)) is not None:
                    documents[key] = document
                else:  # its resource reports it, and gets it again, when it is loaded
                    self._note_damaged(resource, (id_,))
        return documents

    def last_seq(self) -> int:
        self._check_open()
        return self._writer.last_seq

    def changes(self, since: int, limit: int, site: str | None = None) -> tuple[Change, ...]:
        if site is None:
            rows = self._rows(queries.ALL_CHANGES, EVERYTHING, since, limit)
        else:
            rows = self._rows(queries.CHANGES_OF_SITE, site, since, EVERY_SITE, since, limit)
        return tuple(Change(seq, key_of_id(id_)) for seq, id_ in rows)

    # -- notes -----------------------------------------------------------------------------------

    def note(self, name: str) -> dict[str, Any] | None:
        rows = self._rows("SELECT body FROM notes WHERE name = ?", name)
        return self._decoded(decode_plain, f"note {name}", rows[0][0]) if rows else None

    def put_note(self, name: str, note: dict[str, Any] | None) -> None:
        body = None if note is None else encode_plain(note)
        with self._write_lock, translate_errors(self.path):
            self._check_open()
            with transaction(self._connection):
                self._connection.execute("DELETE FROM notes WHERE name = ?", (name,))
                if body is not None:
                    self._connection.execute("INSERT INTO notes VALUES (?, ?)", (name, body))

    # -- the file --------------------------------------------------------------------------------

    def space(self, *, is_brief: bool = False) -> Space:
        found = Space(space.file_bytes(self.path), self.free_bytes, space.file_bytes(space.log_of(self.path)))
        if is_brief:
            return found
        ((documents,),) = self._rows("SELECT count(*) FROM (SELECT 1 FROM documents LIMIT ?)", MOST_COUNTED)
        ((dead,),) = self._rows(_DEAD, DELETED, MOST_COUNTED)
        return replace(found, documents=documents, dead_resources=self.states().get(DELETED, 0), dead=dead)

    def shrink(self) -> bool:
        with self._write_lock, translate_errors(self.path):
            self._check_open()
            is_more = space.shrink(self._connection, at_rest=True)
            if not is_more:
                space.empty_log(self._connection, self.path)
            self.free_bytes = space.free_bytes(self._connection)
            return is_more

    def close(self) -> None:
        with self._write_lock, self._read_lock, translate_errors(self.path):
            resources, self._resources = self._resources, None
            if resources is not None:
                resources.close()

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._read_lock, translate_errors(self.path):
            self._check_open()
            return self._reader.execute(statement, values).fetchall()

    def _decoded(self, decoder: Callable[[bytes], Any], id_: str, body: bytes) -> Any:
        try:
            return decoder(body)
        except CodecError as error:
            raise StoreError(f"{self.path}: the document {id_} is damaged: {error}") from error

    def _check_open(self) -> None:
        if self._resources is None:
            raise StoreError(f"{self.path}: the store is closed")
