"""What a site knows of the mesh, what it passes on to other sites, and how it learns from their heartbeats.

Everything here merges by "the later counts", with counters that only their owner advances, so gossip may be lost,
doubled, reordered or old. A site can learn of greater counters than its own: it lost its store, or its clock was set
back. It continues from there, so its announcements count again after one round trip.

Any site may be stolen, so nothing is believed because a site says it. Records and decisions carry their proofs
(proofs.py); a site continues from a greater revision only if it signed that itself. All counters are wall times in
milliseconds, and what is ahead of our clock by more than `clock_skew` is not taken: no counter can be pushed so far
that its owner cannot follow. Beats, pairs and places of other sites are not signed. They are hints: they decide which
site to probe next, never by themselves that a site is up.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple, TypeVar

import msgspec

from cheops.peers.distances import Distances
from cheops.peers.heartbeat import (
    Heartbeat,
    MembershipRecord,
    MeshError,
    SiteRecord,
    check_addresses,
    check_entry,
)
from cheops.peers.liveness import HeartbeatCounters
from cheops.peers.membership import Catalogue, Membership, record_rank
from cheops.peers.name_conflicts import NameConflicts
from cheops.peers.proofs import Proofs, RecordError
from cheops.peers.settings import MeshSettings, Now
from cheops.text import printable, shortened

T = TypeVar("T")
FUTURE_RECORD, REVOKED_RECORD = "site record of the future", "site record from before it was forgotten"
_MOST_REFUSED = (
    8  # of one heartbeat and kind; the rest is not looked at: to verify a signature takes half a millisecond
)
_MOST_REPORTED = 64


class RefusedRecord(NamedTuple):
    """A record or a decision that was not taken, and the site that sent it."""

    sender: str
    reason: str
    detail: str


class HeartbeatOptions(msgspec.Struct, frozen=True):
    """The parts of a heartbeat that depend on its receiver."""

    to: str
    received_ms: float | None = None
    regular: bool = False
    every: int = 1
    introduce: bool = True  # the receiver does not know our entry
    their_revision: int | None = None  # of the receiver's own entry, if it said so
    their_digests: Sequence[int] = ()  # of the receiver's catalogue: show which records it may lack
    full: bool = True  # False: a few records, and no other gossip


class GossipState:
    """Entries, members, beats and distances."""

    def __init__(
        self, own: SiteRecord, peers: Mapping[str, str], now: Now, settings: MeshSettings, proofs: Proofs
    ) -> None:
        self._settings = settings
        self._proofs = proofs
        self.beat = max(int(now.wall_ms), 1)
        self.seeds = {name: url for name, url in peers.items() if name != own.name}
        self.catalogue = Catalogue(check_entry(proofs.sign_record(own)), settings)
        self.membership = Membership(settings, proofs)
        self.refused: deque[RefusedRecord] = deque(maxlen=_MOST_REPORTED)  # until the driver reports them
        # Each site starts its turn elsewhere, or all would gossip about the same sites first.
        self.beats = HeartbeatCounters(turn=blake2b(own.name.encode(), digest_size=1).digest()[0])
        self.distances = Distances(own.name, settings)
        self.conflicts = NameConflicts()
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
        own = self._proofs.sign_record(msgspec.structs.replace(own, revision=revision))
        self.catalogue.describe(check_entry(own))

    def is_described_by(self, own: SiteRecord) -> bool:
        """Whether the own record says just this, with the current certificate."""
        return self._proofs.sign_record(own) == self.own

    def advance(self, wall_ms: float) -> None:
        """Begin a period: the beat follows the clock. After the clock was set back, it counts on from where it was."""
        is_reachable = self.beat <= self._settings.latest_ms(wall_ms)
        self.beat = max(self.beat + 1 if is_reachable else 1, int(wall_ms))

    def take_back_revision(self, common_ms: float) -> None:
        """Describe this site anew if its record was made while its clock was ahead: no other site takes that one."""
        if self.own.revision > self._settings.latest_ms(common_ms):
            own = msgspec.structs.replace(self.own, revision=int(common_ms))
            self.catalogue.drop(own.name)
            self.catalogue.describe(check_entry(self._proofs.sign_record(own)))

    def decide(self, site: str, wall_ms: float, *, forgotten: bool) -> None:
        self._apply(self.membership.decide(site, wall_ms, forgotten=forgotten))

    def take_decision(self, decision: MembershipRecord, wall_ms: float) -> bool:
        """Take a decision that was made elsewhere. Returns whether it is new; raises RecordError."""
        is_new = self.membership.take(decision, wall_ms)
        if is_new:
            self._apply(decision)
        return is_new

    # -- sending -----------------------------------------------------------------------------------------

    def compose(self, options: HeartbeatOptions, wall_ms: float) -> Heartbeat:
        entry, own = self.catalogue.get(options.to), self.own
        gossip = self._gossip(options) if options.full else self._referral(options)
        return Heartbeat(
            own.name,
            own.incarnation,
            own.revision,
            self.beat,
            round(wall_ms, 3),
            received_ms=None if options.received_ms is None else round(options.received_ms, 3),
            seen=(entry.revision if entry else 0, self.beats.count(options.to)),
            regular=options.regular,
            every=options.every,
            coordinate=self.distances.shown_coordinate,
            decisions=self.membership.digest,
            members=tuple(self._members_for(options.to)),
            **gossip,
        )

    def _referral(self, options: HeartbeatOptions) -> dict[str, Any]:
        """For probes beyond the limit of a period: a few sites that the prober can learn from instead."""
        page = self.catalogue.page(options.their_digests, self._settings.referral_bytes)
        return {"entries": self._for_receiver(page, options)}

    def _for_receiver(self, entries: Iterable[SiteRecord], options: HeartbeatOptions) -> tuple[SiteRecord, ...]:
        """A site gets its own record only if it has forgotten that it signed it: then it must exceed it."""
        named = {entry.name: entry for entry in entries if entry.name != options.to}
        theirs, revision = self.catalogue.get(options.to), options.their_revision
        if theirs is not None and revision is not None and revision < theirs.revision:
            named[options.to] = theirs
        return tuple(named.values())

    def _gossip(self, options: HeartbeatOptions) -> dict[str, Any]:
        settings = self._settings
        entries = [self.own] if options.introduce else []
        page = self.catalogue.page(options.their_digests, settings.entry_bytes_per_message)
        entries += [*self.catalogue.fresh(), *page]
        return {
            "digests": self.catalogue.digests,
            "entries": self._for_receiver(entries, options),
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
        sender, latest_ms = heartbeat.sender, self._settings.latest_ms(wall_ms)
        # Decisions first: a forgotten sender may bring news of them, but nothing else of it counts.
        self.learn_decisions(sender, heartbeat.members, wall_ms)
        if self.membership.is_forgotten(sender):
            return []
        self.membership.note_digest(sender, heartbeat.incarnation, heartbeat.decisions)
        if self.beat < heartbeat.seen[1] <= latest_ms:
            self.beat = heartbeat.seen[1] + 1
        own_latest_ms = self._settings.latest_ms(max(wall_ms, heartbeat.sent_ms))
        self._take_each(
            sender, heartbeat.entries, lambda entry: self._take_entry(entry, latest_ms, own_latest_ms, now_ms)
        )
        names, distances = self.catalogue.names, self.distances
        beats = ((sender, heartbeat.beat), *heartbeat.beats)
        returning = self.beats.take(beats, now_ms, latest_ms)
        distances.take_pairs(heartbeat.pairs, names, self.beats.count, now_ms, latest_ms)
        places = ((sender, heartbeat.beat, heartbeat.coordinate), *heartbeat.places)
        distances.take_places(places, names, now_ms, latest_ms)
        return returning

    def learn_decisions(self, sender: str, members: Iterable[MembershipRecord], wall_ms: float) -> None:
        self._take_each(sender, members, lambda member: self.take_decision(member, wall_ms))

    def restore(self, entries: Iterable[SiteRecord], members: Iterable[MembershipRecord], wall_ms: float) -> None:
        """Take what was saved before a restart. Records are verified again; decisions stay in force."""
        for member in members:
            if self.membership.restore(member):
                self._apply(member)
        self.membership.renew_proofs()
        latest_ms = self._settings.latest_ms(wall_ms)
        for entry in entries:
            try:
                self._take_entry(entry, latest_ms, latest_ms, None)
            except MeshError as error:
                self._refuse("", error)  # no site has sent it; its authority may be one from before

    def _take_each(self, sender: str, items: Iterable[T], take: Callable[[T], object]) -> None:
        """Take each of them. What is refused costs its sender one record, and no more of it than a few are tried."""
        refused = 0
        for item in items:
            try:
                take(item)
            except MeshError as error:
                self._refuse(sender, error)
                refused += 1
                if refused == _MOST_REFUSED:
                    return

    def _refuse(self, sender: str, error: MeshError) -> None:
        self.refused.append(RefusedRecord(sender, error.reason, str(error)))

    def _take_entry(self, entry: SiteRecord, latest_ms: float, own_latest_ms: float, now_ms: float | None) -> None:
        """Raises MeshError. `latest_ms` bounds revisions; `own_latest_ms` those of our own record, which may be from
        before our clock was set back. `now_ms` is None for a record from the disk, which is no news."""
        if entry.name == self.own.name:
            if record_rank(entry) > record_rank(self.own) and entry.revision <= own_latest_ms:
                self._check_proof(entry)  # only this site's own signature makes it continue from there
                self._note_agents((self.own, entry), now_ms)
                self.describe(msgspec.structs.replace(self.own, revision=entry.revision + 1))
        elif not self.membership.is_forgotten(entry.name) and self.catalogue.is_news(entry):
            self._check_entry(entry, latest_ms)
            if self.catalogue.take(entry, old=now_ms is None):
                self._note_agents((entry,), now_ms)
                self.beats.watch(entry.name)
                self._list(entry.name)

    def _note_agents(self, records: Iterable[SiteRecord], now_ms: float | None) -> None:
        if now_ms is not None:
            for record in records:
                self.conflicts.note(record, now_ms)

    def _check_entry(self, entry: SiteRecord, latest_ms: float) -> None:
        shown = printable(shortened(entry.name))
        if entry.revision > latest_ms:
            raise RecordError(FUTURE_RECORD, f"the record of '{shown}' has a revision ahead of our clock")
        check_addresses(entry)
        self._check_proof(entry)

    def _check_proof(self, entry: SiteRecord) -> None:
        made_ms, decision = self._proofs.made_ms(entry), self.membership.of(entry.name)
        if made_ms is not None and decision is not None and made_ms <= decision.stamp_ms:
            shown = printable(shortened(entry.name))
            raise RecordError(REVOKED_RECORD, f"the record of '{shown}' has a certificate that was revoked")

    def _apply(self, member: MembershipRecord) -> None:
        """Carry out a decision about a site."""
        site = member.name
        self.conflicts.drop(site)
        if site == self.own.name:
            return
        if member.forgotten or self._is_revoked(member):
            self.catalogue.drop(site)
            self.beats.drop(site)
            self.distances.drop(site)
            self._listed.discard(site)
            self.names = [name for name in self.names if name != site]
        if not member.forgotten and site in self.seeds:
            self._list(site)

    def _is_revoked(self, member: MembershipRecord) -> bool:
        """Whether the site's record is from before it was forgotten and admitted; we may have missed the first."""
        entry = self.catalogue.get(member.name)
        try:
            made_ms = self._proofs.made_ms(entry) if entry else None
        except MeshError:
            return True
        return made_ms is not None and made_ms <= member.stamp_ms

    def _list(self, site: str) -> None:
        if site not in self._listed:
            self._listed.add(site)
            self.names.append(site)
