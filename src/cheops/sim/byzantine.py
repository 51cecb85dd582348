"""A world in which one site is hostile: it has its own key, everything that it ever heard, and a mutator.

The hostile site runs the production engine, so it takes part like any other, and clients use it. What it sends goes
through the mutator (mutator.py), which also sends messages of its own. All messages go as bytes (wire.py). When the
faults end, an honest site forgets the hostile one.
"""

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from random import Random

from msgspec import structs

from cheops.engine.documents import Message, Proof
from cheops.engine.events import (
    Answer,
    Event,
    Outcome,
    Received,
    Result,
    Run,
    Save,
    Send,
    SitesRemoved,
    Stage,
    Submitted,
)
from cheops.engine.settings import Settings
from cheops.errors import CheopsError
from cheops.log import names
from cheops.log.operation import Command, Operation, OpId
from cheops.log.policy import Policy
from cheops.peers.heartbeat import MembershipRecord
from cheops.sim.apps import APPS, COUNTER, App
from cheops.sim.forger import Forger
from cheops.sim.heartbeats import HeartbeatMutator, Keys, Meshes
from cheops.sim.mutator import Mutator
from cheops.sim.node import Node
from cheops.sim.statements import StatementCollector
from cheops.sim.wire import Wire
from cheops.sim.workload import Profile
from cheops.sim.world import World
from cheops.store.codec import content_of

FORGOTTEN_WITHIN_MS = 5_000
_ASKS = 0.25  # of the histories in which it asks for statements
_ACT_MS = 150  # how often the hostile site sends something by itself


def app_of(rtype: str) -> App:
    """The application of a type. The site that makes a resource chooses its type, and the hostile one any type."""
    return APPS.get(rtype) or COUNTER


