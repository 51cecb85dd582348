"""What the own probes have told of each peer, and which of them are on their way."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from cheops.sync.heartbeat import Heartbeat
from cheops.sync.liveness import Link
from cheops.sync.mesh_settings import MeshSettings, Now
from cheops.sync.round_trip import RoundTrip, sampled


@dataclass(slots=True)
class Peer:
    link: Link = field(default_factory=Link)
    trip: RoundTrip | None = None
    incarnation: str | None = None  # of the last answer
    knows_revision: int = 0  # the revision of our entry that it has
    every: int = 1  # periods between regular probes, as it asked
    probed_ms: float = -inf
    is_waiting: bool = False  # a probe is on its way
    answers_as: str | None = None  # another name, if another site answers there

    def timeout_ms(self, settings: MeshSettings) -> float:
        """Several round trips, and almost a period: over at the next tick. Longer where none is known."""
        if self.trip is None:
            return settings.max_timeout_ms
        return min(max(0.9 * settings.period_ms, 4 * self.trip.rtt_ms), settings.max_timeout_ms)


@dataclass(frozen=True, slots=True)
class Sent:
    """A probe on its way."""

    id: int
    site: str
    at: Now
    expires_ms: float
    pauses: int


class Peers:
    """One record per site that was probed or had a reason to be."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._peers: dict[str, Peer] = {}
        self._sent: dict[int, Sent] = {}
        self._last_id = 0

    def __getitem__(self, site: str) -> Peer:
        return self._peers.get(site) or self._peers.setdefault(site, Peer())

    def get(self, site: str) -> Peer | None:
        return self._peers.get(site)

    def items(self) -> Iterator[tuple[str, Peer]]:
        return iter(self._peers.items())

    def send(self, site: str, now: Now, now_ms: float, pauses: int) -> Sent:
        peer = self[site]
        peer.probed_ms, peer.is_waiting = now_ms, True
        self._last_id += 1
        sent = Sent(self._last_id, site, now, now_ms + peer.timeout_ms(self._settings), pauses)
        self._sent[sent.id] = sent
        return sent

    def returned(self, probe_id: int) -> Sent | None:
        """The probe of this id, if it was still waited for."""
        sent = self._sent.pop(probe_id, None)
        if sent is not None and sent.site in self._peers:
            self._peers[sent.site].is_waiting = False
        return sent

    def expired(self, now_ms: float) -> list[Sent]:
        late = [sent for sent in self._sent.values() if sent.expires_ms <= now_ms]
        for sent in late:
            self.returned(sent.id)
        return late

    def drop(self, site: str) -> None:
        self._peers.pop(site, None)


def measured(before: RoundTrip | None, sent: Sent, answer: Heartbeat, now: Now, now_ms: float) -> RoundTrip:
    """The round trip of an answered probe, less the time that the peer took, and the clocks compared."""
    received_ms = answer.sent_ms if answer.received_ms is None else answer.received_ms
    elapsed_ms = now.mono_ms - sent.at.mono_ms
    rtt_ms = max(elapsed_ms - max(answer.sent_ms - received_ms, 0.0), 0.001)
    offset_ms = ((received_ms - sent.at.wall_ms) + (answer.sent_ms - now.wall_ms)) / 2
    return sampled(before, rtt_ms, offset_ms, now_ms)
