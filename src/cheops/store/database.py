"""A store's file: its lock, its connections, its tables, and advice for SQLite's errors.

At most one process has a store open. The kernel releases the lock, however that process ends.

The file has a version (`user_version`), and `application_id` marks it as a store of Cheops. Version n is the result of
the first n migrations. Pending ones run when a store is opened, each in one transaction with its new number. A released
migration never changes: add another one.

    documents  by resource and id; `seq` is the number in the whole feed, of those that are shared; `checksum` shows
               whether a row is as it was written, see cheops.store.sqlite; `due_ms` is when a tombstone may be dropped
    feeds      (site, seq) → document. Site 0 is the whole feed, 1 what goes to every site (matrices)
    late       documents that were shared before a site was involved, with their other number in the site's feed
    involved   which sites a resource has or had on its list
    states     how many resources are in each state, see cheops.engine.health. Triggers on `documents.state`, which only
               ledgers have, keep the numbers
    dropped    resources of which the last document was forgotten, until the backends know; see Store.dropped
    meta       incarnation, created, site; last_seq once the feeds no longer hold the highest number
"""

import fcntl
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from cheops.store import space
from cheops.store.interface import BEGIN_AGAIN, StoreError
from cheops.store.space import pragma

_NOT_WRITABLE = "it cannot be written: check that the agent may write the file and its directory"
_IN_USE = "another program holds a lock on it: stop that program, and try again"
_ADVICE = {
    sqlite3.SQLITE_FULL: "there is no space left for it: free some, and try again",
    sqlite3.SQLITE_BUSY: _IN_USE,
    sqlite3.SQLITE_LOCKED: _IN_USE,
    sqlite3.SQLITE_READONLY: _NOT_WRITABLE,
    sqlite3.SQLITE_PERM: _NOT_WRITABLE,
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened: check that the agent may write the file and its directory",
    sqlite3.SQLITE_NOTADB: f"it is not a store, or it is damaged: if it was one, {BEGIN_AGAIN}",
    sqlite3.SQLITE_CORRUPT: f"it is damaged: {BEGIN_AGAIN}",
    sqlite3.SQLITE_IOERR: "the disk failed: see the system's log",
}


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raise SQLite's errors as StoreErrors, with the path of the file and advice."""
    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", None)  # absent from the errors of Python's own module
        # The low byte is the primary code; the rest refines it.
        advice = _ADVICE.get(code & 0xFF) if code is not None else None
        raise StoreError(f"{path}: {advice} ({error})" if advice else f"{path}: {error}") from error


def new_incarnation() -> str:
    return secrets.token_hex(6)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Commit all statements of the block, or none."""
    # IMMEDIATE takes the write lock now: if another program holds it, this fails here and not halfway.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # after some errors, such as a full disk, SQLite has rolled back by itself
            connection.execute("ROLLBACK")
        raise


def create_file(path: Path) -> None:
    """Create an empty file that only this user may read, if there is none: commands may hold secrets."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            # Otherwise a power loss could lose the name of the file, and with it everything that was committed.
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        raise StoreError(f"{path} cannot be opened: {error.strerror}") from None


