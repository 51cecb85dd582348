"""The state of one resource at one site: its history, what was applied here, and what others know of it."""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum, auto

from cheops.engine.documents import Document, Ledger, Started
from cheops.engine.messages import Base
from cheops.engine.settings import Limits, ResourceType
from cheops.log.causality import contains, joined
from cheops.log.digest import digest
from cheops.log.history import FindMatrix, History
from cheops.log.matrix import Matrix, is_wiped
from cheops.log.operation import SILENT_KEYS, Applied, Operation, OpId, Origin, Reply, Status
from cheops.log.plan import Plan
from cheops.log.policy import Policy


class Purpose(Enum):
    """Why something is being run."""

    DRAFT = auto()  # for the first time, at its origin
    OPERATION = auto()
    REPLAY = auto()
    UNITS = auto()  # an operation that failed, in unit steps
    HOOK = auto()  # on_error
    READ = auto()  # the state, for a checkpoint
    LEAVE = auto()  # the resource is no longer at this site: what came with that, to delete its copy


@dataclass(slots=True)
class Running:
    n: int
    purpose: Purpose
    op: Operation | None = None
    plan: Plan = field(default_factory=Plan)
    rewritten: list[OpId] | None = None  # a logic plugin's commands run, for this effective list
    has_start: bool = False  # its first step is a reset, or the base of a checkpoint


@dataclass(slots=True)
class PeerProgress:
    """What we know of another site's knowledge of this resource."""

    incarnation: str = ""
    busy: bool = False
    fresh: bool = True  # we do not know what it knows: ask before sending everything
    known: dict[Origin, int] = field(default_factory=dict)
    known_replies: dict[Origin, int] = field(default_factory=dict)
    settled: dict[Origin, int] = field(default_factory=dict)
    digest: str = ""
    last_contact_ms: int | None = None
    unfinished: bool = False  # what we sent last was not all: go on as soon as it is acknowledged
    next_send_ms: int = 0
    wait_ms: int = 0
    replies_later: list[Reply] = field(default_factory=list)  # that go with the next message to it


@dataclass(slots=True)
class Unknown:
    """An operation of which nobody knows whether it ran here."""

    id: OpId
    key: str


def is_due(at_ms: int, now_ms: int, most_ms: int) -> bool:
    """Whether a time has come. One that is further away than it was ever set means that the clock jumped."""
    return not 0 < at_ms - now_ms <= most_ms


@dataclass(slots=True)
class Client:
    """Somebody who waits for what becomes of an operation at each site."""

    request: str
    heard: dict[str, Status] = field(default_factory=dict)  # the last word of each site


