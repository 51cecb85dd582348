"""Probes: which sites to probe in a period, what the own probes have shown, and a limit on the work of answering.

The number of probes per period is bounded, however many sites there are. Sites that share resources come first, all of
them if they are few, in turn if they are many. Then sites in doubt, where one more probe decides; one of the nearest
sites, so that the scope function `around` has fresh distances; and random sites: one of any kind, which makes gossip
spread like an epidemic, and one that seems absent, which finds the other half of a mesh that was cut in two.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import ceil, inf
from typing import TypeAlias

from msgspec import Struct, field

from cheops.engine.events import PeerDown, PeerUp
from cheops.peers.distances import RoundTrip, sampled
from cheops.peers.heartbeat import Heartbeat
from cheops.peers.liveness import ProbeHistory, SiteState
from cheops.peers.settings import MeshSettings, Now


class AnswerLoad:
    """Limits the work of answering probes. A site that many others share resources with gets many regular probes: it
    asks the probers to come less often, and gives full answers only to some of them."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self._full_left = settings.full_answers_per_period
        self._regulars: dict[str, float] = {}  # sites that probe regularly, and when they last did

    def new_period(self, now_ms: float) -> None:
        """Drop the regular probers that stayed away for twice the longest interval."""
        self._full_left = self._settings.full_answers_per_period
        oldest_ms = now_ms - 2 * self._settings.max_every * self._settings.period_ms
        self._regulars = {site: at_ms for site, at_ms in self._regulars.items() if at_ms >= oldest_ms}

    def note_regular(self, site: str, now_ms: float) -> None:
        self._regulars[site] = now_ms

    def may_gossip(self) -> bool:
        self._full_left -= 1
        return self._full_left >= 0

    @property
    def every(self) -> int:
        """After how many periods a regular should come back."""
        wanted = ceil(len(self._regulars) / self._settings.regulars_per_period)
        return min(max(wanted, 1), self._settings.max_every)


NO_RESPONSE = "no response in time"
Draw = Callable[[int], int]  # a random number from 0 up to, not including, its argument
_MAX_WAITING = 64  # anyone can cause an entry of these queues, so they are bounded
_TRIES = 4  # a random draw is repeated at most so often: a period must not cost a search through 1,000 sites


class ProbeCandidates(Struct, frozen=True):
    """The sites to choose from, and what is known of each."""

    names: Sequence[str]
    can_probe: Callable[[str], bool]  # known, and no probe is on its way
    is_due: Callable[[str], bool]  # the interval that it asked for is over
    is_absent: Callable[[str], bool]


class ProbeScheduler:
    """Chooses the sites to probe."""

    def __init__(self, settings: MeshSettings) -> None:
        self._settings = settings
        self.interest: frozenset[str] = frozenset()
        self._interested: list[str] = []
        self._interest_turn = 0
        self.near: list[str] = []
        self._near_turn = 0
        self._doubted: dict[str, None] = {}
        self._returning: dict[str, None] = {}
        self._immediate: dict[str, None] = {}

    def share_with(self, sites: Iterable[str]) -> None:
        """Set the sites that share resources with this one."""
        self.interest = frozenset(sites)
        self._interested = sorted(self.interest)

    def doubt(self, site: str) -> None:
        """One more probe decides about this site."""
        self._doubted[site] = None

    def may_be_back(self, site: str) -> None:
        """There is a sign of life of a site that was not reached lately."""
        if len(self._returning) < _MAX_WAITING:
            self._returning[site] = None

    def probe_now(self, site: str) -> None:
        """Probe a site without waiting for the next period."""
        if len(self._immediate) < _MAX_WAITING:
            self._immediate[site] = None

    @property
    def has_immediate(self) -> bool:
        return bool(self._immediate)

    def drop(self, site: str) -> None:
        for waiting in (self._doubted, self._returning, self._immediate):
            waiting.pop(site, None)

    def next_immediate(self, candidates: ProbeCandidates, most: int) -> list[str]:
        """The sites to probe before the next period."""
        sites = list(islice(self._immediate, most))
        for site in sites:
            del self._immediate[site]
        return [site for site in sites if candidates.can_probe(site)]

    def choose(self, candidates: ProbeCandidates, draw: Draw) -> list[str]:
        """The sites to probe in a period."""
        settings = self._settings
        chosen = dict.fromkeys(self._next_interested(candidates))
        chosen |= dict.fromkeys(islice(self._urgent(candidates, chosen), settings.urgent_probes))
        chosen |= dict.fromkeys(self._next_near(candidates, chosen))
        for turn in range(settings.random_probes):
            site = _random(candidates, chosen, draw, absent=turn % 2 == 1)
            if site is not None:
                chosen[site] = None
        return list(chosen)

    def _urgent(self, candidates: ProbeCandidates, chosen: dict[str, None]) -> Iterator[str]:
        """Sites in doubt, first those that share resources; then sites that may be back.

        A site that cannot be probed now leaves the queue too: an answer is on its way, and puts it back if need be.
        """
        doubted = sorted(self._doubted, key=lambda site: site not in self.interest)
        for queue, sites in ((self._doubted, doubted), (self._returning, list(self._returning))):
            for site in sites:
                del queue[site]
                if site not in chosen and candidates.can_probe(site):
                    yield site

    def _next_interested(self, candidates: ProbeCandidates) -> Iterator[str]:
        count, sites, chosen = len(self._interested), self._interested, 0
        start = self._interest_turn
        for step in range(count):
            if chosen == self._settings.interest_probes:
                return
            site = sites[(start + step) % count]
            self._interest_turn = (start + step + 1) % count
            if candidates.can_probe(site) and candidates.is_due(site):
                chosen += 1
                yield site

    def _next_near(self, candidates: ProbeCandidates, chosen: dict[str, None]) -> Iterator[str]:
        near = (site for site in self.near if site not in chosen)
        free = [site for site in near if candidates.can_probe(site) and candidates.is_due(site)]
        self._near_turn += self._settings.near_probes
        for step in range(min(self._settings.near_probes, len(free))):
            yield free[(self._near_turn + step) % len(free)]


