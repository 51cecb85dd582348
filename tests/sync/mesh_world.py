"""Many meshes under one virtual clock, over a network that delays, loses and cuts. Deterministic for a seed."""

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from msgspec.structs import replace

from cheops.engine.events import PeerUp
from cheops.peers.heartbeat import Heartbeat, SavedMesh, SiteRecord, decode, encode
from cheops.peers.mesh import Mesh
from cheops.peers.probes import PeerEvent, Probe
from cheops.peers.settings import MeshSettings, Now

PERIOD_MS = 1_000.0
EPOCH_MS = 1_700_000_000_000.0


def entry(name: str, incarnation: str = "1") -> SiteRecord:
    return SiteRecord(name, incarnation, f"https://{name}.example:8079", version="1.0", services=(("image", ""),))


@dataclass
class Node:
    """A site: its mesh, its wall clock, and what it told its engine."""

    mesh: Mesh
    skew_ms: float = 0.0
    alive: bool = True
    events: list[tuple[float, PeerEvent]] = field(default_factory=list)
    up: dict[str, str | None] = field(default_factory=dict)


@dataclass
class World:
    seed: int = 1
    rtt_ms: Callable[[str, str], float] = lambda _a, _b: 20.0
    settings: MeshSettings = field(default_factory=MeshSettings)
    loss: float = 0.0
    encode_every: int = 1  # every so many messages are encoded and decoded, as a real transport does with all
    cut: Callable[[str, str], bool] = lambda _a, _b: False  # packets from one to the other are dropped
    refuse: Callable[[str, str], bool] = lambda _a, _b: False  # connections are refused at once
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        self.random = Random(self.seed)  # noqa: S311 - a simulation
        self.nodes: dict[str, Node] = {}
        self.probes: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()
        self.encoded = 0
        self.sent_bytes: Counter[str] = Counter()
        self.largest_bytes = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = count()
        self._packets = count()

    # -- sites -------------------------------------------------------------------------------------------

    def add(
        self,
        name: str,
        peers: Iterable[str] = (),
        *,
        incarnation: str = "1",
        saved: SavedMesh | None = None,
        skew_ms: float = 0.0,
    ) -> Node:
        urls = {peer: f"https://{peer}.example:8079" for peer in peers}
        events = self.nodes[name].events if name in self.nodes else []
        mesh = Mesh(entry(name, incarnation), urls, self._now(skew_ms), self.settings, saved)
        node = self.nodes[name] = Node(mesh, skew_ms, events=events)
        self._at(self.random.random() * PERIOD_MS, lambda: self._tick(name, node))
        return node

    def kill(self, name: str) -> None:
        self.nodes[name].alive = False

    def forget(self, here: str, site: str) -> list[PeerEvent]:
        events = self.mesh(here).forget(site, self.at(here))
        self._note(self.nodes[here], events)
        return events

    def admit(self, here: str, site: str) -> None:
        self._note(self.nodes[here], self.mesh(here).admit(site, self.at(here)))

    def mesh(self, name: str) -> Mesh:
        return self.nodes[name].mesh

    def at(self, name: str) -> Now:
        return self._now(self.nodes[name].skew_ms)

    def state(self, here: str, site: str) -> str:
        return self.mesh(here).state_of(site, self.at(here)).state.value

    def events(self, name: str, since_ms: float = 0.0) -> list[PeerEvent]:
        return [event for at_ms, event in self.nodes[name].events if at_ms >= since_ms]

    # -- time --------------------------------------------------------------------------------------------

    def run(self, periods: float) -> None:
        until_ms = self.now_ms + periods * PERIOD_MS
        gc.disable()  # a thousand catalogues make it slow, and there is hardly any garbage
        while self._queue and self._queue[0][0] <= until_ms:
            self.now_ms, _, action = heappop(self._queue)
            action()
        gc.enable()
        self.now_ms = until_ms

    def run_until(self, condition: Callable[[], bool], periods: int) -> int:
        """The number of periods after which it holds; fails if it does not in time."""
        for passed in range(periods):
            if condition():
                return passed
            self.run(1)
        assert condition(), f"not within {periods} periods"
        return periods

    def _now(self, skew_ms: float) -> Now:
        return Now(self.now_ms, EPOCH_MS + self.now_ms + skew_ms)

    def _at(self, delay_ms: float, action: Callable[[], None]) -> None:
        heappush(self._queue, (self.now_ms + delay_ms, next(self._order), action))

    # -- network -----------------------------------------------------------------------------------------

    def _tick(self, name: str, node: Node) -> None:
        if not node.alive or self.nodes[name] is not node:
            return
        probes, events = node.mesh.tick(self.at(name), self.random.randrange)
        self._note(node, events)
        for probe in probes:
            self._send(name, node, probe)
        self._at(max(node.mesh.wait_ms(self.at(name)), 1.0), lambda: self._tick(name, node))

    def _send(self, name: str, node: Node, probe: Probe) -> None:
        to = probe.to_url.removeprefix("https://").split(".example")[0]
        self.probes[name] += 1
        payload, half_ms = self._packed(name, probe.payload), self._delay_ms(name, to)
        if self.refuse(name, to) or to not in self.nodes or not self.nodes[to].alive:
            self._at(2 * half_ms, lambda: self._failed(name, node, probe))
        elif not self._lost(name, to):
            self._at(half_ms, lambda: self._arrive(name, node, to, probe, payload))

    def _arrive(self, name: str, node: Node, to: str, probe: Probe, payload: Heartbeat) -> None:
        peer = self.nodes[to]
        if not peer.alive:
            return
        self.answers[to] += 1
        answer, events = peer.mesh.received_probe(payload, self.at(to))
        self._note(peer, events)
        packed = self._packed(to, answer)
        if not self._lost(to, name):
            self._at(self._delay_ms(name, to), lambda: self._back(name, node, probe, packed))

    def _back(self, name: str, node: Node, probe: Probe, answer: Heartbeat) -> None:
        if node.alive and self.nodes[name] is node:
            self._note(node, node.mesh.probe_answered(probe.id, answer, self.at(name)))

    def _failed(self, name: str, node: Node, probe: Probe) -> None:
        if node.alive and self.nodes[name] is node:
            self._note(node, node.mesh.probe_failed(probe.id, self.at(name)))

    def _packed(self, sender: str, message: Heartbeat) -> Heartbeat:
        self.messages[sender] += 1
        if next(self._packets) % self.encode_every:
            return message
        data = encode(message)
        self.encoded += 1
        self.sent_bytes[sender] += len(data)
        self.largest_bytes = max(self.largest_bytes, len(data))
        return decode(data)

    @property
    def mean_bytes(self) -> float:
        return self.sent_bytes.total() / self.encoded

    def _lost(self, sender: str, receiver: str) -> bool:
        return self.cut(sender, receiver) or (self.loss > 0 and self.random.random() < self.loss)

    def _delay_ms(self, one: str, other: str) -> float:
        return self.rtt_ms(one, other) / 2

    def _note(self, node: Node, events: list[PeerEvent]) -> None:
        """Every event changes something, whatever the scenario."""
        for event in events:
            incarnation = event.incarnation if isinstance(event, PeerUp) else None
            assert node.up.get(event.peer) != incarnation, f"{event} says nothing new"
            node.up[event.peer] = incarnation
            node.events.append((self.now_ms, event))


def grown(world: World, sites: int) -> list[str]:
    """A mesh in which every site was started with one that was there before it."""
    names = [f"site{number:04}" for number in range(sites)]
    for number, name in enumerate(names):
        world.add(name, peers=[names[world.random.randrange(number)]] if number else [])
    return names


def settled(world: World, sites: int) -> list[str]:
    """A mesh that existed before: every site has kept the catalogue. Much cheaper than growing a large one."""
    names = [f"site{number:04}" for number in range(sites)]
    entries = {name: replace(entry(name), revision=1) for name in names}
    for name in names:
        world.add(name, saved=SavedMesh(entries[name], tuple(entries.values())))
    return names


def three(world: World) -> None:
    """Sites a, b and c, of which two know one other each."""
    world.add("a", peers=["b"])
    world.add("b")
    world.add("c", peers=["a"])
    world.run(5)


def groups(*parts: Iterable[str]) -> Callable[[str, str], bool]:
    """A cut into parts that do not hear each other."""
    part_of = {name: number for number, part in enumerate(parts) for name in part}
    return lambda one, other: part_of[one] != part_of[other]
