"""From the store's feed to the journal: every decided operation and every reply becomes an event, once. A draft, which
is in no feed, becomes one when it is committed.

`JournaledStore` wraps the engine's store. Commits are journalled in the same thread, those of a moment in one
transaction: at once if a commit has a draft, which no feed would show after a crash, and before the store forgets
anything. If the journal cannot be written, the commit fails, or the next one, and is retried as a whole, which is
harmless. What a crash leaves between the two is journalled at the next start.
"""

import sqlite3
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from cheops.bounded import BoundedMap
from cheops.engine.documents import Document, Key, key_of, op_key
from cheops.engine.events import Save
from cheops.log.operation import Operation, OpId, Origin, Reply, Status, Verdict
from cheops.notify.derivation import About, of_operation, of_reply, of_summary, op_text, results_of
from cheops.notify.event import Event, SiteResult, cut
from cheops.notify.journal import Journal, put_meta
from cheops.notify.summaries import PendingSummaries
from cheops.store.codec import id_of, is_shared
from cheops.store.interface import Store, StoreError

_PAGE = 500
_REMEMBERED = 500  # operations whose types are known without reading the store: replies come soon after them
_FORGETTABLE = ("op", "reply", "ledger")
_MOST_WAITING = 100  # commits that are not journalled
# Decided without effect: no other site runs the operation, so its summary is complete at once.
_RUN_NOWHERE_ELSE = {Verdict.VOID: Status.KO, Verdict.SUPERSEDED: Status.SUPERSEDED}


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Commit(NamedTuple):
    """A commit of the store: its documents, the feed's last number after it, and when it was."""

    documents: Sequence[Document]
    last_seq: int
    at_ms: int


