"""The meshes of many simulated sites: production state machines, driven by the virtual clock as prober.py drives one.

Every so many heartbeats one is encoded and decoded, which gives the bytes; to do so with all of them would take most of
the time. Also here: the connections that agents would have, by the rule of their channel pools.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Protocol

import msgspec

from cheops.peers import heartbeat
from cheops.peers.channel_pool import surplus
from cheops.peers.heartbeat import Heartbeat, SavedMesh, SiteRecord
from cheops.peers.mesh import Mesh
from cheops.peers.prober import announced_to
from cheops.peers.probes import PeerEvent, Probe
from cheops.peers.settings import MeshSettings, Now

_NUDGE_MS = 250  # as long as the prober sleeps at most, before it sees what is urgent
_ANNOUNCE_MS, _ANNOUNCE_ROUNDS = 100, 40  # as prober.py and the API announce a decision
_WEIGHED = 16  # one heartbeat of so many is encoded
_EPOCH_MS = 1_700_000_000_000  # counters of the mesh are wall times


class Host(Protocol):
    """What the meshes need of the world."""

    now_ms: int

    def after(self, delay_ms: int, what: Callable[[], None]) -> None: ...

    def delay_ms(self, sender: str, receiver: str) -> int: ...

    def is_parted(self, sender: str, receiver: str) -> bool: ...

    def is_running(self, site: str) -> bool: ...

    def incarnation_of(self, site: str) -> str: ...

    def skew_ms(self, site: str) -> int: ...

    def take_peer_events(self, site: str, events: list[PeerEvent]) -> None: ...

    def membership_changed(self, site: str) -> None: ...


def address(site: str) -> str:
    return f"https://{site}.example:8079"


def _record(site: str, incarnation: str) -> SiteRecord:
    return SiteRecord(site, incarnation, address(site), version="1.0", services=(("image", ""),))


@dataclass(slots=True)
class _End:
    """A channel as one of its two agents has it."""

    site: str  # the other one
    is_opener: bool
    used_s: float
    is_open: bool = True
    is_idle: bool = True


class Connections:
    """The connections between agents: opened with the first message, closed as their channel pools would."""

    def __init__(self) -> None:
        self._ends: dict[str, dict[str, _End]] = {}
        self.most: Counter[str] = Counter()  # at one moment, by agent
        self.opened = 0

    def use(self, sender: str, receiver: str, now_ms: int) -> None:
        own = self._ends.setdefault(sender, {})
        end = own.get(receiver)
        if end is None:
            self.opened += 1
            for one, other in ((sender, receiver), (receiver, sender)):
                self._ends.setdefault(one, {})[other] = _End(other, one == sender, now_ms / 1_000)
            for one in (sender, receiver):
                self.close_surplus(one, now_ms)
                self.most[one] = max(self.most[one], len(self._ends[one]))
            return
        end.used_s = self._ends[receiver][sender].used_s = now_ms / 1_000

    def has(self, agent: str, site: str) -> bool:
        return site in self._ends.get(agent, ())

    def close_surplus(self, agent: str, now_ms: int) -> None:
        """With each connection, and once a second."""
        for end in surplus(self._ends.get(agent, {}).values(), now_ms / 1_000):
            self._close(agent, end.site)

    def lose(self, agent: str) -> None:
        """The agent stops."""
        for site in list(self._ends.get(agent, ())):
            self._close(agent, site)

    def _close(self, one: str, other: str) -> None:
        del self._ends[one][other], self._ends[other][one]


class MeshNetwork:
    """One mesh per running site. A site that restarts reads what it saved."""

    def __init__(self, host: Host, seed: int, connections: Connections) -> None:
        self._host = host
        self._connections = connections
        self._settings = MeshSettings()
        self._draw = Random(f"meshes {seed}").randrange  # noqa: S311 - repeatable is the point
        self._meshes: dict[str, Mesh] = {}
        self._interest: dict[str, set[str]] = {}
        self._decisions: dict[str, int] = {}  # that the engine of a site knows
        self.sent: Counter[str] = Counter()  # heartbeats: probes and answers
        self.beats = 0
        self.weighed, self.weighed_bytes = 0, 0

    def __getitem__(self, site: str) -> Mesh:
        return self._meshes[site]

    def __contains__(self, site: str) -> bool:
        return site in self._meshes

    def now(self, site: str) -> Now:
        return Now(self._host.now_ms, _EPOCH_MS + self._host.now_ms + self._host.skew_ms(site))

    # -- sites -------------------------------------------------------------------------------------------

    def known_before(self, sites: Iterable[str]) -> SavedMesh:
        """What the sites of a mesh have saved that existed before."""
        records = (_record(site, self._host.incarnation_of(site)) for site in sites)
        return SavedMesh(entries=tuple(msgspec.structs.replace(record, revision=_EPOCH_MS) for record in records))

    def start(self, site: str, saved: SavedMesh | None = None, peers: Iterable[str] = ()) -> None:
        """A site starts: with what it has saved before, or with the peers in its configuration."""
        if site in self._meshes:
            saved = self._meshes[site].saved()
        elif saved is not None:
            own = next(entry for entry in saved.entries if entry.name == site)
            saved = msgspec.structs.replace(saved, own=own)
        record = _record(site, self._host.incarnation_of(site))
        urls = {peer: address(peer) for peer in peers}
        mesh = self._meshes[site] = Mesh(record, urls, self.now(site), self._settings, saved)
        mesh.interest(self._interest.setdefault(site, set()))
        self._decisions[site] = 0
        self._host.after(self._draw(1_000), lambda: self._tick(site, mesh))

    def note_interest(self, site: str, peers: Iterable[str]) -> None:
        """As an agent does when it sends something of a resource."""
        interest, mesh = self._interest[site], self._meshes[site]
        new = {peer for peer in peers if peer != site and peer not in interest}
        if new:
            interest |= new
            mesh.interest(interest)
            self._host.after(_NUDGE_MS, lambda: self._look_again(site, mesh))

    def forget(self, here: str, site: str) -> None:
        """An operator forgets a site; the site that decides tells all that it sees, as the API does."""
        self._report(here, self._meshes[here].forget(site, self.now(here)))
        self._announce(here, site, set(), _ANNOUNCE_ROUNDS)

    def _announce(self, here: str, about: str, opened: set[str], rounds: int) -> None:
        mesh = self._meshes[here]
        missing = [site for site in mesh.without_decision(about) if site in mesh.up]
        if rounds and missing and self._host.is_running(here):
            sites = announced_to(missing, lambda site: self._connections.has(here, site), opened)
            self._send_all(here, mesh, mesh.probes_to(sites, self.now(here)))
            self._host.after(_ANNOUNCE_MS, lambda: self._announce(here, about, opened, rounds - 1))

    # -- probes ------------------------------------------------------------------------------------------

    def _is_current(self, site: str, mesh: Mesh) -> bool:
        return self._meshes.get(site) is mesh and self._host.is_running(site)

    def _tick(self, site: str, mesh: Mesh) -> None:
        """Once a period."""
        if self._look(site, mesh):
            self._connections.close_surplus(site, self._host.now_ms)
            wait_ms = max(int(mesh.wait_ms(self.now(site))) + 1, 20)
            self._host.after(wait_ms, lambda: self._tick(site, mesh))

    def _look_again(self, site: str, mesh: Mesh) -> None:
        """Between two periods: something is urgent."""
        self._look(site, mesh)

    def _look(self, site: str, mesh: Mesh) -> bool:
        """Send what is due; whether the site still runs."""
        if not self._is_current(site, mesh):
            return False
        probes, events = mesh.tick(self.now(site), self._draw)
        self._report(site, events)
        self._send_all(site, mesh, probes)
        return True

    def _send_all(self, site: str, mesh: Mesh, probes: Iterable[Probe]) -> None:
        for probe in probes:
            self._send(site, mesh, probe)

    def _send(self, site: str, mesh: Mesh, probe: Probe) -> None:
        to = probe.to_url.removeprefix("https://").removesuffix(".example:8079")
        payload = self._packed(site, probe.payload)
        if not self._host.is_parted(site, to) and not self._host.is_running(to):
            self._host.after(2 * self._host.delay_ms(site, to), lambda: self._failed(site, mesh, probe))
            return  # the connection is refused
        self._connections.use(site, to, self._host.now_ms)
        self._host.after(self._host.delay_ms(site, to), lambda: self._arrive(site, mesh, probe, to, payload))

    def _arrive(self, site: str, mesh: Mesh, probe: Probe, to: str, payload: Heartbeat) -> None:
        if self._host.is_parted(site, to) or not self._host.is_running(to):
            return
        peer = self._meshes[to]
        member = peer.member_of(site)
        if member is not None and member.forgotten:
            # The answer says no more than that.
            self._host.after(self._host.delay_ms(to, site), lambda: self._refused(site, mesh, probe, to))
            return
        answer, events = peer.received_probe(payload, self.now(to))
        self._report(to, events)
        packed = self._packed(to, answer)
        self._host.after(self._host.delay_ms(to, site), lambda: self._back(site, mesh, probe, packed))

    def _back(self, site: str, mesh: Mesh, probe: Probe, answer: Heartbeat) -> None:
        if self._is_current(site, mesh) and not self._host.is_parted(probe.to_site, site):
            self._report(site, mesh.probe_answered(probe.id, answer, self.now(site)))

    def _failed(self, site: str, mesh: Mesh, probe: Probe) -> None:
        if self._is_current(site, mesh):
            self._report(site, mesh.probe_failed(probe.id, self.now(site)))

    def _refused(self, site: str, mesh: Mesh, probe: Probe, by: str) -> None:
        member = self._meshes[by].member_of(site)
        if self._is_current(site, mesh) and member is not None:
            mesh.learn_own_membership(member, by, self.now(site))
            self._failed(site, mesh, probe)

    def _packed(self, sender: str, message: Heartbeat) -> Heartbeat:
        """The message as it arrives."""
        self.sent[sender] += 1
        self.beats += 1
        if self.beats % _WEIGHED:
            return message
        data = heartbeat.encode(message)
        self.weighed += 1
        self.weighed_bytes += len(data)
        return heartbeat.decode(data)

    def _report(self, site: str, events: list[PeerEvent]) -> None:
        if events:
            self._host.take_peer_events(site, events)
        decisions = self._meshes[site].decisions
        if self._decisions[site] != decisions:
            self._decisions[site] = decisions
            self._host.membership_changed(site)
