"""How much of a disk the SQLite files of a site take, and how they give space back.

A page of a deleted row is free, and is used again. Free pages at the end of a file go back to the file system with
`PRAGMA incremental_vacuum`, which moves others there first, so it costs as much as writing them. So they go in small
steps, between which commits take their turn: every now and then under load, if there are many, and at rest, if there
are some. At rest the write-ahead log is emptied, too: SQLite alone would keep it at its largest size.
"""

import sqlite3
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

# The write-ahead log is truncated to this after a burst; without a limit it would keep its largest size for ever.
MAX_LOG_BYTES = 16 * 1024 * 1024
STEP_PAGES = 128  # half a MiB at a time: a commit waits for some milliseconds
_LOG_BYTES = 256 * 1024  # a smaller log is not worth a sync
# Pages that a connection keeps in memory; the system caches the file, too. SQLite would keep 2,000 KiB of each.
_CACHE_KIB = 512

MOST_COUNTED = 100_000  # documents, and tombstones for their size: more would take long
DELETED = "deleted"  # the state of a resource of which only a tombstone is left, see cheops.engine.health

# Below these, space is kept for what is written next: a file that always shrinks and grows would be written twice.
_AT_REST_PAGES, _AT_REST_SHARE = 64, 32  # 256 KiB, and a 32nd of the file
_BUSY_PAGES, _BUSY_SHARE = 1_024, 4  # 4 MiB, and a quarter of the file


class Space(Struct, frozen=True):
    """The size of a store, in bytes where the name says nothing else."""

    file: int  # with its free pages
    free: int  # in free pages of the file
    log: int  # the write-ahead log
    documents: int = 0  # their number, up to MOST_COUNTED
    dead_resources: int = 0  # deleted ones, of which a tombstone is left until it is forgotten, too
    dead: int = 0  # in documents of those, up to MOST_COUNTED of them

    @property
    def live(self) -> int:
        return self.file - self.free - self.dead


def prepare(connection: sqlite3.Connection) -> None:
    """Call before WAL is set and a table is created: only then a file can give pages back."""
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute(f"PRAGMA journal_size_limit = {MAX_LOG_BYTES}")
    limit_cache(connection)


def limit_cache(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")


def pragma(connection: sqlite3.Connection, name: str) -> int:
    (number,) = connection.execute(f"PRAGMA {name}").fetchone()
    return int(number)


def free_bytes(connection: sqlite3.Connection) -> int:
    return pragma(connection, "freelist_count") * pragma(connection, "page_size")


def shrink(connection: sqlite3.Connection, *, at_rest: bool) -> bool:
    """Give some free pages back, if there are enough; gives whether there are more. A failure is harmless: the pages
    stay free, and are given back later."""
    least, share = (_AT_REST_PAGES, _AT_REST_SHARE) if at_rest else (_BUSY_PAGES, _BUSY_SHARE)
    with suppress(sqlite3.Error):
        free, pages = (pragma(connection, name) for name in ("freelist_count", "page_count"))
        if free > max(least, pages // share):
            # `execute` would stop after the first page: this pragma does one page per step, and gives no rows.
            connection.executescript(f"PRAGMA incremental_vacuum({STEP_PAGES})")
            return pragma(connection, "freelist_count") < free  # a file of an earlier version cannot shrink
    return False


def empty_log(connection: sqlite3.Connection, path: Path) -> None:
    """Copy the write-ahead log into the file, and truncate it. While somebody reads from it, it stays as it is."""
    if file_bytes(log_of(path)) <= _LOG_BYTES:
        return
    timeout_ms = pragma(connection, "busy_timeout")
    with suppress(sqlite3.Error):
        connection.execute("PRAGMA busy_timeout = 0")  # a commit must not wait behind one that waits for a reader
        try:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            connection.execute(f"PRAGMA busy_timeout = {timeout_ms}")


def log_of(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def file_bytes(*paths: Path) -> int:
    """The size of these files together; one that is not there has none."""
    total = 0
    for path in paths:
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def folder_bytes(folder: Path) -> int:
    """The size of all files below a folder."""
    with suppress(FileNotFoundError):
        return file_bytes(*(path for path in folder.rglob("*") if path.is_file()))
    return 0


def database_bytes(paths: Iterable[Path]) -> int:
    """The size of SQLite files, with their logs."""
    return sum(file_bytes(path, log_of(path)) for path in paths)
