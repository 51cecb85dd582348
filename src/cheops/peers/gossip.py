"""What a site knows of the mesh, how it tells it, and how it learns from what others tell.

Everything here merges by "the later counts", with counters that only their owner advances, so that gossip
may be lost, doubled, reordered or old. A site that hears more of itself than it has said (it was born
again, or its clock was set back) goes on from there, so its word counts again after one round trip.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import msgspec

from cheops.peers.distances import Distances, rounded
from cheops.peers.heartbeat import MAX_NUMBER, Heartbeat, MembershipRecord, SiteRecord, check_entry
from cheops.peers.liveness import HeartbeatCounters
from cheops.peers.membership import Catalogue, Membership, record_rank
from cheops.peers.settings import MeshSettings, Now


@dataclass(frozen=True, slots=True)
class HeartbeatOptions:
    """What a heartbeat is to be, apart from gossip."""

    to: str
    received_ms: float | None = None
    regular: bool = False
    every: int = 1
    introduce: bool = True  # the receiver does not know our entry
    their_digests: Sequence[int] = ()  # where known: what they lack can be told
    full: bool = True


class GossipState:
    """Entries, members, beats and distances."""

    def __init__(self, own: SiteRecord, peers: Mapping[str, str], now: Now, settings: MeshSettings) -> None:
        self._settings = settings
        self.beat = max(int(now.wall_ms / settings.period_ms), 1)
        self.seeds = {name: url for name, url in peers.items() if name != own.name}
        self.catalogue = Catalogue(check_entry(own), settings)
        self.membership = Membership(settings)
        self.beats = HeartbeatCounters(turn=blake2b(own.name.encode(), digest_size=1).digest()[0])
        self.distances = Distances(own.name, settings)
        self.names: list[str] = []  # all other sites, configured or heard of, but not the forgotten
        self._listed: set[str] = set()
        for name in self.seeds:
            self._list(name)

    @property
    def own(self) -> SiteRecord:
        return self.catalogue.own

    @property
    def is_forgotten(self) -> bool:
        return self.membership.is_forgotten(self.own.name)

    def knows(self, site: str) -> bool:
        return site in self._listed

    def url(self, site: str, misses: int) -> str:
        """Where to reach a site: as it says itself; on every second miss, as the configuration says."""
        entry, seed = self.catalogue.get(site), self.seeds.get(site)
        if entry is None or (seed is not None and misses % 2 == 1):
            return seed or ""
        return entry.url

    def describe(self, own: SiteRecord) -> None:
        """The site says something new of itself; its revision goes up."""
        revision = max(own.revision, self.own.revision + 1)
        self.catalogue.describe(check_entry(msgspec.structs.replace(own, revision=revision)))

    def decide(self, site: str, wall_ms: float, *, forgotten: bool) -> None:
        self._settle(self.membership.decide(site, wall_ms, forgotten=forgotten))

    # -- telling -----------------------------------------------------------------------------------------

    def compose(self, letter: HeartbeatOptions, wall_ms: float) -> Heartbeat:
        entry = self.catalogue.get(letter.to)
        head = Heartbeat(
            self.own.name,
            self.own.incarnation,
            self.own.revision,
            self.beat,
            round(wall_ms, 3),
            received_ms=None if letter.received_ms is None else round(letter.received_ms, 3),
            seen=(entry.revision if entry else 0, self.beats.count(letter.to)),
            regular=letter.regular,
            every=letter.every,
            coordinate=rounded(self.distances.coordinate),
            members=tuple(self._members_for(letter.to)),
        )
        gossip = self._gossip(letter) if letter.full else self._referral(letter)
        return msgspec.structs.replace(head, **gossip)

    def _referral(self, letter: HeartbeatOptions) -> dict[str, object]:
        """For those who come when everybody does: a few others whom they may ask instead."""
        return {"entries": tuple(self.catalogue.page(letter.their_digests, self._settings.referral_bytes))}

    def _gossip(self, letter: HeartbeatOptions) -> dict[str, object]:
        settings = self._settings
        entries = [self.own] if letter.introduce else []
        page = self.catalogue.page(letter.their_digests, settings.entry_bytes_per_message)
        entries += [*self.catalogue.fresh(), *page]
        return {
            "digests": self.catalogue.digests,
            "entries": tuple({entry.name: entry for entry in entries if entry.name != letter.to}.values()),
            "beats": tuple(self.beats.gossip(settings.beats_per_message)),
            "pairs": tuple(self.distances.gossip_pairs(settings.pairs_per_message)),
            "places": tuple(self.distances.gossip_places(settings.places_per_message)),
        }

    def _members_for(self, site: str) -> Iterable[MembershipRecord]:
        """News of members, and always what was decided about the receiver itself."""
        records = self.membership.gossip(self._settings.members_per_message)
        about = self.membership.of(site)
        return records if about is None or about in records else [about, *records]

    # -- learning ----------------------------------------------------------------------------------------

    def absorb(self, heard: Heartbeat, now_ms: float, wall_ms: float) -> list[str]:
        """Learn from a heartbeat; gives the sites that had fallen silent and are heard of again."""
        for member in heard.members:
            if self.membership.take(member, wall_ms):
                self._settle(member)
        if self.membership.is_forgotten(heard.sender):
            return []
        self._answer_for_oneself(heard)
        for entry in heard.entries:
            self._take_entry(entry)
        names, distances = self.catalogue.names, self.distances
        woken = self.beats.hear(((heard.sender, heard.beat), *heard.beats), now_ms)
        distances.take_pairs(heard.pairs, names, self.beats.count, now_ms)
        places = ((heard.sender, heard.beat, heard.coordinate), *heard.places)
        distances.take_places(places, names, now_ms)
        return woken

    def restore(self, entries: Iterable[SiteRecord], members: Iterable[MembershipRecord], wall_ms: float) -> None:
        """What was known before a restart."""
        for member in members:
            if self.membership.take(member, wall_ms):
                self._settle(member)
        for entry in entries:
            self._take_entry(entry, old=True)

    def _take_entry(self, entry: SiteRecord, *, old: bool = False) -> None:
        if entry.name == self.own.name:
            if record_rank(entry) > record_rank(self.own):
                self._outdo(entry.revision)
        elif not self.membership.is_forgotten(entry.name) and self.catalogue.take(entry, old=old):
            self.beats.watch(entry.name)
            self._list(entry.name)

    def _answer_for_oneself(self, heard: Heartbeat) -> None:
        revision, beat = heard.seen
        if revision > self.own.revision:
            self._outdo(revision)
        if self.beat < beat < MAX_NUMBER // 2:  # more would leave nothing to count with
            self.beat = beat + 1

    def _outdo(self, revision: int) -> None:
        if revision < MAX_NUMBER:
            self.describe(msgspec.structs.replace(self.own, revision=revision + 1))

    def _settle(self, member: MembershipRecord) -> None:
        """Act on a decision about a member."""
        site = member.name
        if site == self.own.name:
            return
        if member.forgotten:
            self.catalogue.drop(site)
            self.beats.drop(site)
            self.distances.drop(site)
            self._listed.discard(site)
            self.names = [name for name in self.names if name != site]
        elif site in self.seeds:
            self._list(site)

    def _list(self, site: str) -> None:
        if site not in self._listed:
            self._listed.add(site)
            self.names.append(site)
