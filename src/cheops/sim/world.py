"""A simulated world: nodes, a network, and one queue of scheduled events."""

import heapq
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count
from random import Random

from cheops.engine.documents import Key, Message, Started, Withdrawn, key_of, op_key
from cheops.engine.events import (
    Answer,
    Effect,
    Enumerate,
    Enumerated,
    Event,
    Fault,
    Load,
    Notify,
    Outcome,
    PeerDown,
    PeerUp,
    Ran,
    Received,
    Resolved,
    Restart,
    Retried,
    Run,
    Save,
    Send,
    Stage,
    StoreOutdated,
    Tick,
)
from cheops.engine.intake import future_objection, without
from cheops.engine.settings import Settings
from cheops.log.causality import Clock
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Reply, Status, Verdict, content_hash, precedence
from cheops.log.policy import Policy, SiteGroup
from cheops.peers.heartbeat import Watermark
from cheops.sim.apps import ALL_APPS, App, with_early_checkpoints
from cheops.sim.lives import Lives
from cheops.sim.membership import Membership
from cheops.sim.node import Backup, Node
from cheops.sim.workload import Profile, drawn_limits, vary_tombstones

_TICK_MS = 100  # as often as the agent
_RELOAD_MS = 200
_HEARTBEAT_MS = 250
_CLOCK_SKEW_MS = 30_000  # more than the clocks of sites differ, except where one is wrong for long


_MAX_RUNS_PER_OPERATION = 60  # at all sites together, replays included
_MAX_OPERATIONS = 10  # of a resource, per operation of a client in the whole history: the others are seals
_POLICY = Policy(sites=SiteGroup.INVOLVED, matrix=SiteGroup.INVOLVED)
_FINAL = (Status.OK, Status.KO, Status.SUPERSEDED)


class CrashError(Exception):
    """The node stopped between two effects."""


# When, and a number that keeps those of one moment in order. A tuple: the heap compares millions of them.
_ScheduledEvent = tuple[int, int, Callable[[], None]]


