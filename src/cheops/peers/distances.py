"""How far the sites are from each other: measured where a site measured, estimated from coordinates elsewhere.

Every site measures the round trip to those it probes (`RoundTrip`), and announces its *row*: the nearest of
them. Rows spread as gossip, dated with the beat of their site, so that no two clocks need to agree. For pairs
that no site measured, the coordinates of the two sites give an estimate, marked as such.

A round trip has four timestamps, as in NTP: sent, received, answered, arrived. The time that the peer took is
not distance. A sample can be too large (a busy machine, a new connection) but hardly too small, so the smoothed
value follows the least of the last few; the clocks are compared with the quickest of the last eight.

`Distances` collects; `DistanceTable` is a frozen copy that answers.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from heapq import nsmallest
from math import hypot, inf
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from cheops.peers.heartbeat import LEAST_HEIGHT_MS, MAX_MS, Coordinate, Pair, SitePosition
from cheops.peers.membership import GossipQueue
from cheops.peers.settings import MeshSettings

_REPEATS = 2  # few: a distance that a site misses is announced again with the next row
_CHANGE = 0.2  # a change of more than this is announced again
_NEWS = 256  # pairs and places that wait to be passed on


# -- network coordinates: Vivaldi (Dabek et al., 2004), with heights -----------------------------------------------
#
# Three dimensions model the distance through the core of the network, the height for the access link that every
# path of a site has to climb. Each measured round trip moves a site's own coordinate a little along the line to its
# peer, as a spring would: the further, the less it trusts its own coordinate and the more it trusts the peer's.

_ERROR_WEIGHT = 0.25  # how fast the error estimate follows
_STEP = 0.25  # how far one sample moves a coordinate
_LEAST_RTT_MS = 0.05  # below this a measurement says more about the scheduler than about the network


def estimate_ms(one: Coordinate, other: Coordinate) -> float:
    """The round-trip time between two coordinates."""
    return hypot(one.x - other.x, one.y - other.y, one.z - other.z) + one.height + other.height


def moved(own: Coordinate, peer: Coordinate, rtt_ms: float, names: str) -> Coordinate:
    """The own coordinate after a round trip. `names` gives two coordinates that coincide a direction to part."""
    rtt_ms = min(max(rtt_ms, _LEAST_RTT_MS), MAX_MS)
    estimated_ms = max(estimate_ms(own, peer), 2 * LEAST_HEIGHT_MS)
    trust = own.error / (own.error + peer.error) if own.error + peer.error > 0 else 0.5
    miss = abs(estimated_ms - rtt_ms) / rtt_ms
    share = _ERROR_WEIGHT * trust
    error = min(max(miss * share + own.error * (1 - share), 0.01), 1.0)
    force_ms = _STEP * trust * (rtt_ms - estimated_ms)
    ux, uy, uz = _direction(own, peer, names)
    height = own.height + force_ms * (own.height + peer.height) / estimated_ms
    return Coordinate(
        _bounded(own.x + force_ms * ux),
        _bounded(own.y + force_ms * uy),
        _bounded(own.z + force_ms * uz),
        min(max(height, LEAST_HEIGHT_MS), MAX_MS),
        error,
    )


def rounded(own: Coordinate) -> Coordinate:
    """The coordinate as heartbeats carry it: more digits would mean nothing."""
    return Coordinate(*(round(number, 3) for number in (own.x, own.y, own.z, own.height, own.error)))


def _direction(own: Coordinate, peer: Coordinate, names: str) -> tuple[float, float, float]:
    x, y, z = own.x - peer.x, own.y - peer.y, own.z - peer.z
    length = hypot(x, y, z)
    if length < 1e-6:
        digest = blake2b(names.encode(), digest_size=3).digest()
        x, y, z = (byte - 127.5 for byte in digest)
        length = hypot(x, y, z)
    return x / length, y / length, z / length


def _bounded(number: float) -> float:
    return min(max(number, -MAX_MS), MAX_MS)


# -- rows and estimates --------------------------------------------------------------------------------------------


class Distance(Struct, frozen=True):
    """A round-trip time, whether it was measured or estimated, and its age."""

    rtt_ms: float
    measured: bool
    as_of_ms: float


class _Measured(NamedTuple):
    rtt_ms: float
    beat: int
    at_ms: float


class _Placed(NamedTuple):
    coordinate: Coordinate
    beat: int
    at_ms: float


@dataclass(frozen=True)
class DistanceTable:
    """What is known of distances at one moment."""

    rows: Mapping[str, Mapping[str, _Measured]]
    places: Mapping[str, _Placed]
    now_ms: float
    own: str

    def between(self, one: str, other: str) -> Distance | None:
        """What this site measured itself, or the newest measurement of either side, or an estimate, or None."""
        if one == other:
            return Distance(0.0, measured=True, as_of_ms=0.0)
        measurements = [self.rows[a][b] for a, b in ((one, other), (other, one)) if b in self.rows.get(a, ())]
        if len(measurements) == 2 and self.own in (one, other):
            # Another site may say that it is near; it is as far away as this one has measured.
            measurements = measurements[:1] if one == self.own else measurements[1:]
        if measurements:
            newest = max(measurements, key=lambda measured: measured.at_ms)
            return Distance(newest.rtt_ms, measured=True, as_of_ms=self._age_ms(newest.at_ms))
        return self._estimate(one, other)

    def distances_from(self, site: str, others: Iterable[str]) -> dict[str, Distance]:
        distances = ((other, self.between(site, other)) for other in others if other != site)
        return {other: distance for other, distance in distances if distance is not None}

    def _estimate(self, one: str, other: str) -> Distance | None:
        a, b = self.places.get(one), self.places.get(other)
        if a is None or b is None or not (a.coordinate.settled and b.coordinate.settled):
            return None
        rtt_ms = estimate_ms(a.coordinate, b.coordinate)
        return Distance(rtt_ms, measured=False, as_of_ms=self._age_ms(min(a.at_ms, b.at_ms)))

    def _age_ms(self, at_ms: float) -> float:
        return max(self.now_ms - at_ms, 0.0)


class Distances:
    """The rows and places that a site knows, its own among them."""

    def __init__(self, own: str, settings: MeshSettings) -> None:
        self._own = own
        self._settings = settings
        self._rows: dict[str, dict[str, _Measured]] = {own: {}}
        self._places: dict[str, _Placed] = {own: _Placed(Coordinate(), 0, 0.0)}
        self._shown: Coordinate | None = None
        self._announced: dict[str, float] = {}
        self._row_end_ms = 0.0  # what is further away than this is not announced, once the row is full
        self._pair_news: GossipQueue[tuple[str, str]] = GossipQueue(_NEWS)
        self._place_news: GossipQueue[str] = GossipQueue(_NEWS)

    @property
    def coordinate(self) -> Coordinate:
        return self._places[self._own].coordinate

    @property
    def shown_coordinate(self) -> Coordinate:
        """As heartbeats carry it."""
        if self._shown is None:
            self._shown = rounded(self.coordinate)
        return self._shown

    def measured(self, peer: str, rtt_ms: float, place: Coordinate, beat: int, now_ms: float) -> None:
        """An own measurement, smoothed, and the place that the peer says it has."""
        rtt_ms = round(rtt_ms, 3)
        self._rows[self._own][peer] = _Measured(rtt_ms, beat, now_ms)
        coordinate = moved(self.coordinate, place, rtt_ms, f"{self._own}\0{peer}")
        self._places[self._own] = _Placed(coordinate, beat, now_ms)
        self._shown = None
        announced_ms = self._announced.get(peer)
        in_row = rtt_ms <= self._row_end_ms or len(self._announced) < self._settings.row_size
        if in_row and (announced_ms is None or abs(rtt_ms - announced_ms) > _CHANGE * announced_ms):
            self._announce(peer, rtt_ms)

    def take_pairs(
        self,
        pairs: Iterable[Pair],
        known: Container[str],
        beat_of: Callable[[str], int],
        now_ms: float,
        latest: float = inf,
    ) -> None:
        """What others measured, up to the `latest` possible beat. A row keeps at most twice the size that its site
        should announce."""
        own, rows = self._own, self._rows
        for one, other, rtt_ms, beat in pairs:
            row = rows.get(one)
            if row is not None and (before := row.get(other)) is not None and before.beat >= beat:
                continue  # the usual case: several sites bring the same
            # No other site may announce what this one measured, nor sites that are not in the catalogue.
            if one in (own, other) or one not in known or other not in known or beat > latest:
                continue
            if row is None:
                row = rows[one] = {}
            # The age by beats of the site that measured it, which are its wall time: it need not agree with ours.
            row[other] = _Measured(rtt_ms, beat, now_ms - max(beat_of(one) - beat, 0))
            if len(row) > 2 * self._settings.row_size:
                _drop_oldest(row)
            self._pair_news.add((one, other), _REPEATS)

    def take_places(
        self, places: Iterable[SitePosition], known: Container[str], now_ms: float, latest: float = inf
    ) -> None:
        for site, beat, coordinate in places:
            before = self._places.get(site)
            if before is not None and before.beat >= beat:
                continue  # the usual case
            if site == self._own or site not in known or beat > latest:
                continue
            if before is None or self._is_elsewhere(before, beat, coordinate):
                self._place_news.add(site, _REPEATS)
            self._places[site] = _Placed(coordinate, beat, now_ms)

    def gossip_pairs(self, most: int) -> Iterator[Pair]:
        for one, other in self._pair_news.take(most):
            measured = self._rows.get(one, {}).get(other)
            if measured is not None:
                yield one, other, measured.rtt_ms, measured.beat

    def gossip_places(self, most: int) -> Iterator[SitePosition]:
        for site in self._place_news.take(most):
            if site in self._places:
                yield site, self._places[site].beat, self._places[site].coordinate

    def repeat_row(self) -> None:
        """Announce the nearest again, so that others see that it is still valid."""
        row = self._rows[self._own]
        for peer in self.trim_row():
            self._announce(peer, row[peer].rtt_ms)

    def trim_row(self) -> list[str]:
        """The nearest of those measured, by now: where the row ends."""
        row = self._rows[self._own]
        nearest = nsmallest(self._settings.row_size, row, key=lambda name: row[name].rtt_ms)
        self._row_end_ms = row[nearest[-1]].rtt_ms if nearest else 0.0
        return nearest

    def expire(self, now_ms: float, keep_ms: float) -> None:
        for row in self._rows.values():
            for other in [name for name, measured in row.items() if now_ms - measured.at_ms > keep_ms]:
                del row[other]

    def drop(self, site: str) -> None:
        self._rows.pop(site, None)
        self._places.pop(site, None)
        self._announced.pop(site, None)
        for row in self._rows.values():
            row.pop(site, None)

    def nearest(self, sites: Iterable[str], most: int, now_ms: float) -> list[str]:
        """The sites nearest to this one, measured or not."""
        table = DistanceTable(self._rows, self._places, now_ms, self._own)
        own, found = self._rows[self._own], []
        for site in sites:
            measured = own.get(site)  # mostly: without an object for each of a thousand sites
            if measured is not None:
                found.append((measured.rtt_ms, site))
            elif site != self._own and (distance := table.between(self._own, site)) is not None:
                found.append((distance.rtt_ms, site))
        return [site for _, site in nsmallest(most, found)]

    def table(self, now_ms: float) -> DistanceTable:
        rows = {site: dict(row) for site, row in self._rows.items()}
        return DistanceTable(rows, dict(self._places), now_ms, self._own)

    def _announce(self, peer: str, rtt_ms: float) -> None:
        self._announced[peer] = rtt_ms
        self._pair_news.add((self._own, peer), _REPEATS)

    def _is_elsewhere(self, before: _Placed, beat: int, now: Coordinate) -> bool:
        moved_ms = estimate_ms(before.coordinate, now) - before.coordinate.height - now.height
        moved_ms += abs(before.coordinate.height - now.height)
        is_old = beat - before.beat > 60 * self._settings.period_ms
        return moved_ms > 1 or before.coordinate.settled != now.settled or is_old


def _drop_oldest(row: dict[str, _Measured]) -> None:
    del row[min(row, key=lambda name: row[name].beat)]


_LEAST_OF = 3  # the least of so many samples: a busy machine delays one of them, seldom all
_KEPT = 8
# The gains of TCP's round-trip estimate (RFC 6298).
_GAIN = 1 / 8
_VARIANCE_GAIN = 1 / 4


class ClockOffset(Struct, frozen=True):
    """How much the peer's clock is ahead of ours, give or take `error_ms`."""

    offset_ms: float
    error_ms: float


