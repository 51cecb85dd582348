"""The reference for everything durable: bare INSERTs into an SQLite file that is synced as a store's is."""

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from bench.place import folder

_ROW_BYTES = 500  # about what a document has


class Bare:
    """A file with one table."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._row = (b"x" * _ROW_BYTES,)

    def commit(self, rows: int) -> None:
        """Insert so many rows, and be sure that they are on the disk."""
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            self._connection.execute("INSERT INTO bare (body) VALUES (?)", self._row)
        self._connection.execute("COMMIT")

    def seconds(self, commits: Iterable[int]) -> float:
        """How long commits of so many rows each take, one after the other."""
        start = time.perf_counter()
        for rows in commits:
            self.commit(rows)
        return time.perf_counter() - start


@contextmanager
def bare() -> Iterator[Bare]:
    with folder() as place, closing(_connected(place / "bare.db")) as connection:
        yield Bare(connection)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, body BLOB)")
    return connection
