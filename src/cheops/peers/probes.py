"""Probes: which sites to probe in a period, what the own probes showed of each peer, and what answering costs.

A bounded number per period, however many sites there are. Sites that share resources come first, all of them if
they are few, in turn if they are many. Then those in doubt, where one more probe decides; one of the nearest, to
keep `around` honest; and random ones: one of any kind, which makes gossip spread like an epidemic, and one that
seems absent, which finds the other half of a mesh that was cut.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf

from cheops.peers.distances import RoundTrip, sampled
from cheops.peers.heartbeat import Heartbeat
from cheops.peers.liveness import ProbeHistory
from cheops.peers.settings import MeshSettings, Now


class AnswerLoad:
    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._full_left = settings.full_answers_per_period
        self._regulars: dict[str, float] = {}

    def new_period(self, now_ms: float) -> None:
        """Regulars that did not come for twice as long as they may stay away are none any more."""
        self._full_left = self._settings.full_answers_per_period
        oldest_ms = now_ms - 2 * self._settings.max_every * self._settings.period_ms
        self._regulars = {site: at_ms for site, at_ms in self._regulars.items() if at_ms >= oldest_ms}

    def came(self, site: str, now_ms: float) -> None:
        self._regulars[site] = now_ms

    def may_gossip(self) -> bool:
        self._full_left -= 1
        return self._full_left >= 0

    @property
    def every(self) -> int:
        """After how many periods a regular should come back."""
        wanted = ceil(len(self._regulars) / self._settings.regulars_per_period)
        return min(max(wanted, 1), self._settings.max_every)


Draw = Callable[[int], int]  # a random number from 0 up to, not including, its argument
_MAX_WAITING = 64
_TRIES = 4


@dataclass(frozen=True, slots=True)
class ProbeCandidates:
    """What the choice is made from."""

    names: Sequence[str]
    can_probe: Callable[[str], bool]  # known, and no probe is on its way
    is_due: Callable[[str], bool]  # has not asked to be left alone for longer
    is_absent: Callable[[str], bool]


class ProbeScheduler:
    """Whose turn it is."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self.interest: frozenset[str] = frozenset()
        self._interested: list[str] = []
        self._interest_turn = 0
        self.near: list[str] = []
        self._near_turn = 0
        self._doubted: dict[str, None] = {}
        self._callers: dict[str, None] = {}
        self._immediate: dict[str, None] = {}

    def share_with(self, sites: Iterable[str]) -> None:
        """The sites that share resources with this one."""
        self.interest = frozenset(sites)
        self._interested = sorted(self.interest)

    def doubt(self, site: str) -> None:
        """One more probe decides about this site."""
        self._doubted[site] = None

    def called(self, site: str) -> None:
        """A site is heard of that was not reached lately: it may be back."""
        if len(self._callers) < _MAX_WAITING:
            self._callers[site] = None

    def probe_now(self, site: str) -> None:
        """Somebody waits for news of this site: do not wait for the next period."""
        if len(self._immediate) < _MAX_WAITING:
            self._immediate[site] = None

    @property
    def has_immediate(self) -> bool:
        return bool(self._immediate)

    def drop(self, site: str) -> None:
        for waiting in (self._doubted, self._callers, self._immediate):
            waiting.pop(site, None)

    def at_once(self, field: ProbeCandidates, most: int) -> list[str]:
        sites = list(islice(self._immediate, most))
        for site in sites:
            del self._immediate[site]
        return [site for site in sites if field.can_probe(site)]

    def choose(self, field: ProbeCandidates, draw: Draw) -> list[str]:
        """The partners of a period."""
        settings = self._settings
        chosen = dict.fromkeys(self._next_interested(field))
        chosen |= dict.fromkeys(islice(self._urgent(field, chosen), settings.urgent_probes))
        chosen |= dict.fromkeys(self._next_near(field, chosen))
        for turn in range(settings.random_probes):
            site = _random(field, chosen, draw, absent=turn % 2 == 1)
            if site is not None:
                chosen[site] = None
        return list(chosen)

    def _urgent(self, field: ProbeCandidates, chosen: dict[str, None]) -> Iterator[str]:
        """Those in doubt, first of them those that share resources; then those that may be back.

        Who cannot be probed now leaves the queue too: an answer is on its way, and puts it back if need be.
        """
        doubted = sorted(self._doubted, key=lambda site: site not in self.interest)
        for queue, sites in ((self._doubted, doubted), (self._callers, list(self._callers))):
            for site in sites:
                del queue[site]
                if site not in chosen and field.can_probe(site):
                    yield site

    def _next_interested(self, field: ProbeCandidates) -> Iterator[str]:
        count, sites, found = len(self._interested), self._interested, 0
        start = self._interest_turn
        for step in range(count):
            if found == self._settings.interest_probes:
                return
            site = sites[(start + step) % count]
            self._interest_turn = (start + step + 1) % count
            if field.can_probe(site) and field.is_due(site):
                found += 1
                yield site

    def _next_near(self, field: ProbeCandidates, chosen: dict[str, None]) -> Iterator[str]:
        free = [site for site in self.near if site not in chosen and field.can_probe(site) and field.is_due(site)]
        self._near_turn += self._settings.near_probes
        for step in range(min(self._settings.near_probes, len(free))):
            yield free[(self._near_turn + step) % len(free)]


