"""A store's file: how it is locked and opened, and SQLite's errors in words that help.

At most one process has a store open. The kernel releases the lock, however that process ends.
"""

import fcntl
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from cheops.store import schema
from cheops.store.interface import StoreError

_MAX_LOG_BYTES = 16 * 1024 * 1024  # to which the write-ahead log is cut back once a burst is over

_NOT_WRITABLE = "it cannot be written: see that the agent may write the file and its directory"
_IN_USE = "another program holds a lock on it: end that one, and try again"
_BEGIN_AGAIN = "put it aside and start with an empty one: the site gets back what other sites have"
_ADVICE = {
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
def translate_errors(path: Path) -> Iterator[None]:
    """Whatever SQLite raises inside becomes a StoreError that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)  # absent where Python's own module complains
        words = _ADVICE.get(code & 0xFF) if code is not None else None
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
    connection = _connect(path, "rw", busy_timeout_s)
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
    return _connect(path, "ro", busy_timeout_s)


def _connect(path: Path, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,  # transactions begin and end where we say
        check_same_thread=False,  # one thread at a time: SQLiteStore has a lock for each connection
    )


class FileLock:
    """The lock beside a file, held until `release`. The lock file stays: to remove it would be a race."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror} ({self.path})") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._say_who()
        except BlockingIOError:
            who = self._holder()
            os.close(self._descriptor)
            raise StoreError(
                f"{path} is in use by another process{who}; a store serves one agent: stop that one,"
                " or give this one a file of its own"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(f"{path} cannot be locked: {error.strerror} ({self.path})") from None

    def _say_who(self) -> None:
        with suppress(OSError):  # a full disk; the lock holds all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _holder(self) -> str:
        number = os.pread(self._descriptor, 20, 0).strip()
        return f" (number {number.decode()})" if number.isdigit() else ""

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
