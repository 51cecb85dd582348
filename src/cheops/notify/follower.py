"""From the store's feed to the journal: every decided operation and every reply becomes an event, once.

`FollowedStore` stands before the store of the engine. Each commit is followed at once, in the same thread, so
nothing can be forgotten before the journal has it; where the journal cannot be written the commit fails, and
is tried again as a whole (which does no harm). What a crash leaves between the two is followed at the start.
"""

import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from cheops.engine.documents import Document, Key, key_of, op_key
from cheops.engine.events import Save
from cheops.log.operation import Operation, OpId, Origin, Reply, Status, Verdict
from cheops.notify.derive import About, of_operation, of_reply, of_summary, op_text, words_of
from cheops.notify.events import Event, SiteResult, cut
from cheops.notify.journal import Journal, put_meta
from cheops.notify.waiting_list import WaitingList
from cheops.store.base import Store

_PAGE = 500
_REMEMBERED = 10_000  # operations of which the types are known without asking the store
_FORGETTABLE = ("op", "reply")
_NOBODY_ELSE = {Verdict.VOID: Status.KO, Verdict.SUPERSEDED: Status.SUPERSEDED}


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Follower:
    """Keeps the journal up with the store. One thread at a time: the one that commits."""

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
        self.awaited = WaitingList(journal, self.origin) if with_summaries else None
        self._store = store
        self._journal = journal
        self._now_ms = now_ms
        self._about: OrderedDict[tuple[str, OpId], About] = OrderedDict()
        self._begin()

    def _begin(self) -> None:
        """A journal that is new, or was kept beside another store, begins with what happens from now on."""
        if self._journal.note("incarnation") != self._store.incarnation:
            with self._journal.writing() as db:
                for table in ("told", "doubts", "awaited", "words"):
                    db.execute(f"DELETE FROM {table}")  # noqa: S608 - our own words
                put_meta(db, "incarnation", self._store.incarnation)
                put_meta(db, "followed", self._store.last_seq())
                put_meta(db, "looked", self._store.last_seq())
            if self.awaited:
                self.awaited.resources.clear()
        self._followed = int(str(self._journal.note("followed")))

    @property
    def followed(self) -> int:
        return self._followed

    def follow(self, documents: Mapping[Key, Document] | None = None) -> None:
        """Take what is new in the feed; `documents` may hold it, or else it is read."""
        at_hand = documents or {}
        while changes := self._store.changes(self._followed, _PAGE):
            lacking = [change.key for change in changes if change.key not in at_hand]
            read = self._store.read(lacking) if lacking else {}
            found = [at_hand.get(change.key) or read.get(change.key) for change in changes]
            with self._journal.writing() as db:
                for document in found:
                    self._take(db, document)
                put_meta(db, "followed", changes[-1].seq)
            self._followed = changes[-1].seq

    def forget(self, keys: Iterable[Key]) -> None:
        """What the store has forgotten need not be remembered here either."""
        gone = [(op_text(str(key[1]), OpId(key[2], key[3])),) for key in keys if key[0] == "op"]  # type: ignore[arg-type] # ids.py
        if gone:
            with self._journal.writing() as db:
                db.executemany("DELETE FROM told WHERE op = ?", gone)
                db.executemany("DELETE FROM doubts WHERE op = ?", gone)

    def resources_since(self, seq: int) -> set[str]:
        """The resources of operations that came after a number of the feed."""
        found: set[str] = set()
        while changes := self._store.changes(seq, _PAGE):
            found |= {str(change.key[1]) for change in changes if change.key[0] == "op"}
            seq = changes[-1].seq
        return found

    # -- one document ----------------------------------------------------------------------------------------

    def _take(self, db: sqlite3.Connection, document: Document | None) -> None:
        match document:
            case Operation():
                self._remember(document)
                self._append(db, of_operation(document, self._now_ms()))
                if self.awaited and document.origin == self.origin and not document.is_silent:
                    self._await(db, self.awaited, document)
            case Reply():
                self._take_reply(db, document)

    def _take_reply(self, db: sqlite3.Connection, reply: Reply) -> None:
        was_unknown = self._note_doubt(db, reply)
        about = self._about_reply(reply)
        self._append(db, of_reply(reply, about, self._now_ms(), was_unknown=was_unknown))
        if self.awaited:
            self.awaited.hear(db, reply.resource, words_of(reply))

    def _append(self, db: sqlite3.Connection, event: Event | None) -> None:
        if event is not None:
            self._journal.append_within(db, [event])

    def _note_doubt(self, db: sqlite3.Connection, reply: Reply) -> bool:
        """Remember where something is UNKNOWN; gives whether it was, and now is not."""
        if reply.op is None:
            return False
        row = (op_text(reply.resource, reply.op), reply.origin.site)
        if reply.status is Status.UNKNOWN:
            db.execute("INSERT OR IGNORE INTO doubts VALUES (?, ?)", row)
            return False
        return db.execute("DELETE FROM doubts WHERE op = ? AND site = ?", row).rowcount > 0

    def _await(self, db: sqlite3.Connection, awaited: WaitingList, op: Operation) -> None:
        """A summary is to come; at once for what has no effect anywhere: no other site runs it."""
        summary = of_summary(op, self._now_ms())
        status = _NOBODY_ELSE.get(op.verdict) if op.verdict else None
        if status is None:
            awaited.add(db, op.resource, op.seq, summary)
            return
        word = SiteResult(op.origin.site, status, cut(op.why))
        self._append(db, _of_nobody_else(op, summary, word))

    # -- what a reply does not say ---------------------------------------------------------------------------

    def _remember(self, op: Operation) -> About:
        about = self._about[op.resource, op.id] = About(op.rtype, op.type)
        if len(self._about) > _REMEMBERED:
            self._about.popitem(last=False)
        return about

    def _about_reply(self, reply: Reply) -> About:
        op = reply.op or next((applied.id for applied in reply.applied), None)
        if op is None:
            return About()
        about = self._about.get((reply.resource, op)) or self._read_about(reply.resource, op)
        return about if reply.op else About(about.rtype)

    def _read_about(self, resource: str, op: OpId) -> About:
        found = self._store.read([op_key(resource, op)]).values()
        return next((self._remember(op) for op in found if isinstance(op, Operation)), About())


def _of_nobody_else(op: Operation, summary: Event, word: SiteResult) -> Event:
    status = Status.VOID if op.verdict is Verdict.VOID else Status.SUPERSEDED
    return msgspec.structs.replace(summary, status=status, results=(word,))


class FollowedStore:
    """A store whose commits the journal follows. See `store.base.Store`."""

    def __init__(self, store: Store, journal: Journal, follower: Follower) -> None:
        self._store = store
        self._journal = journal
        self._follower = follower
        self.incarnation = store.incarnation
        self.load = store.load
        self.recovered = store.recovered
        self.involving = store.involving
        self.resources = store.resources
        self.read = store.read
        self.last_seq = store.last_seq
        self.changes = store.changes
        self.local = store.local
        self.put_local = store.put_local

    def commit(self, saves: Sequence[Save]) -> int:
        forgotten = [key for save in saves for key in save.forget if key[0] in _FORGETTABLE]
        if forgotten:
            self._journal.sync()
        last_seq = self._store.commit(saves)
        self._follower.follow({key_of(document): document for save in saves for document in save.documents})
        if forgotten:
            self._follower.forget(forgotten)
        return last_seq

    def close(self) -> None:
        self._store.close()
        self._journal.close()
