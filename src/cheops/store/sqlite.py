"""The documents of a site in one SQLite file.

Durable: a write-ahead log, synced at every commit, so what was committed survives kill -9 and power loss.
One connection writes and a second one reads: a follower of the feed and a commit do not wait for each
other. One process at a time has the file (see lock.py), which must be on a local disk.

Bounded: SQLite folds the log into the file every 1000 pages; pages that forgetting has set free are used
again, and given back to the disk a few at a time when a good part of the file is free.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

from cheops.engine.documents import Document, Key
from cheops.engine.events import Recovered, Save
from cheops.store.base import Change, recovered_from
from cheops.store.codec import decode, decode_plain, encode_plain, id_of, key_of_id
from cheops.store.connection import make_file, open_reader, open_writer, told_plainly, transaction
from cheops.store.errors import CodecError, StoreError
from cheops.store.ids import ascii_lower, resource_of
from cheops.store.lock import FileLock
from cheops.store.schema import EVERYBODY, EVERYTHING
from cheops.store.writer import Writer
from cheops.store.writes import AddSignatures, writes_of

_TIDY_EVERY = 256  # commits
_TIDY_PAGES = 512  # at a time, so that no commit waits long
_TIDY_FROM_PAGES = 1_024  # less is not worth it

_ALL_CHANGES = """
SELECT feed.seq, (SELECT id FROM documents WHERE doc = feed.doc)
FROM (SELECT seq, doc FROM feeds WHERE site = ? AND seq > ? ORDER BY seq LIMIT ?) AS feed ORDER BY feed.seq
"""
_CHANGES_OF_SITE = """
SELECT feed.seq, (SELECT id FROM documents WHERE doc = feed.doc)
FROM (SELECT seq, doc FROM feeds WHERE site = (SELECT site FROM sites WHERE name = ?) AND seq > ?
      UNION ALL SELECT seq, doc FROM feeds WHERE site = ? AND seq > ? ORDER BY seq LIMIT ?) AS feed
ORDER BY feed.seq
"""
# From one resource to the next in the index, not through all their documents.
_RESOURCES = """
WITH RECURSIVE found (resource) AS (
    SELECT min(resource) FROM documents WHERE resource > ?
    UNION ALL SELECT (SELECT min(resource) FROM documents WHERE resource > found.resource) FROM found
    WHERE found.resource IS NOT NULL)
