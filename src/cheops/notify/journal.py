"""The journal of a site: its events in order, and how far each target has received them.

One SQLite file beside the store. The store can be ahead of it, never the other way round; how far it has
followed the store's feed (`followed`) is saved in the same transaction as the events, so after a crash it
continues there and nothing is reported twice or left out.

A commit is not synced each time: what a power cut takes from the end is followed again, because the store
still has it. Where the store is about to forget something, `sync` comes first. Numbers of events skip some at
each start, so that a number that a power cut took is not given to another event.

Bounded: the last KEPT events are there for readers of the feed, and more only while a target has not received
them, up to MOST_KEPT. Beyond that the oldest are deleted, and the target is notified that they are. The newest
events are also in memory (`EventBuffer`), filled in whichever thread writes and read in the event loop.
"""

import secrets
import sqlite3
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import msgspec

from cheops.notify.event import Event, decoded, encoded
from cheops.store import space
from cheops.store.database import create_file, transaction, translate_errors
from cheops.store.interface import StoreError


class EventRange(NamedTuple):
    """Events in their order: all that there are up to the number `end`."""

    events: tuple[Event, ...]
    end: int
    is_whole: bool = True  # False: some of the requested events are deleted


class EventBuffer:
    """Every event after a number that moves on. May be used from any thread."""

    def __init__(self, end: int, kept: int, most_bytes: int) -> None:
        self._kept, self._most_bytes = kept, most_bytes
        self._sizes: deque[int] = deque()  # of the events, as they are in the journal
        self._bytes = 0
        self._lock = Lock()
        self._start = self._end = end
        self._events: deque[Event] = deque()
        self._by_resource: dict[str, deque[Event]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def end(self) -> int:
        """The number of the newest event."""
        return self._end

    @property
    def bytes(self) -> int:
        """What the events take in the journal; in memory it is a few times as much."""
        return self._bytes

    def add(self, events: Iterable[tuple[Event, int]]) -> None:
        """Events with their numbers, as the journal has them, and their sizes there."""
        with self._lock:
            for event, size in events:
                self._events.append(event)
                self._sizes.append(size)
                self._bytes += size
                self._by_resource.setdefault(event.resource, deque()).append(event)
                self._counts[event.kind, event.status or ""] += 1
                self._end = event.sequence
            while len(self._events) > self._kept or self._bytes > self._most_bytes:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._events.popleft()
        self._bytes -= self._sizes.popleft()
        self._start = oldest.sequence
        own = self._by_resource[oldest.resource]
        own.popleft()
        if not own:
            del self._by_resource[oldest.resource]

    def after(self, seq: int, limit: int, resource: str | None = None) -> EventRange | None:
        """The events after a number, of all resources or of one; None if some are only in the journal."""
        with self._lock:
            if seq < self._start:
                return None
            kept = self._events if resource is None else self._by_resource.get(resource, ())
            # From the end: readers are mostly up to date, so this looks at few events.
            newest_first = list(takewhile(lambda event: event.sequence > seq, reversed(kept)))
            end = self._end
        events = tuple(newest_first[: -limit - 1 : -1])
        return EventRange(events, events[-1].sequence if len(events) == limit else end)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How many events of each kind and status were journalled since the start."""
        with self._lock:
            return dict(self._counts)


APPLICATION_ID = 0x43_48_50_4E  # "CHPN"
VERSION = 1
KEPT = 100_000  # for readers of the feed
MOST_KEPT = 1_000_000  # while a target does not accept them: a gigabyte or so
IN_MEMORY = 2_000  # readers that are up to date never touch the disk
IN_MEMORY_BYTES = 128 * 1024  # as they are in the journal
_SKIPPED = 100_000  # numbers, at a start; more than a power cut can take
_TRIM_EVERY = 1_000  # events

_TABLES = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value NOT NULL) WITHOUT ROWID;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, resource TEXT NOT NULL, body BLOB NOT NULL);
CREATE INDEX events_by_resource ON events (resource, seq);
CREATE TABLE cursors (target TEXT PRIMARY KEY, seq INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE reported_fates (op TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE TABLE notices (resource TEXT, kind TEXT, id TEXT, PRIMARY KEY (resource, kind)) WITHOUT ROWID;
CREATE TABLE unknown_results (op TEXT, site TEXT, PRIMARY KEY (op, site)) WITHOUT ROWID;
CREATE TABLE pending_summaries (
    resource TEXT, seq INTEGER, without_effect INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (resource, seq)) WITHOUT ROWID;
CREATE TABLE results (
    resource TEXT, seq INTEGER, site TEXT, is_final INTEGER NOT NULL, body BLOB NOT NULL,
    PRIMARY KEY (resource, seq, site)) WITHOUT ROWID;
CREATE INDEX final_results ON results (resource, site, seq) WHERE is_final;
"""
# Later than the tables; a journal that is older gets it, too.
_INDEX = "CREATE INDEX IF NOT EXISTS complete_summaries ON pending_summaries (resource, seq) WHERE without_effect = 2"
_AFTER = "SELECT seq, body FROM events WHERE seq > ? ORDER BY seq LIMIT ?"
_AFTER_OF_ONE = "SELECT seq, body FROM events WHERE seq > ? AND resource = ? ORDER BY seq LIMIT ?"


class Journal:
    """Methods block, and may be called from any thread."""

    def __init__(
        self,
        path: Path,
        *,
        kept: int = KEPT,
        most_kept: int = MOST_KEPT,
        in_memory: int = IN_MEMORY,
        in_memory_bytes: int = IN_MEMORY_BYTES,
    ) -> None:
        self.path = path
        self.kept, self._most_kept = kept, most_kept
        self._lock = Lock()
        self._is_open = False
        with translate_errors(path):
            create_file(path)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                self._prepare()
            except BaseException:
                self._db.close()
                raise
        self._is_open = True
        self._unsynced = True
        self._since_trim = 0
        self._fresh: list[tuple[Event, int]] = []  # of the transaction under way, and their sizes
        with self._using() as db:
            self.token = str(_meta(db, "token"))
            last = _one(db, "SELECT coalesce(max(seq), 0) FROM sqlite_sequence")
        self.tail = EventBuffer(last, in_memory, in_memory_bytes)

    def _prepare(self) -> None:
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (application,) = self._db.execute("PRAGMA application_id").fetchone()
        is_empty = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone() == (0,)
        if not is_empty and (application, version) != (APPLICATION_ID, VERSION):
            raise StoreError(
                f"{self.path} is not a journal of this version of Cheops: put it aside, and start again; "
                "a new one begins with what happens from then on"
            )
        space.prepare(self._db)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")  # no sync per commit; see `sync`
        with transaction(self._db):
            if is_empty:
                self._make_tables()
            self._db.execute(_INDEX)
            self._db.execute("UPDATE sqlite_sequence SET seq = seq + ? WHERE name = 'events'", (_SKIPPED,))

    def _make_tables(self) -> None:
        for statement in _TABLES.split(";"):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._db.execute("INSERT INTO meta VALUES ('token', ?)", (secrets.token_hex(3),))

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            self._db.close()

    # -- writing ---------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction, for the modules that keep their tables here."""
        with self._using() as db:
            self._unsynced, self._fresh = True, []
            with transaction(db):
                yield db
            # After the commit: readers must not see events that are rolled back.
            self.tail.add(self._fresh)

    def append(self, events: Iterable[Event]) -> None:
        with self.writing() as db:
            self.append_within(db, events)

    def append_within(self, db: sqlite3.Connection, events: Iterable[Event]) -> None:
        """Add events within a transaction. The caller makes sure that each is new."""
        first = self.last + len(self._fresh) + 1
        numbered = list(enumerate(events, first))
        rows = [(seq, event.resource, encoded(event)) for seq, event in numbered]
        db.executemany("INSERT INTO events VALUES (?, ?, ?)", rows)
        self._fresh += [(_numbered(event, seq), len(row[2])) for (seq, event), row in zip(numbered, rows, strict=True)]
        self._since_trim += len(rows)
        if self._since_trim >= _TRIM_EVERY:
            self._since_trim = 0
            self._trim(db)

    def sync(self) -> None:
        """Make sure that a power cut takes nothing of what was written so far."""
        with self._using() as db:
            if not self._unsynced:
                return
            # In WAL mode a commit with FULL syncs the log, and with it all earlier commits. It must write something.
            db.execute("PRAGMA synchronous = FULL")
            try:
                with transaction(db):
                    put_meta(db, "synced", _one(db, "SELECT coalesce(max(seq), 0) FROM events"))
            finally:
                db.execute("PRAGMA synchronous = NORMAL")
            self._unsynced = False

    def shrink(self) -> bool:
        """Give some free space back to the file system; gives whether there is more. For a site at rest."""
        with self._using() as db:
            is_more = space.shrink(db, at_rest=True)
            if not is_more:
                space.empty_log(db, self.path)
            return is_more

    def _trim(self, db: sqlite3.Connection) -> None:
        last = _one(db, "SELECT coalesce(max(seq), 0) FROM events")
        delivered = _one(db, "SELECT coalesce(min(seq), ?) FROM cursors", last)
        keep_from = _one(
            db, "SELECT coalesce((SELECT seq FROM events ORDER BY seq DESC LIMIT 1 OFFSET ?), 0)", self.kept
        )
        most = _one(
            db,
            "SELECT coalesce((SELECT seq FROM events ORDER BY seq DESC LIMIT 1 OFFSET ?), 0)",
            self._most_kept,
        )
        # What a target still needs is kept beyond `kept`, but nothing beyond `most_kept`.
        up_to = max(min(delivered, keep_from), most)
        if db.execute("DELETE FROM events WHERE seq <= ?", (up_to,)).rowcount:
            put_meta(db, "trimmed", up_to)

    # -- reading ---------------------------------------------------------------------------------------------

    def after(self, seq: int, limit: int, resource: str | None = None) -> EventRange:
        """The events after a number, of all resources or of one."""
        with self._using() as db:
            if resource is None:
                rows = db.execute(_AFTER, (seq, limit)).fetchall()
            else:
                rows = db.execute(_AFTER_OF_ONE, (seq, resource, limit)).fetchall()
            end = rows[-1][0] if len(rows) == limit else self.last
            trimmed = int(str(_meta(db, "trimmed") or 0))
        events = tuple(_numbered(decoded(body), number) for number, body in rows)
        return EventRange(events, end, is_whole=seq >= trimmed)

    @property
    def last(self) -> int:
        """The newest number."""
        return self.tail.end

    @property
    def most_kept(self) -> int:
        return self._most_kept

    # -- targets ---------------------------------------------------------------------------------------------

    def keep_targets(self, names: Sequence[str]) -> dict[str, int]:
        """Set the configured targets. A new one gets the events from now on.

        Returns the targets that are gone, and how many events each had not received.
        """
        with self.writing() as db:
            now = [(name, self.last) for name in names]
            db.executemany("INSERT OR IGNORE INTO cursors VALUES (?, ?)", now)
            gone = {name: seq for name, seq in db.execute("SELECT target, seq FROM cursors") if name not in names}
            db.executemany("DELETE FROM cursors WHERE target = ?", [(name,) for name in gone])
            return {name: _one(db, "SELECT count(*) FROM events WHERE seq > ?", seq) for name, seq in gone.items()}

    def count(self, after: int, up_to: int) -> int:
        """How many events are kept between two numbers. By the index, which has no bodies: there may be a million."""
        statement = "SELECT count(*) FROM events INDEXED BY events_by_resource WHERE seq > ? AND seq <= ?"
        with self._using() as db:
            return _one(db, statement, after, up_to) if after < up_to else 0

    def cursor(self, target: str) -> int:
        with self._using() as db:
            return _one(db, "SELECT seq FROM cursors WHERE target = ?", target)

    def move(self, target: str, seq: int) -> None:
        """A target has received everything up to here."""
        with self.writing() as db:
            db.execute("UPDATE cursors SET seq = ? WHERE target = ?", (seq, target))

    # -- notes -----------------------------------------------------------------------------------------------

    def note(self, name: str) -> object:
        with self._using() as db:
            return _meta(db, name)

    def put_note(self, name: str, value: int | str) -> None:
        with self.writing() as db:
            put_meta(db, name, value)

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock, translate_errors(self.path):
            if not self._is_open:
                raise StoreError(f"{self.path}: the journal is closed")
            yield self._db


def put_meta(db: sqlite3.Connection, name: str, value: int | str) -> None:
    db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))


def _meta(db: sqlite3.Connection, name: str) -> object:
    row = db.execute("SELECT value FROM meta WHERE name = ?", (name,)).fetchone()
    return row[0] if row else None


def _numbered(event: Event, seq: int) -> Event:
    return msgspec.structs.replace(event, sequence=seq)


def _one(db: sqlite3.Connection, statement: str, *values: object) -> int:
    (number,) = db.execute(statement, values).fetchone()
    return int(number)
