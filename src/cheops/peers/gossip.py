"""What a site knows of the mesh, what it passes on to other sites, and how it learns from their heartbeats.

Everything here merges by "the later counts", with counters that only their owner advances, so gossip may be lost,
doubled, reordered or old. A site can learn of greater counters than its own: it lost its store, or its clock was set
back. It continues from there, so its announcements count again after one round trip.
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
    """The parts of a heartbeat that depend on its receiver."""

    to: str
    received_ms: float | None = None
    regular: bool = False
    every: int = 1
    introduce: bool = True  # the receiver does not know our entry
    their_digests: Sequence[int] = ()  # of the receiver's catalogue: show which records it may lack
    full: bool = True  # False: a few records, and no other gossip


class GossipState:
    """Entries, members, beats and distances."""

    def __init__(self, own: SiteRecord, peers: Mapping[str, str], now: Now, settings: MeshSettings) -> None:
        self._settings = settings
        # Started from the clock, so that after a restart the counter is greater than any that others have seen.
        self.beat = max(int(now.wall_ms / settings.period_ms), 1)
        self.seeds = {name: url for name, url in peers.items() if name != own.name}
        self.catalogue = Catalogue(check_entry(own), settings)
        self.membership = Membership(settings)
        # Each site starts its turn elsewhere, or all would gossip about the same sites first.
        self.beats = HeartbeatCounters(turn=blake2b(own.name.encode(), digest_size=1).digest()[0])
        self.distances = Distances(own.name, settings)
        self.names: list[str] = []  # all other sites, by configuration or gossip, without the forgotten ones
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
        """The address of a site: from its own record, or on every second miss from the configuration.

        Either may be out of date after a move.
        """
        entry, seed = self.catalogue.get(site), self.seeds.get(site)
        if entry is None or (seed is not None and misses % 2 == 1):
            return seed or ""
        return entry.url

    def describe(self, own: SiteRecord) -> None:
        """Replace the own record; its revision grows."""
        revision = max(own.revision, self.own.revision + 1)
        self.catalogue.describe(check_entry(msgspec.structs.replace(own, revision=revision)))

    def decide(self, site: str, wall_ms: float, *, forgotten: bool) -> None:
        self._apply(self.membership.decide(site, wall_ms, forgotten=forgotten))

    # -- sending -----------------------------------------------------------------------------------------

    def compose(self, options: HeartbeatOptions, wall_ms: float) -> Heartbeat:
        entry = self.catalogue.get(options.to)
        head = Heartbeat(
            self.own.name,
            self.own.incarnation,
            self.own.revision,
            self.beat,
            round(wall_ms, 3),
            received_ms=None if options.received_ms is None else round(options.received_ms, 3),
            seen=(entry.revision if entry else 0, self.beats.count(options.to)),
            regular=options.regular,
            every=options.every,
            coordinate=rounded(self.distances.coordinate),
            members=tuple(self._members_for(options.to)),
        )
        gossip = self._gossip(options) if options.full else self._referral(options)
        return msgspec.structs.replace(head, **gossip)

    def _referral(self, options: HeartbeatOptions) -> dict[str, object]:
        """For probes beyond the limit of a period: a few sites that the prober can learn from instead."""
        return {"entries": tuple(self.catalogue.page(options.their_digests, self._settings.referral_bytes))}

    def _gossip(self, options: HeartbeatOptions) -> dict[str, object]:
        settings = self._settings
        entries = [self.own] if options.introduce else []
        page = self.catalogue.page(options.their_digests, settings.entry_bytes_per_message)
        entries += [*self.catalogue.fresh(), *page]
        return {
            "digests": self.catalogue.digests,
            "entries": tuple({entry.name: entry for entry in entries if entry.name != options.to}.values()),
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

    def learn(self, heartbeat: Heartbeat, now_ms: float, wall_ms: float) -> list[str]:
        """Learn from a heartbeat. Returns the sites that had fallen silent and show signs of life again."""
        # Decisions first: a forgotten sender may bring news of them, but nothing else of it counts.
        for member in heartbeat.members:
            if self.membership.take(member, wall_ms):
                self._apply(member)
        if self.membership.is_forgotten(heartbeat.sender):
            return []
        self._catch_up(heartbeat)
        for entry in heartbeat.entries:
            self._take_entry(entry)
        names, distances = self.catalogue.names, self.distances
        returning = self.beats.take(((heartbeat.sender, heartbeat.beat), *heartbeat.beats), now_ms)
        distances.take_pairs(heartbeat.pairs, names, self.beats.count, now_ms)
        places = ((heartbeat.sender, heartbeat.beat, heartbeat.coordinate), *heartbeat.places)
        distances.take_places(places, names, now_ms)
        return returning

    def restore(self, entries: Iterable[SiteRecord], members: Iterable[MembershipRecord], wall_ms: float) -> None:
        """Take what was saved before a restart."""
        for member in members:
            if self.membership.take(member, wall_ms):
                self._apply(member)
        for entry in entries:
            self._take_entry(entry, old=True)

    def _take_entry(self, entry: SiteRecord, *, old: bool = False) -> None:
        if entry.name == self.own.name:
            if record_rank(entry) > record_rank(self.own):
                self._exceed(entry.revision)
        elif not self.membership.is_forgotten(entry.name) and self.catalogue.take(entry, old=old):
            self.beats.watch(entry.name)
            self._list(entry.name)

    def _catch_up(self, heartbeat: Heartbeat) -> None:
        """Continue from the own counters as the sender has seen them, if those are greater."""
        revision, beat = heartbeat.seen
        if revision > self.own.revision:
            self._exceed(revision)
        if self.beat < beat < MAX_NUMBER // 2:  # a false count near the maximum would use up all numbers
            self.beat = beat + 1

    def _exceed(self, revision: int) -> None:
        if revision < MAX_NUMBER:
            self.describe(msgspec.structs.replace(self.own, revision=revision + 1))

    def _apply(self, member: MembershipRecord) -> None:
        """Carry out a decision about a site."""
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