SELECT resource FROM found WHERE resource IS NOT NULL LIMIT ?
"""

_SEARCH = _RESOURCES.replace(" LIMIT", " AND (? = '' OR instr(lower(resource), ?)) LIMIT")
_SEARCH_AT_SITE = """
SELECT resource FROM involved WHERE site = (SELECT site FROM sites WHERE name = ?) AND resource > ?
AND (? = '' OR instr(lower(resource), ?)) ORDER BY resource LIMIT ?
"""
_SHARES = "SELECT name, count(*) FROM involved JOIN sites USING (site) GROUP BY site"


class SQLiteStore:
    """See `base.Store`. `site`, if given, is noted in a new file; with an existing one it must agree."""

    def __init__(
        self, path: str | PathLike[str], site: str | None = None, *, busy_timeout_s: float = 5.0
    ) -> None:
        self.path = Path(path).absolute()
        self._write_lock, self._read_lock = Lock(), Lock()
        self._commits = 0
        self.add_signatures: AddSignatures | None = None
        with ExitStack() as stack, told_plainly(self.path):
            lock = FileLock(self.path)
            stack.callback(lock.release)
            make_file(self.path)
            self._connection = open_writer(self.path, busy_timeout_s)
            stack.callback(self._connection.close)  # after the reader, so that it folds the log in
            self._reader = open_reader(self.path, busy_timeout_s)
            stack.callback(self._reader.close)
            self._writer = Writer(self._connection)
            self._check_site(site)
            self.incarnation = str(self._meta("incarnation"))
            self._resources: ExitStack | None = stack.pop_all()

    def _check_site(self, site: str | None) -> None:
        kept = self._meta("site")
        if site is not None and kept is None:
            with transaction(self._connection):
                self._connection.execute("INSERT INTO meta VALUES ('site', ?)", (site,))
        elif site is not None and site != kept:
            raise StoreError(
                f"{self.path} is the store of site '{kept}', not of '{site}':"
                " give each site a file of its own"
            )

    def _meta(self, name: str) -> object:
        row = self._connection.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
        return row and row[0]

    # -- writing ---------------------------------------------------------------------------------

    def commit(self, saves: Sequence[Save]) -> int:
        writes = writes_of(saves, self.add_signatures)
        with self._write_lock, told_plainly(self.path):
            self._check_open()
            self._writer.commit(writes)
            self._commits += 1
            if self._commits % _TIDY_EVERY == 0:
                self._tidy()
            return self._writer.last_seq

    def _tidy(self) -> None:
        """Give some free pages back. What was committed stands, so if this fails it is tried again later."""
        with suppress(sqlite3.Error):
            free, pages = (self._pragma(name) for name in ("freelist_count", "page_count"))
            if free > max(_TIDY_FROM_PAGES, pages // 4):
                # Page by page, and `execute` would stop after the first: it gives no rows.
                self._connection.executescript(f"PRAGMA incremental_vacuum({_TIDY_PAGES})")

    def _pragma(self, name: str) -> int:
        (number,) = self._connection.execute(f"PRAGMA {name}").fetchone()
        return int(number)

    # -- reading ---------------------------------------------------------------------------------

    def load(self, resource: str) -> tuple[Document, ...]:
        rows = self._rows("SELECT id, body FROM documents WHERE resource = ?", resource)
        return tuple(self._decoded(decode, id_, body) for id_, body in rows)

    def recovered(self) -> Recovered:
        unsynced = self._rows("SELECT resource FROM documents WHERE unsynced ORDER BY resource")
        return recovered_from(self.load(""), [resource for (resource,) in unsynced])

    def involving(self, site: str) -> tuple[str, ...]:
        rows = self._rows(
            "SELECT resource FROM involved WHERE site = (SELECT site FROM sites WHERE name = ?)"
            " ORDER BY resource",
            site,
        )
        return tuple(resource for (resource,) in rows)

    def resources(self, after: str = "", limit: int = 1000) -> tuple[str, ...]:
        return tuple(resource for (resource,) in self._rows(_RESOURCES, after, limit))

    def search(
        self, text: str, site: str | None = None, after: str = "", limit: int = 1000
    ) -> tuple[str, ...]:
        text = ascii_lower(text)
        if site is None:
            rows = self._rows(_SEARCH, after, text, text, limit)
        else:
            rows = self._rows(_SEARCH_AT_SITE, site, after, text, text, limit)
        return tuple(resource for (resource,) in rows)

    def shares(self) -> dict[str, int]:
        return dict(self._rows(_SHARES))

    def read(self, keys: Iterable[Key]) -> dict[Key, Document]:
        found: dict[Key, Document] = {}
        for key in keys:
            id_ = id_of(key)
            statement = "SELECT body FROM documents WHERE resource = ? AND id = ?"
            for (body,) in self._rows(statement, resource_of(key), id_):
                found[key] = self._decoded(decode, id_, body)
        return found

    def last_seq(self) -> int:
        self._check_open()
        return self._writer.last_seq

    def changes(self, since: int, limit: int, site: str | None = None) -> tuple[Change, ...]:
        if site is None:
            rows = self._rows(_ALL_CHANGES, EVERYTHING, since, limit)
        else:
            rows = self._rows(_CHANGES_OF_SITE, site, since, EVERYBODY, since, limit)
        return tuple(Change(seq, key_of_id(id_)) for seq, id_ in rows)

    # -- notes -----------------------------------------------------------------------------------

    def local(self, name: str) -> dict[str, Any] | None:
        rows = self._rows("SELECT body FROM notes WHERE name = ?", name)
        return self._decoded(decode_plain, f"note {name}", rows[0][0]) if rows else None

    def put_local(self, name: str, note: dict[str, Any] | None) -> None:
        body = None if note is None else encode_plain(note)
        with self._write_lock, told_plainly(self.path):
            self._check_open()
            with transaction(self._connection):
                self._connection.execute("DELETE FROM notes WHERE name = ?", (name,))
                if body is not None:
                    self._connection.execute("INSERT INTO notes VALUES (?, ?)", (name, body))

    # -- the file --------------------------------------------------------------------------------

    def close(self) -> None:
        with self._write_lock, self._read_lock, told_plainly(self.path):
            resources, self._resources = self._resources, None
            if resources is not None:
                resources.close()

    def _rows(self, statement: str, *values: object) -> list[Any]:
        with self._read_lock, told_plainly(self.path):
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
