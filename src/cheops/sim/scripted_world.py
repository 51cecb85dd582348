"""A world without randomness: the engine's sites, where only what a test or a script requests happens.

The simulator (world.py) searches for faults at random; here a reader follows one course of events. A message waits in
`flights` until it is delivered, and a run ends at once unless it is held. `output` has one line for each thing that
happens, in order.

Invariant: after every public method, all effects that do not wait for a delivery or a held run have been carried out.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from cheops.engine import ledger
from cheops.engine.documents import Message
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
    Restart,
    Result,
    Run,
    Save,
    Send,
    Step,
    Tick,
)
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits, Settings
from cheops.engine.tombstones import origin_in
from cheops.log.causality import contains
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation
from cheops.sim.apps import App, RefusedError
from cheops.sim.node import Node
from cheops.sim.transcript import describe_answer, describe_message, describe_notice, describe_steps

TICK_MS = 100
_QUIET_MS = 10_000  # longer than the longest pause between two attempts to send (Limits.resend_most_ms)
_PATIENCE_MS = 600_000  # if messages still flow after ten minutes, two sites repeat themselves forever


class Trouble(Enum):
    """A fault of the next run of an application."""

    REFUSED = auto()
    TIMEOUT_AFTER = auto()  # the application did it, and the answer was lost
    TIMEOUT_BEFORE = auto()  # the command never reached the application


@dataclass
class Resource:
    """What a client knows about a resource: its application, sites and matrix."""

    name: str
    app: App
    sites: tuple[str, ...]
    matrix: Matrix


@dataclass(frozen=True)
class Flight:
    """A message on its way."""

    sender: str
    peer: str
    message: Message

    def __str__(self) -> str:
        return f"{self.sender} -> {self.peer}: {describe_message(self.message)}"


@dataclass
class Bench:
    """How the next runs at one site go."""

    paused: bool = False
    held: list[Run] = field(default_factory=list)
    trouble: deque[Trouble | None] = field(default_factory=deque)  # of the next runs; None: all is well


class ScriptedWorld:
    def __init__(self, limits: Limits = Limits(seal_after=3)) -> None:  # noqa: B008 - it is frozen
        self.now_ms = 1_000_000
        self.output: list[str] = []
        self.settings = Settings(limits=limits)
        self.nodes: dict[str, Node] = {}
        self.benches: dict[str, Bench] = {}
        self.resources: dict[str, Resource] = {}
        self.matrices: dict[str, Matrix] = {}
        self.flights: list[Flight] = []
        self.cut: set[tuple[str, str]] = set()  # directed links that are down
        self._up: dict[tuple[str, str], str | None] = {}
        self._pending: deque[tuple[str, Event]] = deque()

    # -- sites and links ---------------------------------------------------------------------------

    def add_site(self, name: str) -> None:
        self.nodes[name] = Node(name, self.settings)
        self.benches[name] = Bench()
        self.restart(name)

    def restart(self, name: str) -> None:
        self.take(name, self.nodes[name].start())
        self._sense()

    def crash(self, name: str) -> None:
        """Memory is lost, and what was on its way to the site; what it had sent is still on its way."""
        self.nodes[name].crash()
        self.benches[name] = Bench()
        self.flights = [flight for flight in self.flights if flight.peer != name]
        for link in [link for link in self._up if link[0] == name]:
            del self._up[link]
        self._sense()

    def lose_disk(self, name: str) -> None:
        self.crash(name)
        self.nodes[name].new_disk()
        self.nodes[name].states.clear()

    def set_cut(self, cut: set[tuple[str, str]]) -> None:
        """From now on these links are down; what is on its way there is lost."""
        self.cut = cut
        lost = [flight for flight in self.flights if (flight.sender, flight.peer) in cut]
        self.output += (f"lost: {flight}" for flight in lost)
        self.flights = [flight for flight in self.flights if flight not in lost]
        self._sense()

    def _sense(self) -> None:
        """Sites see each other by heartbeats, which need both directions."""
        for name, node in self.nodes.items():
            for other, peer in self.nodes.items():
                if name != other and node.site is not None:
                    cut = {(name, other), (other, name)} & self.cut
                    self._sense_one(name, other, peer.origin.incarnation if peer.site and not cut else None)

    def _sense_one(self, name: str, other: str, incarnation: str | None) -> None:
        if self._up.get((name, other)) != incarnation:
            self._up[name, other] = incarnation
            self.take(name, PeerUp(other, incarnation) if incarnation else PeerDown(other))

    # -- time and messages -------------------------------------------------------------------------

    def pass_time(self, duration_ms: int = TICK_MS) -> None:
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            self.now_ms = min(self.now_ms + TICK_MS, end_ms)
            for name in self.nodes:
                self.take(name, Tick())

    def deliver(self, flight: Flight) -> None:
        self.flights.remove(flight)
        self.take(flight.peer, Received(flight.sender, flight.message))

    def settle(self, report: Callable[[Flight], None]) -> None:
        """Deliver everything, and what follows from it, and let time pass, until nothing happens any more."""
        start_ms = quiet_since_ms = self.now_ms
        while self.now_ms < quiet_since_ms + _QUIET_MS:
            before = len(self.output)
            while self.flights:
                quiet_since_ms = self.now_ms
                report(self.flights[0])
                self.deliver(self.flights[0])
            self.pass_time()
            quiet_since_ms = self.now_ms if len(self.output) != before else quiet_since_ms
            if self.now_ms > start_ms + _PATIENCE_MS:
                raise RuntimeError(f"still messages after {_PATIENCE_MS // 1000} s: {self.flights}")

    # -- events and effects ------------------------------------------------------------------------

    def take(self, name: str, event: Event) -> None:
        """Pass an event to a site, and process what follows from it at that site."""
        self._pending.append((name, event))
        while self._pending:
            name, event = self._pending.popleft()
            node = self.nodes[name]
            if node.site is not None:
                for effect in node.site.step(event, node.now_ms(self.now_ms)):
                    self._carry_out(node, effect)

    def _carry_out(self, node: Node, effect: Effect) -> None:
        match effect:
            case Save():
                node.disk.write(effect)
                node.disk.sync()
            case Run():
                self._begin(node, effect)
            case Send():
                self._send(node.name, effect)
            case Answer():
                self.output.append(describe_answer(node.name, effect))
            case Fault():
                raise effect.error
            case Notify():
                self.output.append(describe_notice(node.name, effect))
            case Load():
                self._pending.append((node.name, node.loaded(effect.resource)))
            case Restart():
                self.output.append(f"{node.name} begins a new incarnation")
                self.crash(node.name)
                self.restart(node.name)
            case Enumerate():
                resources = {d.resource for d in node.disk.durable.values() if isinstance(d, Operation)}
                self._pending.append((node.name, Enumerated(effect.peer, tuple(sorted(resources)))))

    def _send(self, name: str, send: Send) -> None:
        peer = self.nodes.get(send.peer)
        if peer and peer.site and (name, send.peer) not in self.cut:
            self.flights.append(Flight(name, send.peer, send.message))

    # -- applications ------------------------------------------------------------------------------

    def _begin(self, node: Node, run: Run) -> None:
        bench = self.benches[node.name]
        if bench.paused:
            bench.held.append(run)
            self.output.append(f"{node.name} is about to run {describe_steps(run, ())}")
        else:
            self._pending.append((node.name, Ran(run.resource, run.n, self.execute(node.name, run))))

    def resume(self, name: str) -> None:
        bench = self.benches[name]
        held, bench.held, bench.paused = bench.held, [], False
        for run in held:
            self.take(name, Ran(run.resource, run.n, self.execute(name, run)))

    def execute(self, name: str, run: Run) -> tuple[Outcome, ...]:
        """Run on the application of a site; the engine does not get the outcome yet."""
        troubles = self.benches[name].trouble
        trouble = troubles.popleft() if troubles else None
        outcomes: list[Outcome] = []
        for step in run.steps:
            outcome = self._execute_step(name, run.resource, step, trouble)
            outcomes.append(outcome)
            stops = outcome.result in (Result.RETRY, Result.MAYBE)
            if stops or (run.until_failure and outcome.result is Result.KO):
                break
        verb = "replays" if run.replay else "runs"
        self.output.append(f"{name} {verb} {describe_steps(run, tuple(outcomes))}")
        return tuple(outcomes)

    def _execute_step(self, name: str, resource: str, step: Step, trouble: Trouble | None) -> Outcome:
        if trouble is Trouble.REFUSED:
            return Outcome(Result.RETRY, "connection refused")
        if trouble is Trouble.TIMEOUT_BEFORE:
            return Outcome(Result.MAYBE, "timeout")
        app, states = self.resources[resource].app, self.nodes[name].states
        state = states.get(resource, app.start)
        if step.payload.line == "read":
            return Outcome(Result.OK, str(state))
        try:
            states[resource] = app.run(state, step.payload.line)
        except (RefusedError, ValueError) as error:
            return Outcome(Result.KO, str(error))
        return Outcome(Result.MAYBE, "timeout") if trouble else Outcome(Result.OK)

    def declare(self, resource: Resource, *, plain: bool, parallel: bool) -> None:
        """Each resource has a type of its own, named like it, so that a script can vary types."""
        type_ = replace(resource.app.type, name=resource.name, parallel=parallel)
        if plain:
            type_ = replace(type_, reset=None, checkpoint=None, decompose=None, on_error=None)
        self.settings.types[resource.name] = type_
        self.resources[resource.name] = resource

    # -- looking -----------------------------------------------------------------------------------

    def is_news(self, flight: Flight) -> bool:
        """Whether a message brings more than replies and acknowledgements."""
        message, site = flight.message, self.nodes[flight.peer].site
        replica = self.replica(flight.peer, message.resource)
        known = replica.history.known if replica else {}
        new_ops = any(not contains(known, op.id) for op in message.ops)
        return new_ops or bool(message.wanted) or any(site and m.hash not in site.matrices for m in message.matrices)

    def is_known(self, name: str, resource: str) -> bool:
        return any(isinstance(d, Operation) for d in self.nodes[name].disk.of_resource(resource))

    def replica(self, name: str, resource: str) -> Replica | None:
        """As a site has it in memory, or else as it would load it: looking changes nothing."""
        node = self.nodes[name]
        if node.site is None:
            return None
        if resource in node.site.replicas or not self.is_known(name, resource):
            return node.site.replicas.get(resource)
        documents = node.disk.of_resource(resource)
        origin = origin_in(node.origin, documents, node.site.drops)
        replica = Replica(resource, origin, node.site.matrices.__getitem__, node.settings.limits)
        ledger.load(replica, documents)
        return replica