def open_writer(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = _connect(path, "rw", busy_timeout_s)
    try:
        _check_version(connection, path)  # first: a file of another program, or a newer version, must not change
        space.prepare(connection)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{path}: its file system cannot hold a store: put it on a local disk")  # noqa: TRY301 - closes
        # NORMAL would sync only at checkpoints: a power loss could undo commits on which the agent has acted.
        connection.execute("PRAGMA synchronous = FULL")
        for step in _pending_migrations(connection):
            with transaction(connection):
                step(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    connection = _connect(path, "ro", busy_timeout_s)
    space.limit_cache(connection)
    return connection


def _connect(path: Path, mode: str, busy_timeout_s: float) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,  # Python would begin transactions on its own
        check_same_thread=False,  # one thread at a time: SQLiteStore has a lock for each connection
    )


class FileLock:
    """A lock on FILE.lock, held until `release`.

    The lock file is never deleted: another process could lock the deleted file while a third one creates a new file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror} ({self.path})") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._write_pid()
        except BlockingIOError:
            holder = self._holder()
            os.close(self._descriptor)
            raise StoreError(
                f"{path} is in use by another process{holder}; a store serves one agent: stop that one,"
                " or give this one a file of its own"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(f"{path} cannot be locked: {error.strerror} ({self.path})") from None

    def _write_pid(self) -> None:
        # For the error message of a second process only: on a full disk, the lock works without it.
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _holder(self) -> str:
        number = os.pread(self._descriptor, 20, 0).strip()
        return f" (pid {number.decode()})" if number.isdigit() else ""

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


# -- tables ----------------------------------------------------------------------------------------------

APPLICATION_ID = 0x43_48_50_53  # "CHPS"
EVERYTHING, EVERY_SITE = 0, 1  # feeds besides those of the sites, whose numbers begin at 2 (see `sites` below)

Migration = Callable[[sqlite3.Connection], None]

_FIRST = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE notes (name TEXT PRIMARY KEY, body BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE documents (
    doc INTEGER PRIMARY KEY, resource TEXT NOT NULL, id TEXT NOT NULL, unsynced INTEGER NOT NULL, seq INTEGER,
    body BLOB NOT NULL);
CREATE UNIQUE INDEX documents_by_id ON documents (resource, id);
CREATE INDEX documents_unsynced ON documents (resource) WHERE unsynced;
CREATE TABLE sites (site INTEGER PRIMARY KEY, name TEXT UNIQUE);
INSERT INTO sites VALUES (1, NULL);
CREATE TABLE involved (site INTEGER, resource TEXT, PRIMARY KEY (site, resource)) WITHOUT ROWID;
CREATE INDEX involved_by_resource ON involved (resource);
CREATE TABLE feeds (site INTEGER, seq INTEGER, doc INTEGER NOT NULL, PRIMARY KEY (site, seq)) WITHOUT ROWID;
CREATE TABLE late (doc INTEGER, site INTEGER, seq INTEGER NOT NULL, PRIMARY KEY (doc, site)) WITHOUT ROWID;
"""


def _first(connection: sqlite3.Connection) -> None:
    for statement in _FIRST.split(";"):  # executescript would commit the transaction
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    facts = {"incarnation": new_incarnation(), "created": datetime.now(UTC).isoformat(timespec="seconds")}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", facts.items())


_ENTER = (
    "INSERT INTO states SELECT new.state, 1 WHERE new.state IS NOT NULL"
    " ON CONFLICT (state) DO UPDATE SET resources = resources + 1;"
)
_LEAVE = "UPDATE states SET resources = resources - 1 WHERE state = old.state;"
_UPDATED = "CREATE TRIGGER state_updated AFTER UPDATE OF state ON documents WHEN old.state IS NOT new.state"
_STATES = (
    "ALTER TABLE documents ADD COLUMN state TEXT",
    "CREATE INDEX documents_by_state ON documents (state, resource) WHERE state IS NOT NULL",
    "CREATE TABLE states (state TEXT PRIMARY KEY, resources INTEGER NOT NULL) WITHOUT ROWID",
    f"CREATE TRIGGER state_inserted AFTER INSERT ON documents WHEN new.state IS NOT NULL BEGIN {_ENTER} END",
    f"CREATE TRIGGER state_deleted AFTER DELETE ON documents WHEN old.state IS NOT NULL BEGIN {_LEAVE} END",
    f"{_UPDATED} BEGIN {_LEAVE} {_ENTER} END",
    # The states of stored resources are not known: with `unsynced`, the site loads all of them once, some at a time.
    "UPDATE documents SET state = 'unknown', unsynced = 1 WHERE id LIKE 'ledger/%'",
)


def _count_states(connection: sqlite3.Connection) -> None:
    for statement in _STATES:
        connection.execute(statement)


def _add_checksums(connection: sqlite3.Connection) -> None:
    """Earlier rows have none, until they are written again: to compute them would rewrite the whole file."""
    connection.execute("ALTER TABLE documents ADD COLUMN checksum INTEGER")


def _add_dropped(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE dropped (resource TEXT PRIMARY KEY) WITHOUT ROWID")


def _add_due(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE documents ADD COLUMN due_ms INTEGER")
    connection.execute("CREATE INDEX documents_due ON documents (due_ms) WHERE due_ms IS NOT NULL")


MIGRATIONS: list[Migration] = [_first, _count_states, _add_checksums, _add_dropped, _add_due]


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Raise StoreError for a file that this agent must not change. Only reads."""
    version = pragma(connection, "user_version")
    is_empty = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
    if not is_empty and pragma(connection, "application_id") != APPLICATION_ID:
        raise StoreError(f"{path} is a database of another program: give the store a file of its own")
    if version > len(MIGRATIONS):
        raise StoreError(
            f"{path} was written by a newer Cheops (version {version} of the file; this one reads"
            f" up to {len(MIGRATIONS)}): upgrade this agent. The file was not changed."
        )


def _pending_migrations(connection: sqlite3.Connection) -> list[Migration]:
    """The steps that bring the file up to date, in order, each for a transaction of its own."""
    version = pragma(connection, "user_version")
    return [_with_version(migrate, number) for number, migrate in enumerate(MIGRATIONS[version:], version + 1)]


def _with_version(migrate: Migration, number: int) -> Migration:
    def step(connection: sqlite3.Connection) -> None:
        migrate(connection)
        connection.execute(f"PRAGMA user_version = {number}")

    return step
