"""Views of the mesh from one site: for people (`SiteView`, `problems`), and for scope-lang (`Snapshot`)."""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct

from cheops.errors import ClientError
from cheops.peers.distances import ClockOffset, Distance, DistanceTable
from cheops.peers.gossip import GossipState
from cheops.peers.liveness import Assessment, SiteState
from cheops.peers.probes import PeerState, PeerTable
from cheops.scope.snapshot import SiteInfo, Snapshot
from cheops.text import listed, nearest, shortened

CLOCK_WARNING_MS = 500  # far below security.clock_skew: a warning before operations are refused


class SiteView(Struct, frozen=True):
    """One site. Ages are in milliseconds; None if there is no evidence."""

    name: str
    state: SiteState
    direct: bool  # by own probes; otherwise by what others say
    only_through_others: bool  # others see it, we cannot reach it
    as_of_ms: float | None  # how long ago it was last heard of
    contact_ms: float | None  # how long ago a probe of ours was answered
    arrived_ms: float | None  # how long ago a probe of it came in
    incarnation: str | None
    url: str
    version: str
    services: tuple[tuple[str, str], ...]
    types: tuple[tuple[str, str], ...]  # with the fingerprints of their configuration
    distance: Distance | None
    clock: ClockOffset | None
    here: bool = False
    heard: bool = True  # its own record is known, directly or by gossip
    problem: str = ""  # why our last probe of it failed

    @property
    def is_up(self) -> bool:
        return self.state in (SiteState.UP, SiteState.SUSPECT)

    @property
    def note(self) -> str:
        if self.only_through_others:
            return "reachable only through others"
        if self.state is SiteState.FORGOTTEN:
            return "forgotten, and it is alive" if self.as_of_ms is not None or self.here else "forgotten"
        return "" if self.direct or self.here or not self.is_up else "by what others say"


def view_of(
    known: GossipState, site: str, seen: tuple[Assessment, PeerState], distance: Distance | None, now_ms: float
) -> SiteView:
    """A site as it is shown. Its incarnation is that of its last answer, or else the one in its record."""
    assessment, peer = seen
    entry = known.catalogue.get(site)
    return SiteView(
        site,
        assessment.state,
        assessment.direct,
        assessment.only_through_others,
        assessment.as_of_ms,
        _age_ms(peer.link.contact_ms, now_ms),
        _age_ms(peer.arrived_ms, now_ms),
        peer.incarnation or (entry.incarnation if entry else None),
        entry.url if entry else known.seeds.get(site, ""),
        entry.version if entry else "",
        entry.services if entry else (),
        entry.types if entry else (),
        distance,
        peer.trip.clock if peer.trip else None,
        here=site == known.own.name,
        heard=entry is not None or site == known.own.name,
        problem=peer.problem,
    )


def _age_ms(at_ms: float | None, now_ms: float) -> float | None:
    return None if at_ms is None else max(now_ms - at_ms, 0.0)


def problems(known: GossipState, peers: PeerTable) -> Iterator[str]:
    """Problems that an operator should know."""
    if known.is_forgotten:
        yield (
            "the other sites have forgotten this one, so it takes no part. To admit it again: 'cheops site invite "
            f"{known.own.name} --again' there, or 'cheops site admit' without certificates"
        )
    if known.catalogue.refused:
        yield f"the catalogue is full with {len(known.catalogue):,} sites: others are not taken in"
    if known.membership.refused:
        yield f"{len(known.membership.records()):,} sites were forgotten or admitted: further decisions are not taken"
    for site, peer in sorted(peers.items()):
        if peer.answers_as is not None:
            yield f"'{peer.answers_as}' answers at the address of '{site}'"
        if peer.trip is not None:
            clock = peer.trip.clock
            if abs(clock.offset_ms) - clock.error_ms > CLOCK_WARNING_MS:
                yield f"the clock of '{site}' is {_clock_difference(clock.offset_ms)} ours"


def _clock_difference(offset_ms: float) -> str:
    return f"{abs(offset_ms):,.0f} ms {'ahead of' if offset_ms > 0 else 'behind'}"


class PairRtts(Mapping[frozenset[str], float]):
    """The distances of all pairs. Each is computed when it is read: 1,000 sites have half a million pairs."""

    def __init__(self, table: DistanceTable, names: tuple[str, ...]) -> None:
        self._table = table
        self._names = names

    def __getitem__(self, pair: frozenset[str]) -> float:
        distance = self._table.between(*sorted(pair)) if len(pair) == 2 else None
        if distance is None:
            raise KeyError(pair)
        return distance.rtt_ms

    def __iter__(self) -> Iterator[frozenset[str]]:
        for index, one in enumerate(self._names):
            for other in self._names[index + 1 :]:
                if self._table.between(one, other) is not None:
                    yield frozenset((one, other))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None


def snapshot_of(here: str, views: list[SiteView], table: DistanceTable) -> Snapshot:
    """The mesh as scope-lang sees it: a forgotten site does not exist, and one that cannot be reached is not up."""
    sites = {
        view.name: SiteInfo(
            view.name,
            frozenset(service for service, _ in view.services),
            up=view.here or view.is_up,
            has_reported=view.heard,
        )
        for view in views
        if view.here or view.state is not SiteState.FORGOTTEN
    }
    return Snapshot(here, sites, PairRtts(table, tuple(sites)))


def no_authority(own: str, site: str, issuers: Collection[str], *, forgotten: bool) -> ClientError:
    """Why this site cannot decide about another, and where that is possible."""
    word = "forget" if forgotten else "admit"
    where = f"do it at {listed(issuers)}, or" if issuers else "do it at a site that has it, or"
    return ClientError(
        f"{own} does not have the key of an authority (security.ca_key), which decides about sites; "
        f"{where} from anywhere with the authority's folder: cheops site {word} {site} --ca FOLDER",
        status=409,
    )


def unknown_site(site: str, known: Collection[str]) -> ClientError:
    meant = nearest(site, known)
    hint = f"did you mean '{meant}'? " if meant else ""
    return ClientError(f"unknown site '{shortened(site)}'; {hint}Known: {listed(known)}")
