"""The state of a resource that concerns the local application: drafts, the run under way, and what earlier runs left.

`DraftQueue` holds operations that wait for their first run, `RunSlot` the one run that is under way, `AppliedState`
the operations whose effect the application holds, and what is wrong with them.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from enum import Enum, auto

from msgspec import Struct, field

from cheops.engine.documents import Base
from cheops.engine.settings import Limits, RetryTimer
from cheops.log.causality import contains
from cheops.log.history import History
from cheops.log.matrix import is_wiped
from cheops.log.operation import SILENT_KEYS, Applied, Operation, OpId, Origin, Reply, Status
from cheops.log.plan import Plan


class Purpose(Enum):
    """Why something is run."""

    DRAFT = auto()  # for the first time, at its origin
    OPERATION = auto()
    REPLAY = auto()
    UNITS = auto()  # an operation that failed, in unit steps
    HOOK = auto()  # on_error
    READ = auto()  # the state, for a checkpoint
    LEAVE = auto()  # the site left the resource: the command that deletes its copy


class Running(Struct):
    n: int  # the number of the reply that the run will have: it identifies the run
    purpose: Purpose
    op: Operation | None = None
    plan: Plan = field(default_factory=Plan)
    rewritten: list[OpId] | None = None  # a logic plugin's commands run, for this effective list
    as_is: int = 0  # how many operations of the plan ran before those
    has_start: bool = False  # its first step is a reset, or the base of a checkpoint


class RunSlot:
    """One run at a time per resource and site, and when the next may begin."""

    def __init__(self, limits: Limits) -> None:
        self.running: Running | None = None
        self.retry_reason = ""  # why the last run did not happen; empty unless it is to be tried again
        self._retry = RetryTimer(limits.retry_ms, limits.retry_most_ms)
        # The state is read for a checkpoint at most this often, even if no checkpoint follows from it.
        self._read = RetryTimer(limits.retry_most_ms, limits.retry_most_ms)

    def is_free(self, now_ms: int) -> bool:
        return self.running is None and self._retry.is_due(now_ms)

    @property
    def is_retrying(self) -> bool:
        return self._retry.is_backing_off

    @property
    def has_waited(self) -> bool:
        """Whether a run was ever put off, and may still be."""
        return self._retry.is_set

    def begin(self, running: Running) -> None:
        self.running = running

    def end(self, n: int) -> Running | None:
        """Free the slot and return the run with this number; None for a run from before a crash."""
        running = self.running
        if running is None or running.n != n:
            return None
        self.running = None
        return running

    def restore(self, running: Running | None) -> None:
        """A step failed because of a bug: this is what ran before it, or still runs."""
        self.running = running

    def retry_later(self, now_ms: int, why: str) -> None:
        """The run did not happen, or may not have happened: wait longer each time."""
        self.retry_reason = why
        self._retry.back_off(now_ms)

    def retry_much_later(self, now_ms: int) -> None:
        """A definite failure that only an operator can fix: an early retry would only repeat its notification."""
        self._retry.wait_longest(now_ms)

    def retry_now(self) -> None:
        """The operator has removed the cause of a failure, perhaps."""
        self._retry.expire()

    def note_success(self) -> None:
        self.retry_reason = ""
        self._retry.reset_delay()

    def may_read(self, now_ms: int) -> bool:
        return self._read.is_due(now_ms)

    def note_read(self, now_ms: int) -> None:
        self._read.back_off(now_ms)


class DraftQueue(list[Operation]):
    """Operations of this site without a verdict, in the order of their numbers. They get it in that order.

    A list, because each step asks many times whether there is one. It is changed by `append`, `load` and `pop_first`.
    """

    def __init__(self) -> None:
        super().__init__()
        # Drafts that ran out of turn and failed: their verdict waits until the UNKNOWN draft before them has one.
        self._failed_early: set[OpId] = set()
        # Drafts of which an attempt may have had an effect. While one is not done, the document `Started` stays.
        self._in_doubt: set[OpId] = set()

    def load(self, drafts: Iterable[Operation]) -> None:
        self[:] = sorted(drafts, key=lambda draft: draft.seq)

    def pop_first(self) -> Operation:
        """The first draft, which gets its verdict now."""
        self._in_doubt.discard(self[0].id)
        return self.pop(0)

    def postpone_verdict(self, draft: Operation) -> None:
        self._failed_early.add(draft.id)

    def doubt(self, id_: OpId) -> None:
        self._in_doubt.add(id_)

    def end_doubt(self, id_: OpId) -> None:
        self._in_doubt.discard(id_)

    def end_wiped_doubts(self, wiped: tuple[str, ...]) -> None:
        """What an attempt may have done to these keys is gone."""
        for draft in self if self._in_doubt else ():
            if is_wiped(wiped, draft.key):
                self._in_doubt.discard(draft.id)

    def is_in_doubt(self, id_: OpId) -> bool:
        return id_ in self._in_doubt

    def may_run_early(self, draft: Operation) -> bool:
        return draft.id not in self._failed_early


class Unknown(Struct, frozen=True):
    """An operation that may or may not have run here."""

    id: OpId
    key: str


class AppliedState:
    """The state of the local application, as the operations that led to it.

    Only the methods below change the fields. Everything is rebuilt from this site's own replies at a restart (`load`),
    except `needs_start` and `dirty`, which the document `Started` keeps.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        # The operations whose effect the application holds, in the order in which they ran. No id is there twice.
        self.entries: list[Applied] = []
        # This many leading entries equal the leading operations of `history.effective`, so a plan skips them.
        self.agreed = 0
        # Effective operations that failed here but not at their origin, and why: not run again except in a replay.
        self.failed: dict[OpId, str] = {}
        # Those of `failed` that wait for the type's `decompose` or `on_error`, the next one first.
        self.troubled: list[OpId] = []
        # Operations in doubt, the first one first. While one is there, only what wipes all of them may run. It may end
        # in doubt itself: then there are several.
        self._unknown: dict[OpId, Unknown] = {}
        # A replay from the start was interrupted: the application may hold anything. `entries` is empty.
        self.needs_start = False
        # A replay was interrupted: the application may hold parts of operations with these keys. They must be wiped
        # before anything else runs.
        self.dirty: tuple[str, ...] = ()
        # Nothing could enforce the effective order at the last plan; the operator sees it.
        self.order_not_enforced = False
        # The operations of the last replay, until the history changes: a replay that did not help is not repeated.
        self.last_replay: tuple[OpId, ...] | None = None
        # The effective operations for which the commands of a logic plugin ran.
        self.rewritten: list[OpId] | None = None
        # The checkpoint that `entries` build on, and whether the application has it.
        self.base: Base | None = None
        self.base_applied = False
        # The last digest, and what it was computed from.
        self._digest: tuple[object, str] = (None, "")
        # Everything up to here has been run or passed over at this site. Equal to `history.known` at rest.
        self.settled: dict[Origin, int] = {}
        # A checkpoint could be taken; only a seal over everything is missing.
        self.wants_seal = False

    # -- what follows from the state -----------------------------------------------------------------------

    @property
    def starts_over(self) -> bool:
        """Whether everything must be replayed from the checkpoint or the type's `reset`."""
        return self.needs_start or (self.base is not None and not self.base_applied)

    @property
    def unknown(self) -> Unknown | None:
        """The operation in doubt that an operator is asked about first."""
        return next(iter(self._unknown.values()), None)

    @property
    def all_unknown(self) -> tuple[Unknown, ...]:
        return tuple(self._unknown.values())

    def is_unknown(self, id_: OpId) -> bool:
        return id_ in self._unknown

    @property
    def is_settled(self) -> bool:
        return self.settled == self._history.known

    def digest(self) -> str:
        """Equal at two sites where the same operations took effect in the same way; empty before all is settled.

        The effective list is a function of the known operations, whose contents are summed up. Sites that know the same
        can differ only in what failed, and in an order that nothing could enforce.
        """
        if not self.is_settled:
            return ""
        unenforced = [a.id for a in self.entries] if self.order_not_enforced else []
        parts = (
            self._history.summary().partition(".")[0],
            self._history.matrix.hash,
            sorted(self.failed),
            unenforced,
        )
        if parts != self._digest[0]:  # every message holds it, and it changes with an operation
            self._digest = (parts, hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16])
        return self._digest[1]

    # -- runs that ended -----------------------------------------------------------------------------------

    def record_run(self, id_: OpId | None, key: str, wiped: tuple[str, ...]) -> None:
        """A run succeeded: it wiped the effect of these keys, then added its own. Without an id it only wiped."""
        if wiped:
            self._wipe(wiped, id_)
        if id_ is not None:
            self.entries.append(Applied(id_, key))
            self.failed.pop(id_, None)
        effective = self._history.effective
        while self.agreed < min(len(self.entries), len(effective)):
            if effective[self.agreed].id != self.entries[self.agreed].id:
                break
            self.agreed += 1

    def _wipe(self, wiped: tuple[str, ...], rerun: OpId | None) -> None:
        kept = [a for a in self.entries if not is_wiped(wiped, a.key) and a.id != rerun]
        if len(kept) != len(self.entries):
            pairs = zip(self.entries, [*kept, None], strict=False)
            first = next(place for place, (old, new) in enumerate(pairs) if old is not new)
            self.entries, self.agreed = kept, min(self.agreed, first)
        for unknown in self.all_unknown:
            if is_wiped(wiped, unknown.key):
                del self._unknown[unknown.id]
        self.dirty = tuple(key for key in self.dirty if not is_wiped(wiped, key))

    def record_start(self) -> None:
        """The application is at the checkpoint, or at the type's `reset`."""
        self.needs_start = False
        self.base_applied = self.base is not None
        self.record_run(None, "", ("*",))

    def record_replay(self, ops: Sequence[Operation]) -> None:
        self.last_replay = tuple(op.id for op in ops)

    def record_rewrite(self, effective: list[OpId]) -> None:
        self.rewritten = effective

    def record_copy_deleted(self) -> None:
        """The site has left the resource and deleted its copy: if the resource comes back, it begins from nothing."""
        self.record_run(None, "", ("*",))
        self.base_applied = False

    # -- runs that went wrong ------------------------------------------------------------------------------

    def record_failure(self, id_: OpId, why: str) -> None:
        self.failed[id_] = why

    def defer_failure(self, id_: OpId, why: str) -> None:
        """Record a failure for which the type defines a remedy."""
        self.failed[id_] = why
        self.troubled.append(id_)

    def next_troubled(self) -> OpId:
        return self.troubled.pop(0)

    def return_troubled(self, id_: OpId) -> None:
        """The remedy of the type could not be run: the operation stays the next one."""
        self.troubled.insert(0, id_)

    def clear_failure(self, id_: OpId) -> None:
        del self.failed[id_]

    def retry_failure(self, id_: OpId) -> None:
        """An operation that failed is to run again. Until then it is not settled, so no site counts this one as equal
        to the others; and a replay that did not help may help now."""
        del self.failed[id_]
        self.last_replay = None
        self.settled = {**self.settled, id_.origin: min(self.settled.get(id_.origin, 0), id_.seq - 1)}

    def drop_stale_failures(self) -> None:
        """Forget the failures of operations that are no longer effective."""
        ops, fates = self._history.ops, self._history.fates
        self.failed = {id_: why for id_, why in self.failed.items() if id_ in ops and id_ not in fates}
        self.troubled = [id_ for id_ in self.troubled if id_ in ops and id_ not in fates]

    def mark_unknown(self, op: Operation) -> None:
        self._unknown[op.id] = Unknown(op.id, op.key)

    def clear_unknown(self, id_: OpId) -> None:
        self._unknown.pop(id_, None)

    def mark_dirty(self, keys: tuple[str, ...]) -> None:
        """The application may hold anything of these keys, until they are wiped."""
        self.record_run(None, "", keys)
        self.dirty = tuple(dict.fromkeys((*self.dirty, *keys)))

    def clear_dirty(self) -> None:
        """The state of the application was compared with that of the other sites, and is right."""
        self.dirty, self.last_replay = (), None

    def invalidate_replay(self, wanted: Plan) -> tuple[str, ...]:
        """A replay was interrupted: what its base wipes counts as not applied. Return the keys that are dirty now."""
        self.last_replay = None  # the same replay is worth another attempt
        if wanted.from_start:
            self.needs_start = True
            self.entries, self.agreed = [], 0
            return ()
        if not wanted.run:
            return ()
        dirty = self._history.matrix.wiped_by(wanted.run[0].key)
        self.mark_dirty(dirty)
        return dirty

    # -- plans and the history -----------------------------------------------------------------------------

    def content_replaced(self, id_: OpId) -> bool:
        """Another operation has taken this id: forget what became of the old one here. True if it had run."""
        self.failed.pop(id_, None)
        self.troubled = [other for other in self.troubled if other != id_]
        return any(entry.id == id_ for entry in self.entries)

    def history_changed(self, first: int) -> None:
        """The effective list has changed from this place on."""
        self.last_replay = None
        self.agreed = min(self.agreed, first)

    def accept_order(self) -> None:
        """The entries ran in another order than the effective one, to the same effect: count them as in that order."""
        by_id = {a.id: a for a in self.entries}
        self.entries = [by_id[op.id] for op in self._history.effective]
        self.agreed = len(self.entries)

    def note_order(self, *, not_enforced: bool) -> bool:
        """Note whether the newest plan enforces the order; True if it no longer does."""
        is_news = not_enforced and not self.order_not_enforced
        self.order_not_enforced = not_enforced
        return is_news

    def settle(self) -> None:
        """Nothing that is known is left to run here."""
        self.wants_seal = False
        if self.settled != self._history.known:
            self.settled = dict(self._history.known)

    def request_seal(self) -> None:
        self.wants_seal = True

    # -- checkpoints ---------------------------------------------------------------------------------------

    def fold(self, base: Base) -> None:
        """A checkpoint of the current state replaces all entries."""
        self.base, self.base_applied = base, True
        self.entries, self.agreed = [], 0

    def start_over(self, base: Base | None) -> None:
        """The base is replaced by another one: everything must be replayed from the start."""
        self.base, self.base_applied, self.needs_start = base, False, True
        self.entries, self.agreed = [], 0

    # -- loading -------------------------------------------------------------------------------------------

    def load_base(self, base: Base | None, *, applied: bool) -> None:
        self.base, self.base_applied = base, applied

    def load_reply(self, reply: Reply) -> None:
        """Apply one of this site's own replies, which says what a run did. Callers keep the order of their numbers."""
        if reply.op is not None:
            self.clear_unknown(reply.op)
        if reply.key in SILENT_KEYS:
            if reply.wiped:  # a copy was deleted; the ledger says whether the application has the checkpoint since
                self.record_run(None, "", ("*",))
            return
        if reply.op and contains(self._history.folded, reply.op):
            return  # the checkpoint holds its effect
        if reply.replay:
            self._load_replay(reply)
            return
        match reply.status:
            case Status.OK:
                self.record_run(reply.op, reply.key, reply.wiped)
            case Status.KO if reply.op is not None:
                self.failed[reply.op] = reply.detail
            case Status.UNKNOWN if reply.op is not None:
                self._unknown[reply.op] = Unknown(reply.op, reply.key)
            case Status.PENDING if reply.op is not None:
                self.failed.pop(reply.op, None)

    def _load_replay(self, reply: Reply) -> None:
        self.record_run(None, "", reply.wiped)
        self.entries, self.agreed = [], 0
        for applied in reply.applied:
            if not contains(self._history.folded, applied.id):
                self.record_run(applied.id, applied.key, ())
