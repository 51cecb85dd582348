"""A world of up to a thousand sites: the production engine at each, and a production mesh instead of a global view.

Sites lie in regions. Links within a region are fast, those between regions slower, and one region in ten is reached by
satellite. Whole regions are cut off, sites crash, join and are forgotten. What is sent is counted by resource: which
of them met a fault is known, so the budget of all others is that of a mesh without faults.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from random import Random

from cheops.engine.events import Send, SitesRemoved
from cheops.engine.settings import Limits, Settings
from cheops.peers.links import packed, unpack
from cheops.peers.origin_tables import OriginTables
from cheops.peers.probes import PeerEvent
from cheops.sim.apps import ALL_APPS
from cheops.sim.large_mesh import Connections, MeshNetwork
from cheops.sim.membership import Membership
from cheops.sim.node import Node
from cheops.sim.workload import Profile
from cheops.sim.world import World

REGION = 25  # sites
_SLOW, _SLOW_OF = 1, 10  # which regions of so many are reached by satellite
_NEAR_MS, _FAR_MS, _SATELLITE_MS = (1, 8), (10, 60), (280, 330)  # one way
_TICK_MS = 100
_WEIGHED = 300  # resources, whose messages are encoded: to do so with all takes too long


@dataclass(slots=True)
class Sent:
    """About one resource."""

    messages: int = 0
    bytes: int = 0
    is_weighed: bool = False


@dataclass
class MembershipChange:
    """A site that joins or is forgotten, and when all sites knew it that could."""

    site: str
    joins: bool
    at_ms: int
    known_ms: int | None = None  # after
    missing: list[str] = field(default_factory=list)


class _MeshMembership(Membership):
    """What the mesh of each site knows of decisions."""

    def __init__(self, world: "LargeWorld") -> None:
        self._large = world

    def separates(self, one: str, other: str) -> bool:
        meshes = self._large.meshes
        return meshes[one].is_site_forgotten(other) or meshes[other].is_site_forgotten(one)

    def tell(self, name: str) -> None:
        world = self._large
        if name in world.meshes and (forgotten := world.meshes[name].forgotten):
            world.deliver(name, SitesRemoved(forgotten, frozenset()))

    def heal(self) -> None:
        """What is forgotten stays so."""


class LargeWorld(World):
    def __init__(self, seed: int, names: tuple[str, ...], profile: Profile) -> None:
        self._delays = Random(f"delays {seed}")  # noqa: S311 - repeatable is the point
        self.connections = Connections()
        self.meshes = MeshNetwork(self, seed, self.connections)
        self.sent: dict[str, Sent] = {}
        self._origin_tables: defaultdict[tuple[str, str], OriginTables] = defaultdict(
            OriginTables
        )  # of a site for a peer
        self.region: dict[str, int] = {name: place // REGION for place, name in enumerate(names)}
        self.side: dict[str, object] = {}  # sites on different sides of a cut hear nothing of each other
        self.disturbed: dict[str, float] = {}  # sites that met a fault, or have joined, and until when
        self.changes: list[MembershipChange] = []
        self.forgotten: set[str] = set()
        self.uncounted: set[str] = set()  # resources of the time before
        self.events = 0
        super().__init__(seed, names, profile)
        self.membership = _MeshMembership(self)
        saved = self.meshes.known_before(names)
        for name in names:
            self.nodes[name].skew_ms = self._delays.randint(-profile.skew_ms, profile.skew_ms)
            self.meshes.start(name, saved)
            # They have shared resources before, and have saved that.
            self.meshes.note_interest(name, (other for other in names if self.region[other] == self.region[name]))

    def settings(self, profile: Profile) -> Settings:
        """As in production, except that fewer resources stay in memory: all sites share that of one machine."""
        return Settings({name: ALL_APPS[name].type for name in profile.apps}, Limits(resident=32, parked=32))

    def after(self, delay_ms: int, what: Callable[[], None]) -> None:
        self.events += 1
        super().after(delay_ms, what)

    # -- sites -----------------------------------------------------------------------------------------

    def _heart(self, name: str) -> Callable[[], None]:
        """The meshes have hearts of their own."""
        del name
        return lambda: None

    def _sweep(self, name: str) -> None:
        """Nothing is dropped in a history of a minute: deleted resources are remembered for a day."""

    def add(self, name: str, region: int, peer: str) -> None:
        """A site joins the mesh: its configuration names one other site."""
        self.region[name] = region
        self.nodes[name] = Node(name, self.settings(self.profile))
        self.restart(name)
        self.after(0, self._ticker(name))
        self.meshes.start(name, peers=(peer,))
        self.disturbed[name] = self.now_ms
        self._watch(MembershipChange(name, joins=True, at_ms=self.now_ms))

    def forget(self, name: str, here: str) -> None:
        self.forgotten.add(name)
        self.meshes.forget(here, name)
        self._watch(MembershipChange(name, joins=False, at_ms=self.now_ms))

    def restart(self, name: str) -> None:
        was_down = self.nodes[name].site is None
        super().restart(name)
        if was_down and name in self.meshes:
            self.meshes.start(name)
            self.disturbed[name] = self.now_ms

    def crash(self, name: str, down_ms: int, why: str = "") -> None:
        self.disturbed[name] = inf
        self.connections.lose(name)
        super().crash(name, down_ms, why)

    def part(self, sites: Iterable[str], side: object, duration_ms: int) -> None:
        """Cut these sites off from all that are not on the same side."""
        parted = [site for site in sites if site not in self.side]
        for site in parted:
            self.side[site] = side
            self.disturbed[site] = inf

        def join() -> None:
            for site in parted:
                if self.side.pop(site, None) is not None:
                    self.disturbed[site] = self.now_ms

        self.after(duration_ms, join)

    def heal_cuts(self) -> None:
        for site in self.side:
            self.disturbed[site] = self.now_ms
        self.side.clear()

    # -- what the meshes ask, and say ------------------------------------------------------------------

    def delay_ms(self, sender: str, receiver: str) -> int:
        one, other = self.region[sender], self.region[receiver]
        if is_slow(one) or is_slow(other):
            return self._delays.randint(*_SATELLITE_MS)
        return self._delays.randint(*(_NEAR_MS if one == other else _FAR_MS))

    def is_parted(self, sender: str, receiver: str) -> bool:
        return bool(self.side) and self.side.get(sender) != self.side.get(receiver)

    def is_running(self, site: str) -> bool:
        return self.nodes[site].site is not None

    def incarnation_of(self, site: str) -> str:
        return self.nodes[site].disk.incarnation

    def skew_ms(self, site: str) -> int:
        return self.nodes[site].skew_ms

    def take_peer_events(self, site: str, events: list[PeerEvent]) -> None:
        for event in events:
            self.deliver(site, event)

    def membership_changed(self, site: str) -> None:
        self.membership.tell(site)

    def is_cut(self, sender: str, receiver: str) -> bool:
        if self.is_parted(sender, receiver) or self.membership.separates(sender, receiver):
            self.injected["message cut off"] += 1
            return True
        return False

    # -- messages --------------------------------------------------------------------------------------

    def send(self, node: Node, send: Send) -> None:
        resource, peer = send.message.resource, send.peer
        sent = self.sent.get(resource)
        if sent is None:
            sent = self.sent[resource] = Sent(
                is_weighed=len(self.sent) % max(self.profile.resources // _WEIGHED, 1) == 0
            )
        sent.messages += 1
        if sent.is_weighed:
            sent.bytes += self._weigh(node.name, send)
        self.meshes.note_interest(node.name, (peer,))
        if self.is_running(peer) and not self.is_parted(node.name, peer):
            self.connections.use(node.name, peer, self.now_ms)
        self.documents_sent[resource] += len(send.message.ops) + len(send.message.replies)
        self.after(self.delay_ms(node.name, peer), lambda: self._arrive(node.name, send))

    def _weigh(self, sender: str, send: Send) -> int:
        """The bytes of a message as an agent sends it. The receiver reads it, so that both know the lists in it."""
        peer, tables = send.peer, self._origin_tables
        body = packed(sender, [send.message], peer, tables[sender, peer])
        unpack(body, lambda claimed: tables[peer, claimed])
        return len(body)

    # -- membership changes ----------------------------------------------------------------------------

    def _watch(self, change: MembershipChange) -> None:
        self.changes.append(change)
        self.after(_TICK_MS, lambda: self._look_at(change))

    def _look_at(self, change: MembershipChange) -> None:
        """Which sites do not know it, of those that have run and been connected since."""
        change.missing = [
            name
            for name, node in self.nodes.items()
            if name != change.site
            and name not in self.forgotten
            and node.site is not None
            and self.disturbed.get(name, 0) < change.at_ms
            and not self._knows(name, change)
        ]
        if change.missing:
            self.after(_TICK_MS, lambda: self._look_at(change))
        else:
            change.known_ms = self.now_ms - change.at_ms

    def _knows(self, name: str, change: MembershipChange) -> bool:
        mesh = self.meshes[name]
        return mesh.entry_of(change.site) is not None if change.joins else mesh.is_site_forgotten(change.site)

    # -- what was counted ------------------------------------------------------------------------------

    def met_fault(self, sites: Iterable[str]) -> bool:
        return any(site in self.disturbed for site in sites)

    def is_slow(self, sites: Iterable[str]) -> bool:
        return any(is_slow(self.region[site]) for site in sites)

    def heartbeats_since(self, before: Counter[str]) -> Counter[str]:
        return Counter({site: count - before[site] for site, count in self.meshes.sent.items()})


def is_slow(region: int) -> bool:
    return region % _SLOW_OF == _SLOW
