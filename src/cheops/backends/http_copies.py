"""This site's copies of replicants, kept in a small SQLite file beside the store.

Written before the outcome of a create is told to the engine, so that no id that a service gave is ever lost.
Other sites never see it. A copy is *away* while its resource is not at this site: to clients it is an
ordinary resource of the service then, and should the resource come back, it is its copy again.
"""

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cheops.backends.http_index import Copy, Index
from cheops.store.connection import make_file, told_plainly

_SCHEMA = """
CREATE TABLE IF NOT EXISTS copies (
  meta_id TEXT PRIMARY KEY, service TEXT NOT NULL, item TEXT NOT NULL, local_id TEXT NOT NULL,
  is_number INTEGER NOT NULL, is_named INTEGER NOT NULL, is_away INTEGER NOT NULL
) WITHOUT ROWID
"""
_PUT = "INSERT OR REPLACE INTO copies VALUES (?, ?, ?, ?, ?, ?, ?)"
_DROP = "DELETE FROM copies WHERE meta_id = ?"


class Copies:
    """Belongs to one event loop; the file is written by a thread of its own."""

    def __init__(self, path: Path) -> None:
        self.index = Index()
        self.away: dict[str, Copy] = {}
        self._path = path
        self._thread = ThreadPoolExecutor(1, "copies")
        self._connection: sqlite3.Connection | None = None

    async def open(self) -> None:
        rows = await asyncio.get_running_loop().run_in_executor(self._thread, self._open)
        here = (copy for copy, is_away in rows if not is_away)
        self.index = Index(sorted(here, key=lambda copy: copy.item.count("/")))  # wholes before parts
        self.away = {copy.meta_id: copy for copy, is_away in rows if is_away}

    async def bind(self, copy: Copy) -> None:
        """Remember a copy; durable when this returns. Doing it again changes nothing."""
        if self.index.copies.get(copy.meta_id) == copy:
            return
        taken = self.index.whose_place(copy)
        await self._write([(_PUT, _row(copy)), *([(_DROP, (taken,))] if taken else [])])
        self.index.add(copy)
        self.away.pop(copy.meta_id, None)

    async def unbind(self, meta_id: str) -> None:
        """The copy is gone, and with it what the service had below it."""
        if meta_id in self.index.copies:
            gone = [meta_id, *self.index.below(meta_id)]
            for one in gone:
                self.index.drop(one)
            await self._write([(_DROP, (one,)) for one in gone])

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

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)
        self._thread.shutdown()

    async def _write(self, rows: list[tuple[str, tuple[object, ...]]]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._commit, rows)

    def _open(self) -> list[tuple[Copy, bool]]:
        with told_plainly(self._path):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            make_file(self._path)
            self._connection = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(_SCHEMA)
            found = self._connection.execute("SELECT * FROM copies").fetchall()
        return [(Copy(a, b, c, d, bool(e), bool(f)), bool(g)) for a, b, c, d, e, f, g in found]

    def _commit(self, rows: list[tuple[str, tuple[object, ...]]]) -> None:
        with told_plainly(self._path):
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

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _row(copy: Copy, *, is_away: bool = False) -> tuple[object, ...]:
    return (copy.meta_id, copy.service, copy.item, copy.local_id, copy.is_number, copy.is_named, is_away)
