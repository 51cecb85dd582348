"""One simulated site: the production engine, a disk that loses unsynced writes, an application, a clock."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from cheops.engine import ledger
from cheops.engine.documents import (
    NO_DROPS,
    NO_LINEAGE,
    Document,
    Drops,
    Key,
    Ledger,
    Lineage,
    Peers,
    SiteClock,
    key_of,
)
from cheops.engine.events import Event, Loaded, Outcome, Recovered, Result, Run, Save
from cheops.engine.replica import Replica
from cheops.engine.settings import Settings
from cheops.engine.site import Site
from cheops.engine.tombstones import origin_in
from cheops.log.causality import Clock
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Origin
from cheops.peers.heartbeat import Watermark
from cheops.peers.watermark import StoreStarts
from cheops.sim.apps import App, RefusedError, State


@dataclass
class Disk:
    """A disk with a write cache: a crash loses what was not synced."""

    incarnation: str = ""
    starts: StoreStarts = field(default_factory=StoreStarts)
    saved: int = 0  # documents, ever
    written: list[Save] = field(default_factory=list)
    rotten: dict[Key, Document] = field(default_factory=dict)  # what was written, where it holds something else by now
    _durable: dict[Key, Document] = field(default_factory=dict)
    _by_resource: dict[str, dict[Key, Document]] = field(default_factory=dict)

    @property
    def durable(self) -> Mapping[Key, Document]:
        """Read-only: what is written past `put` would be here, and not in the resource that a site loads."""
        return MappingProxyType(self._durable)

    def write(self, save: Save) -> None:
        self.written.append(save)

    def sync(self) -> None:
        for save in self.written:
            for key in save.forget:
                self._remove(key)
                self.rotten.pop(key, None)
            for document in save.documents:
                self.put(document)
                self.rotten.pop(key_of(document), None)
                self.saved += 1
        self.written.clear()

    def rot(self, key: Key, document: Document) -> None:
        """Hold something else than was written."""
        self.rotten.setdefault(key, self._durable[key])
        self._put(key, document)

    def damaged(self, resource: str) -> list[Key]:
        """The documents of a resource that are not as they were written: a store sees that by their checksums."""
        return [key for key, document in self.rotten.items() if getattr(document, "resource", None) == resource]

    def restore(self, key: Key, document: Document) -> None:
        self._put(key, document)
        del self.rotten[key]

    def put(self, document: Document) -> None:
        self._put(key_of(document), document)

    def _put(self, key: Key, document: Document) -> None:
        self._durable[key] = document
        if (resource := getattr(document, "resource", None)) is not None:
            self._by_resource.setdefault(resource, {})[key] = document

    def _remove(self, key: Key) -> None:
        resource = getattr(self._durable.pop(key, None), "resource", None)
        if resource is not None:
            del self._by_resource[resource][key]

    def crash(self) -> None:
        self.written.clear()

    def copy(self) -> "Disk":
        """As a backup has it."""
        by_resource = {resource: dict(documents) for resource, documents in self._by_resource.items()}
        return Disk(self.incarnation, self.starts, self.saved, _durable=dict(self._durable), _by_resource=by_resource)

    def of_resource(self, resource: str) -> tuple[Document, ...]:
        return tuple(self._by_resource.get(resource, {}).values())


@dataclass(frozen=True)
class Execution:
    """One run at the application: which operation, whether in a replay, and its result."""

    resource: str
    op: OpId | None
    replay: bool
    ok: bool
    partial: bool = False


@dataclass(frozen=True)
class Backup:
    """A copy of a node at one moment."""

    disk: Disk
    states: dict[str, State]
    attempted: dict[tuple[str, OpId], bool]


class Node:
    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings
        self.births = 0
        self._starts = 0  # of the process, ever
        self.disk = Disk()
        self.site: Site | None = None
        self.life = 0  # grows with every crash: callbacks scheduled in an earlier life do nothing
        self.skew_ms = 0
        self.states: dict[str, State] = {}
        self.log: list[Execution] = []
        # What the application ever did, and refused; also before a disk was lost.
        self.ran: set[tuple[str, OpId]] = set()
        self.refused: set[tuple[str, OpId]] = set()
        self.attempted: dict[tuple[str, OpId], bool] = {}  # whether the last attempt had its effect, for the operator
        self._attempt: dict[tuple[str, OpId], int] = {}  # the number of the last one
        self.injected: Counter[str] = Counter()
        self.new_disk()

    def new_disk(self) -> None:
        """A new, empty disk and a new incarnation."""
        self.disk = Disk()
        self.new_incarnation()
        self.disk.starts = StoreStarts(f"{self.name}/{self.births}".encode())

    def new_incarnation(self) -> None:
        self.births += 1
        self.disk.incarnation = str(self.births)

    def back_up(self) -> Backup:
        return Backup(self.disk.copy(), dict(self.states), dict(self.attempted))

    def restore(self, backup: Backup, *, with_application: bool) -> None:
        """Put an old copy of the disk in its place, and perhaps of the application's state."""
        self.disk = backup.disk.copy()
        if with_application:
            self.states, self.attempted = dict(backup.states), dict(backup.attempted)
            self.log += [Execution(resource, None, replay=False, ok=True) for resource in self.states]

    @property
    def origin(self) -> Origin:
        return Origin(self.name, self.disk.incarnation)

    def now_ms(self, now_ms: int) -> int:
        return max(0, now_ms + self.skew_ms)

    def start(self) -> Event:
        """Start a process on the disk as it is; return its first event."""
        durable = self.disk.durable.values()
        lineage = next((d for d in durable if isinstance(d, Lineage)), NO_LINEAGE)
        if lineage.closes(self.disk.incarnation):
            self.new_incarnation()
        self._starts += 1
        closed = [one.incarnation for one in lineage.closed]
        start = (str(self._starts), self.disk.saved, self.disk.incarnation, closed)
        self.disk.starts = self.disk.starts.with_start(*start)
        self.site = Site(self.origin, self.settings)
        clock = next((d.clock for d in durable if isinstance(d, SiteClock)), Clock())
        matrices = tuple(d for d in durable if isinstance(d, Matrix))
        unsynced = sorted(d.resource for d in durable if isinstance(d, Ledger) and d.unsynced)
        drops = next((d for d in durable if isinstance(d, Drops)), NO_DROPS)
        return Recovered(clock, matrices, tuple(unsynced), self._met, lineage, drops)

    @property
    def _met(self) -> Mapping[str, str]:
        """The last incarnation of each peer, as the disk has it."""
        return next((d.incarnations for d in self.disk.durable.values() if isinstance(d, Peers)), {})

    def forget_runs(self, op: Operation) -> None:
        """The operation is withdrawn: what ran under its id was not the operation that has this id now."""
        self.log = [e for e in self.log if (e.resource, e.op) != (op.resource, op.id)]

    def mark(self) -> Watermark:
        clock = self.site.clock if self.site else Clock()
        return self.disk.starts.mark(self.disk.saved, clock)

    def has_lost(self, mark: Watermark) -> bool:
        """Whether its store was beyond what it is now."""
        return self.disk.starts.is_later(mark, self.disk.saved)

    def due(self, now_ms: int) -> tuple[str, ...]:
        """The resources whose ledger says that they may be dropped."""
        ledgers = (d for d in self.disk.durable.values() if isinstance(d, Ledger) and d.due_ms is not None)
        return tuple(sorted(d.resource for d in ledgers if (d.due_ms or 0) <= self.now_ms(now_ms)))

    def note_attempt(self, resource: str, op: OpId, n: int) -> None:
        """An attempt is about to begin: the operator is asked about it, also if the node stops before it begins. What
        was open before is saved again after a crash, which is no new attempt."""
        if self._attempt.get((resource, op)) != n:
            self._attempt[resource, op] = n
            self.attempted[resource, op] = False

    def crash(self) -> None:
        self.disk.crash()
        self.site = None
        self.life += 1

    def loaded(self, resource: str) -> Loaded:
        return Loaded(resource, self.disk.of_resource(resource))

    def replica(self, resource: str) -> Replica | None:
        """A resource as the site has it in memory, or as the site would load it."""
        if self.site is None:
            return None
        return self.site.replicas.get(resource) or self.replica_on_disk(resource)

    def replica_on_disk(self, resource: str) -> Replica | None:
        if self.site is None:
            return None
        # As it will be once it is loaded: before that, damaged documents are restored.
        documents = tuple(self.disk.rotten.get(key_of(d), d) for d in self.disk.of_resource(resource))
        if not documents:
            return None
        replica = Replica(
            resource,
            origin_in(self.origin, documents, self.site.drops),
            self.site.matrices.__getitem__,
            self.settings.limits,
            policy_of=self.settings.policy_of,
            gone=self.site.gone,
            met=self._met,
        )
        ledger.load(replica, documents)
        replica.applied.settle()
        return replica

    # -- the application ---------------------------------------------------------------------------

    def execute(self, run: Run, app: App, random: Random, trouble: float) -> tuple[Outcome, ...]:
        """Run the steps, with the failures of a real application."""
        outcomes: list[Outcome] = []
        for step in run.steps:
            outcome = self._execute_step(run, step.op, step.payload.line, app, random, trouble)
            outcomes.append(outcome)
            if outcome.result in (Result.RETRY, Result.MAYBE):
                break
            if run.until_failure and outcome.result is Result.KO:
                break
        return tuple(outcomes)

    def _execute_step(  # noqa: PLR0913, PLR0917 - what a step needs
        self, run: Run, op: OpId | None, line: str, app: App, random: Random, trouble: float
    ) -> Outcome:
        # One random number decides between no trouble, a refused connection (`trouble`) and a timeout (half of that).
        luck = random.random()
        if luck < trouble:
            self.injected["application refused connection"] += 1
            return self._note(run, op, Outcome(Result.RETRY, "connection refused"), done=False)
        if line == "read":
            return Outcome(Result.OK, str(self.states.get(run.resource, app.start)))
        lost = luck < trouble * 1.5
        if lost and random.random() < 0.5:
            self.injected["application timed out without effect"] += 1
            return self._note(run, op, Outcome(Result.MAYBE, "timeout"), done=False)
        try:
            self.states[run.resource] = app.run(self.states.get(run.resource, app.start), line)
        except (RefusedError, ValueError, TypeError) as error:  # a hostile site's command may fit no type at all
            self.log.append(
                Execution(run.resource, op, run.replay, ok=False, partial=run.until_failure and not run.replay)
            )
            return self._note(run, op, Outcome(Result.KO, str(error)), done=False)
        self.log.append(Execution(run.resource, op, run.replay, ok=True, partial=run.until_failure and not run.replay))
        if lost:
            self.injected["application timed out after its effect"] += 1
            return self._note(run, op, Outcome(Result.MAYBE, "timeout"), done=True)
        return self._note(run, op, Outcome(Result.OK), done=True)

    def _note(self, run: Run, op: OpId | None, outcome: Outcome, *, done: bool) -> Outcome:
        if op is not None:
            self.attempted[run.resource, op] = done
            if done:
                self.ran.add((run.resource, op))
            elif outcome.result is Result.KO:
                self.refused.add((run.resource, op))
        return outcome