class Follower:
    """Keeps the journal up to date with the store. Used in one thread: the one that commits."""

    def __init__(
        self,
        store: Store,
        journal: Journal,
        site: str,
        *,
        with_summaries: bool = False,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.origin = Origin(site, store.incarnation)
        self.summaries = PendingSummaries(journal, self.origin) if with_summaries else None
        self._store = store
        self._journal = journal
        self.now_ms = now_ms
        self._about: BoundedMap[tuple[str, OpId], About] = BoundedMap(_REMEMBERED)
        self._begin()

    def _begin(self) -> None:
        """Prepare a journal that is new, or belongs to another store: it begins with what happens from now on."""
        if self._journal.note("incarnation") != self._store.incarnation:
            with self._journal.writing() as db:
                for table in ("reported_fates", "notices", "unknown_results", "pending_summaries", "results"):
                    db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own names  # nosec B608
                put_meta(db, "incarnation", self._store.incarnation)
                put_meta(db, "followed", self._store.last_seq())
                put_meta(db, "examined", self._store.last_seq())
            if self.summaries:
                self.summaries.resources.clear()
        self._followed = int(str(self._journal.note("followed")))
        with self._journal.writing() as db:
            self._unknown = {(str(op), str(site)) for op, site in db.execute("SELECT op, site FROM unknown_results")}

    @property
    def followed(self) -> int:
        return self._followed

    def follow(self, commits: Iterable[Commit] = ()) -> None:
        """Journal these commits, in one transaction as far as they hold all that is new in the feed; without any, what
        the feed has."""
        new: list[tuple[Document | None, int]] = []
        seq = self._followed
        for commit in commits:
            kept = {key_of(document): document for document in commit.documents if _is_followed(document)}
            shared = {key: document for key, document in kept.items() if is_shared(document)}
            if _are_all_new(shared.values(), commit.last_seq - seq):
                new += [(document, commit.at_ms) for document in kept.values()]
                seq = commit.last_seq
                continue
            drafts = [(document, commit.at_ms) for key, document in kept.items() if key not in shared]
            self._take_all([*new, *drafts], seq)
            self._read_feed(shared, commit.at_ms)
            new, seq = [], self._followed
        self._take_all(new, seq)
        if not commits:
            self._read_feed({}, self.now_ms())

    def _read_feed(self, at_hand: Mapping[Key, Document], at_ms: int) -> None:
        while changes := self._store.changes(self._followed, _PAGE):
            missing = [change.key for change in changes if change.key not in at_hand]
            read = self._store.read(missing) if missing else {}
            new = [(at_hand.get(change.key) or read.get(change.key), at_ms) for change in changes]
            self._take_all(new, changes[-1].seq)

    def _take_all(self, documents: Collection[tuple[Document | None, int]], seq: int) -> None:
        """All or none, up to this number of the feed; each with its time."""
        if not documents:
            return
        unknown = set(self._unknown)
        try:
            with self._journal.writing() as db:
                events = [event for document, at_ms in documents for event in self._events_of(db, document, at_ms)]
                self._journal.append_within(db, events)
                if seq != self._followed:  # drafts have no number
                    put_meta(db, "followed", seq)
        except BaseException:
            self._unknown = unknown  # the transaction is rolled back, so the copy in memory must be, too
            raise
        self._followed = seq

    def forget(self, keys: Iterable[Key]) -> None:
        """Delete what was kept for documents that the store has forgotten. Without its ledger a resource is unknown."""
        keys = tuple(keys)
        gone = {(id_of(key),) for key in keys if key[0] == "op"}
        dropped = {(str(key[1]),) for key in keys if key[0] == "ledger"}
        if not gone and not dropped:
            return
        with self._journal.writing() as db:
            db.executemany("DELETE FROM reported_fates WHERE op = ?", gone)
            db.executemany("DELETE FROM unknown_results WHERE op = ?", gone)
            for table in ("notices", "pending_summaries", "results"):
                db.executemany(f"DELETE FROM {table} WHERE resource = ?", dropped)  # noqa: S608 - our own names  # nosec B608
        if self._unknown:
            self._unknown = {result for result in self._unknown if (result[0],) not in gone}
        if self.summaries:
            self.summaries.resources.difference_update(resource for (resource,) in dropped)

    def resources_since(self, seq: int) -> set[str]:
        """The resources of operations that came after a number of the feed."""
        resources: set[str] = set()
        while changes := self._store.changes(seq, _PAGE):
            resources |= {str(change.key[1]) for change in changes if change.key[0] == "op"}
            seq = changes[-1].seq
        return resources

    # -- one document ----------------------------------------------------------------------------------------

    def _events_of(self, db: sqlite3.Connection, document: Document | None, at_ms: int) -> Iterator[Event]:
        match document:
            case Operation():
                self._remember(document)
                if event := of_operation(document, at_ms):
                    yield event
                if self.summaries and self._owes_summary(document):
                    yield from self._await(db, self.summaries, document, at_ms)
            case Reply():
                was_unknown = self._note_unknown(db, document)
                if event := of_reply(document, self._about_reply(document), at_ms, was_unknown=was_unknown):
                    yield event
                if self.summaries:
                    self.summaries.add_results(db, document.resource, results_of(document))

    def _note_unknown(self, db: sqlite3.Connection, reply: Reply) -> bool:
        """Remember UNKNOWN results. Returns whether this reply resolves one."""
        if reply.op is None or (not self._unknown and reply.status is not Status.UNKNOWN):
            return False
        result = (op_text(reply.resource, reply.op), reply.origin.site)
        if reply.status is Status.UNKNOWN:
            self._unknown.add(result)
            db.execute("INSERT OR IGNORE INTO unknown_results VALUES (?, ?)", result)
            return False
        if result not in self._unknown:
            return False
        self._unknown.discard(result)
        db.execute("DELETE FROM unknown_results WHERE op = ? AND site = ?", result)
        return True

    def _owes_summary(self, op: Operation) -> bool:
        return op.verdict is not None and op.origin.shares_store(self.origin) and not op.is_silent

    def _await(self, db: sqlite3.Connection, awaited: PendingSummaries, op: Operation, at_ms: int) -> Iterator[Event]:
        """A summary is due. For an operation without any effect it is complete: no other site runs it. It comes at
        once, or after those of earlier operations, which this site may have finished as well."""
        summary = of_summary(op, at_ms)
        status = _RUN_NOWHERE_ELSE.get(op.verdict) if op.verdict else None
        if status is not None:
            summary = _summary_of_origin(op, summary, SiteResult(op.origin.site, status, cut(op.why)))
        if status is None or op.resource in awaited.resources:
            awaited.add(db, op.resource, op.seq, summary)
        else:
            yield summary

    # -- types of operations -------------------------------------------------------------------------------

    def _remember(self, op: Operation) -> About:
        about = self._about[op.resource, op.id] = About(op.rtype, op.type)
        return about

    def _about_reply(self, reply: Reply) -> About:
        op = reply.op or next((applied.id for applied in reply.applied), None)
        if op is None:
            return About()
        about = self._about.get((reply.resource, op)) or self._read_about(reply.resource, op)
        return about if reply.op else About(about.rtype)

    def _read_about(self, resource: str, op: OpId) -> About:
        documents = self._store.read([op_key(resource, op)]).values()
        return next((self._remember(op) for op in documents if isinstance(op, Operation)), About())


def _is_followed(document: Document) -> bool:
    """Whether it becomes an event: what is in the feed, and drafts. What a site keeps for itself does not."""
    return isinstance(document, Operation) or is_shared(document)


def _are_all_new(documents: Collection[Document], numbers: int) -> bool:
    """Whether a commit that used so many feed numbers used them for these: then the feed need not be read.

    A new list of sites may give new numbers to older documents.
    """
    lists = any(isinstance(document, Operation) and document.sites for document in documents)
    return len(documents) == numbers and not lists


def _summary_of_origin(op: Operation, summary: Event, result: SiteResult) -> Event:
    status = Status.VOID if op.verdict is Verdict.VOID else Status.SUPERSEDED
    return msgspec.structs.replace(summary, status=status, results=(result,))


def _forgotten(saves: Sequence[Save]) -> list[Key]:
    """What a commit forgets, and does not write again."""
    keys: dict[Key, None] = {}
    for save in saves:
        keys |= {key: None for key in save.forget if key[0] in _FORGETTABLE}
        if keys:
            for document in save.documents:
                keys.pop(key_of(document), None)
    return list(keys)


def _has_draft(documents: Iterable[Document]) -> bool:
    return any(isinstance(document, Operation) and document.verdict is None for document in documents)


class JournaledStore:
    """A store whose commits are journalled (see `cheops.store.interface.Store`), at most `delay_s` later where more
    commits come, or somebody calls `journal_waiting`."""

    def __init__(self, store: Store, journal: Journal, follower: Follower, delay_s: float = 0.0) -> None:
        self._store = store
        self._journal = journal
        self._follower = follower
        self._delay_s = delay_s
        self._waiting: list[Commit] = []  # that are not journalled
        self._journal_by_s = 0.0
        self.incarnation = store.incarnation
        self.begin_incarnation = store.begin_incarnation
        self.load = store.load
        self.recovered = store.recovered
        self.involving = store.involving
        self.resources = store.resources
        self.search = store.search
        self.states = store.states
        self.in_states = store.in_states
        self.due = store.due
        self.rewrite = store.rewrite
        self.set_unknown = store.set_unknown
        self.sites_of = store.sites_of
        self.shares = store.shares
        self.read = store.read
        self.last_seq = store.last_seq
        self.changes = store.changes
        self.note = store.note
        self.put_note = store.put_note
        self.dropped = store.dropped
        self.clear_dropped = store.clear_dropped
        self.space = store.space

    @property
    def free_bytes(self) -> int:
        return self._store.free_bytes

    def shrink(self) -> bool:
        return self._store.shrink() or self._journal.shrink()

    @property
    def damaged(self) -> Mapping[str, frozenset[str]]:
        return self._store.damaged

    @property
    def is_journalled(self) -> bool:
        """Whether the journal has all commits. May be read in any thread."""
        return not self._waiting

    def commit(self, saves: Sequence[Save]) -> int:
        forgotten = _forgotten(saves)
        if forgotten or (self._waiting and time.monotonic() >= self._journal_by_s):
            self.journal_waiting()
        if forgotten:
            self._journal.sync()  # a power cut must not take events that cannot be derived again
        last_seq = self._store.commit(saves)
        documents = [document for save in saves for document in save.documents]
        if not self._waiting:
            self._journal_by_s = time.monotonic() + self._delay_s
        self._waiting.append(Commit(documents, last_seq, self._follower.now_ms()))
        if forgotten or not self._delay_s or len(self._waiting) >= _MOST_WAITING or _has_draft(documents):
            try:
                self.journal_waiting()
            except BaseException:
                self._waiting.pop()  # it is committed again
                raise
        if forgotten:
            self._follower.forget(forgotten)
        return last_seq

    def journal_waiting(self) -> None:
        """Journal the commits that wait for it; in the thread that commits. Raises StoreError."""
        if self._waiting:
            self._follower.follow(self._waiting)
            self._waiting = []

    def close(self) -> None:
        with suppress(StoreError):  # the next start does it
            self.journal_waiting()
        self._store.close()
        self._journal.close()