class ByzantineWorld(World):
    """One site is hostile. What it says of itself is no fact of the history; what honest sites keep of it is."""

    def __init__(self, seed: int, sites: tuple[str, ...], profile: Profile) -> None:
        self.hostile = sites[seed % len(sites)]
        self.honest = tuple(name for name in sites if name != self.hostile)
        # Even seeds: only the site that made a resource may change its list of sites and its matrix.
        self._restricted = seed % 2 == 0
        self.wire = Wire(sites, self.wall_ms, self._member_of, self._report_unknown)
        self.silenced = False
        # Every content that an honest site has saved of an operation, by its hash.
        self.contents: dict[str, dict[OpId, dict[bytes, Operation]]] = {}
        self.made: dict[tuple[str, OpId], bytes] = {}  # the hash of each operation that an honest site made
        # Sites that a content which does not stand names, where every site may name sites.
        self.named: dict[str, set[str]] = {}
        self.meshes: Meshes | None = None
        self.open_requests: set[str] = set()  # of clients at honest sites after the end of the hostile one
        self.late: list[str] = []  # honest sites that the decision did not reach in time
        super().__init__(seed, sites, profile)
        draw = Random(f"mutator {seed}")  # noqa: S311 - repeatable is the point
        forger = Forger(self.nodes[self.hostile], self.wire, self.honest, draw, lambda: self.wall_ms(self.hostile))
        # Drawn apart from the rest, so that a seed without this tactic gives the history that it always gave.
        apart = Random(f"statements {seed}")  # noqa: S311 - repeatable is the point
        asks = apart.random() < _ASKS or "statements" in profile.tactics
        collector = StatementCollector(self.nodes[self.hostile], forger, apart) if asks else None
        self.mutator = Mutator(self.hostile, self.honest, forger, self.wire, draw, profile, collector)
        # The first honest site has the key of the authority, which decides about sites.
        keys = {name: Keys(name, sites, may_decide=name == self.honest[0]) for name in sites}
        self.heartbeat_mutator = HeartbeatMutator(keys[self.hostile], self.honest, draw, profile)
        self.meshes = Meshes(self, keys, self.hostile, self.heartbeat_mutator)
        tactics = (*self.mutator.tactics, *self.heartbeat_mutator.tactics)
        self.record(f"{self.hostile} is hostile: {', '.join(tactics)}")
        self.after(_ACT_MS, self._act)

    def settings(self, profile: Profile) -> Settings:
        settings = super().settings(profile)
        if not self._restricted:
            return settings
        types = {name: replace(type_, policy=Policy()) for name, type_ in settings.types.items()}
        return replace(settings, types=types, unknown_policy=Policy())

    def execute(self, node: Node, run: Run, trouble: float) -> tuple[Outcome, ...]:
        """As the backend of commands does, which looks at the id before it runs anything."""
        if problem := names.command_problem(run.resource):
            self.injected["command refused"] += 1
            return (Outcome(Result.KO, problem, refused=True),) * len(run.steps)
        done = node.execute(run, app_of(run.rtype), self.random, trouble)
        if any(step.op is None for step in run.steps):  # what reads the state prints that
            return done
        # Longer than a hash, so that it stays at its site.
        output = f"changed at {node.name} by its application, {self.now_ms} ms after the start"
        return tuple(structs.replace(one, output=output) if one == Outcome(Result.OK) else one for one in done)

    # -- what counts -----------------------------------------------------------------------------------

    def deliver(self, name: str, event: Event) -> None:
        if name != self.hostile:
            super().deliver(name, event)
            return
        try:
            super().deliver(name, event)
        except Exception:  # whatever it is, it harms the hostile site only
            self.inject("the engine of the hostile site failed")
            self.crash(name, 500)

    def prepare_save(self, node: Node, save: Save) -> None:
        self.wire.sign(node, save)

    def note_saved(self, node: Node, save: Save) -> None:
        if node.name == self.hostile:
            return
        super().note_saved(node, save)
        for document in save.documents:
            if isinstance(document, Proof) and not self._restricted:
                for op in document.operations:
                    self.named.setdefault(document.resource, set()).update(op.sites or ())
            if isinstance(document, Operation) and document.verdict is not None:
                of_id = self.contents.setdefault(document.resource, {}).setdefault(document.id, {})
                digest = sha256(content_of(document)).digest()
                of_id[digest] = document
                if document.origin == node.origin:
                    self.made.setdefault((document.resource, document.id), digest)

    def note_answer(self, node: Node, answer: Answer) -> None:
        if node.name != self.hostile:
            super().note_answer(node, answer)
            if answer.stage is Stage.DECIDED:
                self.open_requests.discard(answer.request)

    # -- messages --------------------------------------------------------------------------------------

    def send(self, node: Node, send: Send) -> None:
        if node.name == self.hostile:
            self._send_mutated(lambda: self.mutator.outgoing(send.peer, send.message))
            return
        body = self.wire.pack(node.name, send.message, to=send.peer)
        if send.peer == self.hostile:
            self.mutator.overhear(self.wire.with_report(node.name, send.message))
        self.transmit(lambda: self._arrive_packed(node.name, send.peer, body, send.message))

    def _send_mutated(self, produce: Callable[[], list[tuple[str, bytes]]]) -> None:
        if self.silenced:
            return
        for peer, body in produce():
            self.transmit(lambda peer=peer, body=body: self._arrive_packed(self.hostile, peer, body))  # type: ignore[misc]
        self.injected += self.mutator.take_injected()

    def _act(self) -> None:
        if self.nodes[self.hostile].site is not None:
            self._send_mutated(self.mutator.invent)
        if not self.silenced:
            self.after(_ACT_MS, self._act)

    def _arrive_packed(self, sender: str, receiver: str, body: bytes, message: Message | None = None) -> None:
        node = self.nodes.get(receiver)  # a list of sites may name one that does not exist
        if node is None or self.is_cut(sender, receiver) or node.site is None or self._is_forgotten(receiver, sender):
            return
        if message is not None and (message.ops or message.replies or message.snapshot):
            self.recipients.setdefault(message.resource, set()).add(receiver)
        try:
            messages = self.wire.unpack(node, sender, body)
        except CheopsError as error:
            if sender != self.hostile:
                raise
            self.injected[f"body refused ({type(error).__name__})"] += 1
            return
        for one in messages:
            self.deliver(receiver, Received(sender, one))

    def _report_unknown(self, receiver: str, sender: str) -> None:
        body = self.wire.pack(receiver)
        self.transmit(lambda: self._arrive_packed(receiver, sender, body))

    # -- membership ------------------------------------------------------------------------------------

    def restart(self, name: str) -> None:
        was_down = self.nodes[name].site is None
        if was_down:
            self.wire.restart(name)
        super().restart(name)
        if was_down and self.meshes is not None:
            self.meshes.restart(name)
            self.membership_changed(name)

    def reaches(self, name: str, other: str) -> bool:
        return super().reaches(name, other) and not self._is_forgotten(name, other)

    def is_running(self, site: str) -> bool:
        return self.nodes[site].site is not None

    def wall_ms(self, site: str) -> int:
        return self.nodes[site].now_ms(self.now_ms)

    def membership_changed(self, site: str) -> None:
        """As an agent does: what its mesh knows to be forgotten is gone for its engine."""
        node = self.nodes[site]
        if node.site is not None and self.meshes is not None and set(self.meshes[site].forgotten) != node.site.gone:
            self.deliver(site, SitesRemoved(self.meshes[site].forgotten))

    def _is_forgotten(self, here: str, site: str) -> bool:
        member = self._member_of(here, site)
        return member is not None and member.forgotten

    def _member_of(self, here: str, site: str) -> MembershipRecord | None:
        return self.meshes[here].member_of(site) if self.meshes is not None else None

    def silence(self) -> None:
        """An honest site decides to forget the hostile one, which goes on for a moment."""
        assert self.meshes is not None  # noqa: S101 - set by the constructor
        here = self.honest[0]
        self.record(f"{here} forgets {self.hostile}")
        self.meshes.forget_hostile(here)
        self.run_until(self.now_ms + FORGOTTEN_WITHIN_MS)
        self.silenced = True
        self.injected += self.heartbeat_mutator.injected
        self.late = [name for name in self.honest if not self._is_forgotten(name, self.hostile)]

    def write_everywhere(self) -> None:
        """Clients write once more at every honest site: nothing that the hostile one left behind may prevent it."""
        for resource, app in sorted(self.apps.items()):
            for name in self.honest:
                replica = self.nodes[name].replica(resource)
                if replica is None or name not in replica.history.site_list:
                    continue
                if any(op.rtype != app.name for op in replica.history.ops.values()):
                    continue  # the hostile site took the name for another type: clients are refused, with the reason
                type_, line = app.invent(self.random)
                request = f"{resource}#last-{name}"
                self.open_requests.add(request)
                self.record(f"{name} gets {type_} {line!r} for {resource}")
                self.deliver(name, Submitted(request, resource, type_, Command(line), rtype=app.name))