class World:
    """Carries out effects as an agent would, and injects faults."""

    def __init__(self, seed: int, names: tuple[str, ...], profile: Profile) -> None:
        self.random = Random(seed)  # noqa: S311 - repeatable is the point
        self.profile = profile
        self.now_ms = 1_000_000
        self.injected: Counter[str] = Counter()
        self.story: list[str] = []
        # The final statuses that clients got, by resource, operation and site; and the sites that replied OK.
        self.final_statuses: dict[str, dict[tuple[OpId | None, str], list[Status]]] = {}
        self.succeeded: set[tuple[str, OpId | None, str]] = set()
        self.acknowledged: dict[str, set[OpId]] = {}
        self.decided: dict[str, dict[OpId, Operation]] = {}
        # All that were ever stored. A site that joins after a checkpoint does not get the matrix of what that holds, so
        # the one on a disk that is lost later may be the last.
        self.matrices: dict[str, Matrix] = {}
        self.variants: dict[tuple[str, OpId], dict[int, Operation]] = {}  # a site may give an id twice
        self.replaced: set[str] = set()  # sites whose disk was replaced, while their application may have been kept
        self.restored: set[str] = set()  # those of them whose disk was an old copy, or that took operations back
        self.denied: set[tuple[str, OpId | None, str]] = set()  # answers SUPERSEDED after a site had replied OK
        self.given_twice: set[tuple[str, OpId]] = set()
        self.withdrawn: dict[tuple[str, OpId, int], Withdrawn] = {}
        self.recipients: dict[str, set[str]] = {}  # resource → sites that ever got a message about it
        self.documents_sent: Counter[str] = Counter()  # by resource
        self.documents_taken: Counter[str] = Counter()  # from other sites, by resource
        self.notices: list[tuple[str, Notify]] = []
        self.resolved: set[tuple[str, str, OpId]] = set()
        self.apps: dict[str, App] = {}
        self.marks: dict[tuple[str, str], Watermark] = {}  # what each site last heard of the store of another
        self.cut: set[tuple[str, str]] = set()  # directed links that are down
        self.calm = False
        self.status_problems: list[str] = []  # what a status said that was not true: see status_checker.py
        self.before_departure: Callable[[Node, Send], None] = lambda _sender, _send: None
        self.after_arrival: Callable[[str, Send], None] = lambda _sender, _send: None
        self._queue: list[_ScheduledEvent] = []
        self._numbers = count()
        # Drawn apart from the rest, so that a seed with other limits gives the history that it always gave.
        self._limits = drawn_limits(Random(f"limits {seed}"), profile)  # noqa: S311 - repeatable is the point
        settings = self.settings(profile)
        self.nodes = {name: Node(name, settings) for name in names}
        if profile.tombstones_vary:
            vary_tombstones(self.nodes.values(), Random(f"tombstones {seed}"))  # noqa: S311 - likewise
        self.membership = Membership(self)
        self.lives = Lives(self, Random(f"lives {seed}"))  # noqa: S311 - likewise
        self._up: dict[tuple[str, str], str | None] = {}
        for number, name in enumerate(names):
            self.restart(name)
            # Offsets, so that sites do not act in lockstep: then some interleavings would never occur.
            self.after(number * 7, self._ticker(name))
            self.after(number * 11, self._heart(name))

    def settings(self, profile: Profile) -> Settings:
        """Of every site. Limits are low, so that unloading, seals and parking happen in a history of seconds."""
        types = {name: with_early_checkpoints(ALL_APPS[name].type) for name in profile.apps}
        if profile.policed:
            types = {name: replace(type_, policy=_POLICY) for name, type_ in types.items()}
        return Settings(types, self._limits)

    # -- time ----------------------------------------------------------------------------------------

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self.now_ms + max(0, delay_ms), next(self._numbers), what))

    def run_until(self, end_ms: int) -> None:
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, what = heapq.heappop(self._queue)
            what()
        self.now_ms = max(self.now_ms, end_ms)

    def record(self, line: str) -> None:
        self.story.append(f"{self.now_ms - 1_000_000:>7} ms  {line}")

    def inject(self, kind: str, line: str = "") -> None:
        self.injected[kind] += 1
        if line:
            self.record(line)

    # -- nodes ---------------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        node = self.nodes[name]
        if node.site is None:
            self.deliver(name, node.start())
            self.membership.tell(name)

    def crash(self, name: str, down_ms: int, why: str = "") -> None:
        node = self.nodes[name]
        if node.site is not None:
            node.crash()
            self.record(f"{name} crashes {why}".rstrip())
            for key in [key for key in self._up if key[0] == name]:
                del self._up[key]
            self.after(down_ms, lambda: self.restart(name))

    def lose_disk(self, name: str) -> None:
        """The disk of a node is lost for good, and its application with it."""
        node = self.nodes[name]
        node.crash()
        node.new_disk()
        node.states.clear()
        node.log.clear()
        self.inject("rebirth", f"{name} comes back with an empty disk")
        self._begin_again(name)

    def _begin_again(self, name: str) -> None:
        """Start a node whose disk is another one now."""
        self.replaced.add(name)
        for key in [key for key in self._up if key[0] == name]:
            del self._up[key]
        self.restart(name)

    def restore_backup(self, name: str, backup: Backup, *, with_application: bool) -> None:
        """The disk of a node is replaced by an old copy, and perhaps its application."""
        node = self.nodes[name]
        node.crash()
        node.restore(backup, with_application=with_application)
        what = "with its application" if with_application else "but not its application"
        self.restored.add(name)
        self.inject("restored backup", f"{name} is restored from a backup, {what}")
        self._begin_again(name)

    def lose_store(self, name: str) -> None:
        """The disk of a node is lost, and its application goes on with what it has."""
        node = self.nodes[name]
        node.crash()
        node.new_disk()
        self.inject("lost store, application kept", f"{name} comes back with an empty disk, its application kept")
        self._begin_again(name)

    def _ticker(self, name: str) -> Callable[[], None]:
        def tick() -> None:
            self.deliver(name, Tick())
            self._sweep(name)
            self.after(_TICK_MS, tick)

        return tick

    def _sweep(self, name: str) -> None:
        """As an agent does from time to time: find what may be dropped."""
        node = self.nodes[name]
        if due := node.due(self.now_ms):
            self.deliver(name, Enumerated("", due))

    def _heart(self, name: str) -> Callable[[], None]:
        def beat() -> None:
            for other in self.nodes:
                if other != name and self.nodes[name].site:
                    self._sense(name, other)
            self.after(_HEARTBEAT_MS, beat)

        return beat

    def reaches(self, name: str, other: str) -> bool:
        if self.nodes[other].site is None or {(name, other), (other, name)} & self.cut:
            return False
        return not self.membership.separates(name, other)

    def _sense(self, name: str, other: str) -> None:
        if self.reaches(name, other):
            self._return_mark(name, self.nodes[other])
        now = self.nodes[other].origin.incarnation if self.reaches(name, other) else None
        if self._up.get((name, other)) != now:
            self._up[name, other] = now
            self.deliver(name, PeerUp(other, now) if now else PeerDown(other))

    def last_sites(self, resource: str) -> tuple[str, ...]:
        """The newest list of sites that was ever decided."""
        lists = [op for op in self.decided[resource].values() if op.sites and op.verdict is Verdict.OK]
        newest = max(lists, key=lambda op: op.stamp, default=None)
        return (newest.sites or ()) if newest else ()

    def _return_mark(self, name: str, other: Node) -> None:
        """A site tells another one with each heartbeat what it last heard of its store (cheops.peers.watermark)."""
        mark = self.marks.get((name, other.name))
        if mark is not None and other.site is not None and other.has_lost(mark):
            self.inject("old copy seen by a heartbeat")
            why = f"the store of this site is an old copy: {name} has seen a later one"
            self.deliver(other.name, StoreOutdated(why, mark.clock, later=mark.incarnation))
        if other.site is not None:
            self.marks[name, other.name] = other.mark()

    def deliver(self, name: str, event: Event) -> None:
        """Pass an event to a node and carry out its effects, unless the node crashes between two of them."""
        node = self.nodes[name]
        if node.site is None:
            return
        effects = node.site.step(event, node.now_ms(self.now_ms))
        try:
            for effect in effects:
                self._maybe_crash("crash between effects")
                self._carry_out(node, effect)
        except CrashError:
            self.crash(name, self.random.randint(50, 2_000), "between two effects")

    def _maybe_crash(self, kind: str) -> None:
        if not self.calm and self.random.random() < self.profile.crash_between_effects:
            self.inject(kind)
            raise CrashError

    # -- effects -------------------------------------------------------------------------------------

    def _carry_out(self, node: Node, effect: Effect) -> None:
        match effect:
            case Save():
                self.prepare_save(node, effect)
                node.disk.write(effect)
                self._maybe_crash("unsynced write lost")
                self.lives.note_save(node, effect)
                node.disk.sync()
                self.note_saved(node, effect)
            case Run():
                self.begin_run(node, effect)
            case Send():
                self.send(node, effect)
            case Answer():
                self.note_answer(node, effect)
            case Fault():
                raise effect.error
            case Restart():
                self.record(f"{node.name}: {effect.why}")
                self.crash(node.name, self.random.randint(5, 500), "to begin a new incarnation")
            case Notify():
                self.notices.append((node.name, effect))
            case Load():
                self._soon(node, lambda: self._load(node, effect.resource))
            case Enumerate():
                resources = tuple(sorted({d.resource for d in node.disk.durable.values() if isinstance(d, Operation)}))
                self._soon(node, lambda: self.deliver(node.name, Enumerated(effect.peer, resources)))

    def _load(self, node: Node, resource: str) -> None:
        """As an agent does: a resource with damaged documents is loaded once they are restored."""
        restored = [self._restore(node, key) for key in node.disk.damaged(resource)]
        if all(restored):
            self.deliver(node.name, node.loaded(resource))
        else:
            life = node.life
            self.after(_RELOAD_MS, lambda: self._load(node, resource) if node.life == life else None)

    def _restore(self, node: Node, key: Key) -> bool:
        """Fetch a document from a site that has it; without one, the operator restores a backup."""
        others = [other for other in self.nodes.values() if other is not node]
        having = [other for other in others if key in other.disk.durable and key not in other.disk.rotten]
        reached = [other for other in having if self.reaches(node.name, other.name)]
        if not having:
            self.inject("operator restored a damaged document")
            node.disk.restore(key, node.disk.rotten[key])
        elif reached:
            self.inject("damaged document fetched again")
            node.disk.restore(key, reached[0].disk.durable[key])
        return bool(reached or not having)

    def prepare_save(self, node: Node, save: Save) -> None:
        """What a store does to documents before it writes them; nothing here."""

    def _soon(self, node: Node, what: Callable[[], None]) -> None:
        life = node.life
        self.after(self.random.randint(0, 2), lambda: what() if node.life == life else None)

    def note_saved(self, node: Node, save: Save) -> None:
        """Something is durable at a node."""
        for document in save.documents:
            if isinstance(document, Operation | Reply) and document.origin != node.origin:
                self.documents_taken[document.resource] += 1
            elif isinstance(document, Matrix):
                self.matrices[document.hash] = document
            elif isinstance(document, Started) and document.op:
                node.note_attempt(document.resource, document.op, document.n)
        self._note_decided(save)
        self._note_withdrawn(node, save)
        self._note_success(save)

    def _note_success(self, save: Save) -> None:
        for document in save.documents:
            if isinstance(document, Reply) and document.status is Status.OK and not document.replay:
                self.succeeded.add((document.resource, document.op, document.origin.site))

    def _note_withdrawn(self, node: Node, save: Save) -> None:
        """An operation that was withdrawn is acknowledged as the one that it was issued again as, if any."""
        for document in (*save.documents, *self._withdrawn_at_once(save)):
            if isinstance(document, Withdrawn):
                self.withdrawn[document.resource, document.op.id, content_hash(document.op)] = document
                self._take_out(document.op)
                node.forget_runs(document.op)

    def _withdrawn_at_once(self, save: Save) -> Iterator[Withdrawn]:
        """What had no effect is withdrawn, and need not be issued again. Where no other site must be heard before that,
        both happen in one step: then the store never holds it as withdrawn."""
        gone = set(save.forget)
        is_usual = not any(key[0] == "withdrawn" for key in gone)
        ops = [] if is_usual else [op for held in self.decided.values() for op in held.values()]
        for kept in (Withdrawn(op.resource, op) for op in ops if op_key(op.resource, op.id) in gone):
            if key_of(kept) in gone:
                yield kept

    def _take_out(self, op: Operation) -> None:
        contents = self.variants.get((op.resource, op.id), {})
        contents.pop(content_hash(op), None)
        self._choose(op, contents)

    def _choose(self, op: Operation, contents: dict[int, Operation]) -> None:
        """Of several operations with one id, the earliest counts that its site has not taken back."""
        decided = self.decided.setdefault(op.resource, {})
        decided.pop(op.id, None)
        if contents:
            decided[op.id] = min(contents.values(), key=precedence)

    def _note_decided(self, save: Save) -> None:
        for document in save.documents:
            if isinstance(document, Operation) and document.verdict is not None:
                contents = self.variants.setdefault((document.resource, document.id), {})
                contents[content_hash(document)] = document
                self._choose(document, contents)
                if len(contents) > 1:
                    self.given_twice.add((document.resource, document.id))
                decided = self.decided[document.resource]
                if len(decided) > _MAX_OPERATIONS * self.profile.operations:
                    raise RuntimeError(f"{document.resource} gets operation after operation by itself")

    def begin_run(self, node: Node, run: Run) -> None:
        life = node.life
        for step in run.steps:  # the operator is asked about this attempt, not about an earlier one
            if step.op is not None:
                node.attempted[run.resource, step.op] = False

        def ended(outcomes: tuple[object, ...]) -> None:
            if node.life == life:
                self.deliver(node.name, Ran(run.resource, run.n, outcomes))  # type: ignore[arg-type]

        def execute() -> None:
            if node.life == life:
                trouble = 0 if self.calm else self.profile.trouble
                self.check_rest(node)
                outcomes = self.execute(node, run, trouble)
                self.after(self.random.randint(0, 10), lambda: ended(outcomes))

        self.after(self.random.randint(1, 15), execute)

    def execute(self, node: Node, run: Run, trouble: float) -> tuple[Outcome, ...]:
        return node.execute(run, self.apps[run.resource], self.random, trouble)

    def check_rest(self, node: Node) -> None:
        if len(node.log) > _MAX_RUNS_PER_OPERATION * self.profile.operations:
            raise RuntimeError(f"{node.name} runs commands without end, and does not come to rest")

    def note_answer(self, node: Node, answer: Answer) -> None:
        if answer.stage in (Stage.DECIDED, Stage.SITE) and answer.status in _FINAL:
            resource = answer.request.rpartition("#")[0]
            about = (answer.op, answer.site)
            self.final_statuses.setdefault(resource, {}).setdefault(about, []).append(answer.status)
            if answer.status is Status.SUPERSEDED and (resource, *about) in self.succeeded:
                self.denied.add((resource, *about))
        if answer.stage is Stage.DECIDED and answer.op and answer.status is not Status.KO:
            resource = answer.request.rpartition("#")[0]
            self.acknowledged.setdefault(resource, set()).add(answer.op)
            self.record(f"{node.name} answers {answer.op} {answer.status}")

    def send(self, node: Node, send: Send) -> None:
        self.before_departure(node, send)
        self.documents_sent[send.message.resource] += len(send.message.ops) + len(send.message.replies)
        self.transmit(lambda: self._arrive(node.name, send))

    def transmit(self, arrive: Callable[[], None]) -> None:
        """Have something arrive later: once, twice, or never."""
        profile = self.profile
        copies = 1
        if not self.calm and self.random.random() < profile.loss:
            self.inject("message lost")
            copies = 0
        elif not self.calm and self.random.random() < profile.duplication:
            self.inject("message duplicated")
            copies = 2
        for _ in range(copies):
            delay_ms = self.random.randint(*profile.delay_ms)
            if not self.calm and self.random.random() < profile.long_delay:
                self.inject("message delayed and overtaken")
                delay_ms += self.random.randint(200, 3_000)
            self.after(delay_ms, arrive)

    def is_cut(self, sender: str, receiver: str) -> bool:
        """Whether nothing gets from the one to the other now."""
        if (sender, receiver) in self.cut or self.membership.separates(sender, receiver):
            self.injected["message cut off"] += 1
            return True
        return False

    def _arrive(self, sender: str, send: Send) -> None:
        if not self.is_cut(sender, send.peer):
            self.recipients.setdefault(send.message.resource, set()).add(send.peer)
            message = self._without_future(send.peer, send.message) if self.profile.wrong_clocks else send.message
            self.deliver(send.peer, Received(sender, message))
            self.after_arrival(sender, send)

    def _without_future(self, receiver: str, message: Message) -> Message:
        """As agents do where sites have identities: what is stamped far ahead is refused."""
        now_ms = self.nodes[receiver].now_ms(self.now_ms)
        objections = {id(op): future_objection(op, now_ms, _CLOCK_SKEW_MS) for op in message.ops}
        bad = {id_: objection for id_, objection in objections.items() if objection}
        self.injected["operation of the future refused"] += len(bad)
        return without(message, bad) if bad else message

    def cure_clocks(self) -> None:
        """Act as the operator, or the agent: a site whose stamps are ahead begins a new incarnation."""
        for name, node in self.nodes.items():
            right_ms = node.now_ms(self.now_ms)
            if self.profile.wrong_clocks and node.site and node.site.clock.time_ms > right_ms + _CLOCK_SKEW_MS:
                self.inject("wrong stamps cured")
                self.replaced.add(name)
                self.restored.add(name)
                self.deliver(name, StoreOutdated("its clock was wrong", Clock(right_ms), old_copy=False))

    # -- the operator --------------------------------------------------------------------------------

    def resolve_unknown(self) -> None:
        """Act as the operator: resolve what is UNKNOWN by what really happened, and retry where a remedy failed."""
        for name, node in self.nodes.items():
            for resource, replica in list(node.site.replicas.items() if node.site else ()):
                if replica.applied.unknown is not None:
                    happened = node.attempted.get((resource, replica.applied.unknown.id), False)
                    self.resolved.add((name, resource, replica.applied.unknown.id))
                    self.inject("operator resolved an unknown")
                    self.deliver(name, Resolved(resource, replica.applied.unknown.id, happened))
                elif replica.type.on_error and replica.applied.failed.keys() - set(replica.applied.troubled):
                    # The remedy timed out, or the site stopped during it: DIVERGED, until `repair --retry`.
                    self.inject("operator retried a failure")
                    self.deliver(name, Retried(resource))


def ever_listed_sites(ops: dict[OpId, Operation]) -> set[str]:
    """Every site that was ever on the list of a resource."""
    return {site for op in ops.values() if op.sites for site in op.sites}