def _random(candidates: ProbeCandidates, chosen: dict[str, None], draw: Draw, *, absent: bool) -> str | None:
    """A random site of the wanted kind if a few draws yield one, otherwise any that can be probed."""
    free = None
    for _ in range(min(_TRIES, len(candidates.names)) if candidates.names else 0):
        site = candidates.names[draw(len(candidates.names))]
        if site in chosen or not candidates.can_probe(site):
            continue
        free = site
        if candidates.is_absent(site) == absent:
            break
    return free


class PeerState(Struct):
    """What the own probes to one site have shown."""

    link: ProbeHistory = field(default_factory=ProbeHistory)
    trip: RoundTrip | None = None
    incarnation: str | None = None  # of the last answer
    knows_revision: int = 0  # the revision of our entry that it has
    every: int = 1  # periods between regular probes, as it asked
    probed_ms: float = -inf
    is_waiting: bool = False  # a probe is on its way
    answers_as: str | None = None  # another name, if another site answers there
    arrived_ms: float | None = None  # when a probe of it last came in
    problem: str = ""  # why the last probe failed; empty if it did not

    def timeout_ms(self, settings: MeshSettings) -> float:
        """Four round trips, but almost a period at least, so that it is over at the next tick. The maximum if no round
        trip is known yet."""
        if self.trip is None:
            return settings.max_timeout_ms
        return min(max(0.9 * settings.period_ms, 4 * self.trip.rtt_ms), settings.max_timeout_ms)


class SentProbe(Struct, frozen=True):
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
        self.suspects: set[str] = set()  # sites that missed the last probe and are not down yet
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

    def returned(self, probe_id: int, problem: str = "") -> SentProbe | None:
        """The probe with this id, unless it has expired; `problem` is why it failed, if it did."""
        sent = self._sent.pop(probe_id, None)
        if sent is not None and sent.site in self._peers:
            self._peers[sent.site].is_waiting = False
            self._peers[sent.site].problem = problem
        return sent

    def expired(self, now_ms: float) -> list[SentProbe]:
        late = [sent for sent in self._sent.values() if sent.expires_ms <= now_ms]
        for sent in late:
            self.returned(sent.id, NO_RESPONSE)
        return late

    def set_link(self, site: str, link: ProbeHistory) -> None:
        self[site].link = link
        if link.state is SiteState.SUSPECT:
            self.suspects.add(site)
        else:
            self.suspects.discard(site)

    def clock_offsets(self, sites: Iterable[str]) -> Iterator[float]:
        """How far the clocks of these sites are ahead of ours, as far as that was measured."""
        peers = (self._peers.get(site) for site in sites)
        return (peer.trip.offset_ms for peer in peers if peer and peer.trip)

    def clock_was_set(self, by_ms: float) -> None:
        """Note that the wall clock of this site was set: what was measured against it moves with it."""
        for peer in self._peers.values() if by_ms else ():
            if peer.trip is not None:
                peer.trip = peer.trip.moved(-by_ms)

    def drop(self, site: str) -> None:
        self._peers.pop(site, None)
        self.suspects.discard(site)


class Probe(Struct, frozen=True):
    """A heartbeat to send. Its outcome is reported with its `id`."""

    id: int
    to_site: str
    to_url: str
    timeout_ms: float
    payload: Heartbeat


PeerEvent: TypeAlias = PeerUp | PeerDown


class Announcements:
    """The peers that are up, with their incarnations, and the events that the driver has not fetched yet."""

    def __init__(self) -> None:
        self.up: dict[str, str] = {}
        self._events: list[PeerEvent] = []

    def set_state(self, site: str, incarnation: str | None) -> None:
        """A site is up with this incarnation, or not up (None)."""
        if self.up.get(site) == incarnation:
            return
        if incarnation is None:
            del self.up[site]
            self._events.append(PeerDown(site))
        else:
            self.up[site] = incarnation
            self._events.append(PeerUp(site, incarnation))

    def drain(self) -> list[PeerEvent]:
        events, self._events = self._events, []
        return events


def updated_round_trip(
    before: RoundTrip | None, sent: SentProbe, answer: Heartbeat, now: Now, now_ms: float
) -> RoundTrip:
    """The round trip of an answered probe without the time that the peer took, and the offset of its clock."""
    # Intervals use the steady clock. The wall clocks only give the time that the peer took, a difference of two times
    # of its own clock, and the offset between both clocks, as NTP computes it.
    received_ms = answer.sent_ms if answer.received_ms is None else answer.received_ms
    elapsed_ms = now.mono_ms - sent.at.mono_ms
    # At most half of the time: a peer that exaggerates what it took cannot seem nearer than half of its distance.
    taken_ms = min(max(answer.sent_ms - received_ms, 0.0), elapsed_ms / 2)
    rtt_ms = max(elapsed_ms - taken_ms, 0.001)
    offset_ms = ((received_ms - sent.at.wall_ms) + (answer.sent_ms - now.wall_ms)) / 2
    return sampled(before, rtt_ms, offset_ms, now_ms)