class RoundTrip(Struct, frozen=True):
    """The samples of one peer. `samples` are (round trip, clock offset), the last ones."""

    rtt_ms: float
    variance_ms: float
    samples: tuple[tuple[float, float], ...]
    at_ms: float
    offset_ms: float  # of the peer's clock, by the quickest sample; kept, because all are compared in every period

    @property
    def clock(self) -> ClockOffset:
        # The quickest sample bounds the offset best: the error is at most half of its round trip.
        return ClockOffset(self.offset_ms, min(self.samples)[0] / 2)

    def moved(self, by_ms: float) -> "RoundTrip":
        """With all clock offsets changed."""
        samples = tuple((rtt_ms, offset_ms + by_ms) for rtt_ms, offset_ms in self.samples)
        return replace(self, samples=samples, offset_ms=min(samples)[1])


def sampled(before: RoundTrip | None, rtt_ms: float, offset_ms: float, now_ms: float) -> RoundTrip:
    """The round trip after one more sample."""
    if before is None:
        return RoundTrip(rtt_ms, rtt_ms / 2, ((rtt_ms, offset_ms),), now_ms, offset_ms)
    samples = (*before.samples, (rtt_ms, offset_ms))[-_KEPT:]
    least_ms = min(sample for sample, _ in samples[-_LEAST_OF:])
    gain = max(_GAIN, 1 / len(samples))  # the first samples are a mean, so that the very first does not linger
    return RoundTrip(
        rtt_ms=before.rtt_ms + gain * (least_ms - before.rtt_ms),
        variance_ms=before.variance_ms + _VARIANCE_GAIN * (abs(rtt_ms - before.rtt_ms) - before.variance_ms),
        samples=samples,
        at_ms=now_ms,
        offset_ms=min(samples)[1],
    )
