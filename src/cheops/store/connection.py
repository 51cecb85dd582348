"""Connections to a store's file: how they are opened, and SQLite's errors in words that help."""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cheops.store import schema
from cheops.store.errors import StoreError

_MAX_LOG_BYTES = 16 * 1024 * 1024  # to which the write-ahead log is cut back once a burst is over

_NOT_WRITABLE = "it cannot be written: see that the agent may write the file and its directory"
_IN_USE = "another program holds a lock on it: end that one, and try again"
_BEGIN_AGAIN = "put it aside and start with an empty one: the site gets back what other sites have"
_WORDS = {
    sqlite3.SQLITE_FULL: "there is no space left for it: free some, and try again",
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: see that the agent may write the file and its directory",
    sqlite3.SQLITE_NOTADB: f"it is no store, or it is damaged: if it was one, {_BEGIN_AGAIN}",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: {_BEGIN_AGAIN}",
    sqlite3.SQLITE_IOERR: "the disk failed: look into the system's log",
}


@contextmanager
def told_plainly(path: Path) -> Iterator[None]:
    """Whatever SQLite raises inside becomes a StoreError that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)  # absent where Python's own module complains
        words = _WORDS.get(code & 0xFF) if code is not None else None
        raise StoreError(f"{path}: {words} ({error})" if words else f"{path}: {error}") from error


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of what is inside, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite has rolled back by itself where it could not go on
            connection.execute("ROLLBACK")
        raise


def make_file(path: Path) -> None:
    """An empty file that only this user may read, if there is none: commands may hold secrets."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # or a power loss could take the name, and with it all that was committed
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from None


def open_writer(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = _connected(path, "rw", busy_timeout_s)
    try:
        schema.check(connection, path)  # before anything is changed
        # Takes effect on an empty file only, and only before the next line.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path}: its file system cannot hold a store: put it on a local disk")  # noqa: TRY301 - closes
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {_MAX_LOG_BYTES}")
        for step in schema.lacking(connection):
            with transaction(connection):
                step(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    return _connected(path, "ro", busy_timeout_s)


def _connected(path: Path, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,  # transactions begin and end where we say
        check_same_thread=False,  # one thread at a time: SQLiteStore has a lock for each connection
    )