def _random(field: ProbeCandidates, chosen: dict[str, None], draw: Draw, *, absent: bool) -> str | None:
    """A random site of the wanted kind if a few draws find one, otherwise any that is free."""
    free = None
    for _ in range(min(_TRIES, len(field.names)) if field.names else 0):
        site = field.names[draw(len(field.names))]
        if site in chosen or not field.can_probe(site):
            continue
        free = site
        if field.is_absent(site) == absent:
            break
    return free


@dataclass(slots=True)
class PeerState:
    link: ProbeHistory = field(default_factory=ProbeHistory)
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
class SentProbe:
    """A probe on its way."""

    id: int
    site: str
    at: Now
    expires_ms: float
    pauses: int


class PeerTable:
    """One record per site that was probed or had a reason to be."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._peers: dict[str, PeerState] = {}
        self._sent: dict[int, SentProbe] = {}
        self._last_id = 0

    def __getitem__(self, site: str) -> PeerState:
        return self._peers.get(site) or self._peers.setdefault(site, PeerState())

    def get(self, site: str) -> PeerState | None:
        return self._peers.get(site)

    def items(self) -> Iterator[tuple[str, PeerState]]:
        return iter(self._peers.items())

    def send(self, site: str, now: Now, now_ms: float, pauses: int) -> SentProbe:
        peer = self[site]
        peer.probed_ms, peer.is_waiting = now_ms, True
        self._last_id += 1
        sent = SentProbe(self._last_id, site, now, now_ms + peer.timeout_ms(self._settings), pauses)
        self._sent[sent.id] = sent
        return sent

    def returned(self, probe_id: int) -> SentProbe | None:
        """The probe of this id, if it was still waited for."""
        sent = self._sent.pop(probe_id, None)
        if sent is not None and sent.site in self._peers:
            self._peers[sent.site].is_waiting = False
        return sent

    def expired(self, now_ms: float) -> list[SentProbe]:
        late = [sent for sent in self._sent.values() if sent.expires_ms <= now_ms]
        for sent in late:
            self.returned(sent.id)
        return late

    def drop(self, site: str) -> None:
        self._peers.pop(site, None)


def updated_round_trip(
    before: RoundTrip | None, sent: SentProbe, answer: Heartbeat, now: Now, now_ms: float
) -> RoundTrip:
    """The round trip of an answered probe, less the time that the peer took, and the clocks compared."""
    received_ms = answer.sent_ms if answer.received_ms is None else answer.received_ms
    elapsed_ms = now.mono_ms - sent.at.mono_ms
    rtt_ms = max(elapsed_ms - max(answer.sent_ms - received_ms, 0.0), 0.001)
    offset_ms = ((received_ms - sent.at.wall_ms) + (answer.sent_ms - now.wall_ms)) / 2
    return sampled(before, rtt_ms, offset_ms, now_ms)