class Replica:
    def __init__(self, resource: str, origin: Origin, find_matrix: FindMatrix, limits: Limits) -> None:
        self.resource = resource
        self.origin = origin
        self.limits = limits
        self.history = History(find_matrix)
        self.type = ResourceType()
        self.policy_of: Callable[[str], Policy | None] = lambda _type: None
        self.gone: AbstractSet[str] = frozenset()  # sites that will not be back
        self.drafts: list[Operation] = []
        self.waiting: dict[OpId, Operation] = {}
        self.endorsed: set[OpId] = set()  # of those: what a site of this resource has taken
        self.refused: dict[OpId, str] = {}  # what came and was dropped lately, and why: see admission.py
        self.clients: dict[OpId, Client] = {}  # who wait for what the sites answer
        self.peers: dict[str, PeerProgress] = {}
        self.new_ops: list[Operation] = []  # to be sent at the end of this step
        self.new_replies: list[Reply] = []
        self.owed: dict[str, set[str]] = {}  # peers to be acknowledged, and the matrices we want of them
        self.owed_later: set[str] = set()  # peers that are to hear of us with the next tick
        # what was run here
        self.applied: list[Applied] = []
        self.agreed = 0  # so many leading entries of `applied` are those of the effective list
        self.failed: dict[OpId, str] = {}
        self.troubled: list[OpId] = []  # failed here and not at their origin: on_error is to see to them
        self.unknown: Unknown | None = None
        self.needs_start = False  # a replay from the start was cut short
        self.dirty: tuple[str, ...] = ()  # a replay was cut short: these keys must be wiped before all else
        self.skipped: set[OpId] = set()  # drafts that failed out of turn: they wait for it
        self.order_not_enforced = False
        self.last_replay: tuple[OpId, ...] | None = None  # a replay that changes nothing is not begun a second time
        self.rewritten: list[OpId] | None = None  # the effective list that a logic plugin's commands stand for
        self.running: Running | None = None
        self.retry_at_ms = 0
        self.retry_ms = 0
        # replies of all sites
        self.replies: dict[Origin, dict[int, Reply]] = {}
        self.known_replies: dict[Origin, int] = {}
        self.by_op: dict[tuple[OpId, str], Reply] = {}
        # checkpoint
        self.base: Base | None = None
        self.base_applied = False
        self.settled: dict[Origin, int] = {}
        self.was_unsynced = False
        self.disowned_kept = 0  # how many matrices the kept ledger knows to be of another resource
        self.touched_ms = 0
        self.ask_at_ms = 0  # for matrices
        self.read_at_ms = 0  # the state, for a checkpoint
        self.wants_seal = False  # for a checkpoint

    @property
    def site(self) -> str:
        return self.origin.site

    @property
    def matrix(self) -> Matrix:
        return self.history.matrix

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites that count: those on the list, but for such as will not be back. The list itself stays:
        a site that is taken in again is one of them again."""
        return tuple(site for site in self.history.site_list if site not in self.gone or site == self.site)

    @property
    def is_involved(self) -> bool:
        return self.site in self.history.site_list

    @property
    def next_reply(self) -> int:
        return self.known_replies.get(self.origin, 0) + 1

    def digest(self) -> str:
        if self.settled != self.history.known:
            return ""
        order = [a.id for a in self.applied] if self.order_not_enforced else []
        return digest(self.settled, self.matrix.hash, self.failed, order)

    def rules_for(self, op: Operation) -> Matrix:
        """The matrix under which an operation counts: a draft may bring one that is not in force yet."""
        adopted = self.history.adopted
        if op.verdict is None and (adopted is None or op.matrix.introduced > adopted.introduced):
            return self.history.find_matrix(op.matrix.hash)
        return self.matrix

    # -- changes -------------------------------------------------------------------------------

    def add(self, op: Operation) -> None:
        """Take a decided operation into the history."""
        self.last_replay = None
        self.agreed = min(self.agreed, self.history.add(op))

    def note_run(self, id_: OpId | None, name: str, wiped: tuple[str, ...]) -> None:
        """What is applied after a run that succeeded."""
        if wiped:
            kept = [a for a in self.applied if not is_wiped(wiped, a.key) and a.id != id_]
            if len(kept) != len(self.applied):
                pairs = zip(self.applied, [*kept, None], strict=False)
                first = next(place for place, (old, new) in enumerate(pairs) if old is not new)
                self.applied, self.agreed = kept, min(self.agreed, first)
            if self.unknown and is_wiped(wiped, self.unknown.key):
                self.unknown = None
            self.dirty = tuple(name for name in self.dirty if not is_wiped(wiped, name))
        if id_ is not None:
            self.applied.append(Applied(id_, name))
            self.failed.pop(id_, None)
        while self.agreed < len(self.applied) and self._agrees_at(self.agreed):
            self.agreed += 1

    def note_copy_deleted(self) -> None:
        """The site had left: should the resource come back, it begins from nothing."""
        self.note_run(None, "", ("*",))
        self.base_applied = False

    def reorder_applied(self) -> None:
        """What was run in another order, to the same effect, counts as run in the effective one."""
        by_id = {a.id: a for a in self.applied}
        self.applied = [by_id[op.id] for op in self.history.effective]
        self.agreed = len(self.applied)

    def _agrees_at(self, place: int) -> bool:
        effective = self.history.effective
        return place < len(effective) and effective[place].id == self.applied[place].id

    def note_reply(self, reply: Reply) -> list[Reply]:
        """Take a reply of any site; gives those that it makes pointless, which are gone from here."""
        of_origin = self.replies.setdefault(reply.origin, {})
        stale = [old for old in of_origin.values() if old.replay] if reply.replay else []
        for old in stale:
            del of_origin[old.n]
        of_origin[reply.n] = reply
        self.known_replies[reply.origin] = max(reply.n, self.known_replies.get(reply.origin, 0))
        site = reply.origin.site
        if reply.op is not None:
            self.by_op[reply.op, site] = reply
        for applied in reply.applied:
            before = self.by_op.get((applied.id, site))
            if before is None or before.status is not Status.OK or before.replay:
                self.by_op[applied.id, site] = reply  # one of its own says more
        return stale

    # -- from and to the store -----------------------------------------------------------------

    def load(self, documents: Iterable[Document]) -> Started | None:
        """Become what the store says; gives the run that was under way, if any."""
        documents = list(documents)
        started = next((d for d in documents if isinstance(d, Started)), None)
        for ledger in (d for d in documents if isinstance(d, Ledger)):
            self._load_ledger(ledger)
        ops = sorted((d for d in documents if isinstance(d, Operation)), key=lambda op: op.stamp)
        for op in ops:
            if op.verdict is None:
                self.drafts.append(op)
            else:
                self.add(op)
        self.history.known = joined(self.history.known, self.history.floor)
        self.drafts.sort(key=lambda op: op.seq)
        for reply in sorted((d for d in documents if isinstance(d, Reply)), key=lambda reply: reply.n):
            self._load_reply(reply)
        self.drop_stale_failures()
        return started

    def drop_stale_failures(self) -> None:
        """What is not effective any more need not have succeeded."""
        fates = self.history.fates
        self.failed = {id_: why for id_, why in self.failed.items() if id_ in self.history.ops and id_ not in fates}
        self.troubled = [id_ for id_ in self.troubled if id_ in self.history.ops and id_ not in fates]

    def _load_ledger(self, ledger: Ledger) -> None:
        self.history.floor = dict(ledger.floor)
        self.history.known = dict(ledger.floor)
        self.history.epochs = {introduced: epoch.copy() for introduced, epoch in ledger.epochs.items()}
        self.history.disowned = set(ledger.disowned)
        self.disowned_kept = len(ledger.disowned)
        self.known_replies = dict(ledger.reply_floor)
        self.base, self.base_applied = ledger.base, ledger.base_applied
        if ledger.base:
            self.history.folded = dict(ledger.base.vector)
        self.history.take_matrix(ledger.adopted)
        self.was_unsynced = ledger.unsynced

    def _load_reply(self, reply: Reply) -> None:
        self.note_reply(reply)
        if reply.origin != self.origin:
            return
        if self.unknown and self.unknown.id == reply.op:
            self.unknown = None
        if reply.key in SILENT_KEYS or (reply.op and contains(self.history.folded, reply.op)):
            if reply.wiped:
                self.note_copy_deleted()
            return  # it has no effect of its own, or that is part of the checkpoint
        if reply.replay:
            self._load_replay(reply)
            return
        match reply.status:
            case Status.OK:
                self.note_run(reply.op, reply.key, reply.wiped)
            case Status.KO if reply.op is not None:
                self.failed[reply.op] = reply.detail
            case Status.UNKNOWN if reply.op is not None:
                self.unknown = Unknown(reply.op, reply.key)

    def _load_replay(self, reply: Reply) -> None:
        self.note_run(None, "", reply.wiped)
        self.applied, self.agreed = [], 0
        for applied in reply.applied:
            if not contains(self.history.folded, applied.id):
                self.note_run(applied.id, applied.key, ())

    def ledger(self) -> Ledger:
        self.disowned_kept = len(self.history.disowned)
        return Ledger(
            self.resource,
            unsynced=self.was_unsynced,
            floor=dict(self.history.floor),
            reply_floor={origin: n for origin, n in self.known_replies.items() if n},
            base=self.base,
            base_applied=self.base_applied,
            adopted=self.history.adopted,
            epochs={introduced: epoch.copy() for introduced, epoch in self.history.epochs.items()},
            disowned=frozenset(self.history.disowned),
        )

    def key_of(self, id_: OpId) -> str:
        return self.history.ops[id_].key
