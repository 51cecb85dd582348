"""The mesh as one site sees it: which sites to probe, what to answer, which sites are up, and how far away they are.

Sans-I/O. The driver (prober.py) calls `tick` at least once per period and sends the probes that it returns. It passes
each incoming probe to `received_probe` and sends the answer back. It reports the outcome of each own probe
(`probe_answered`, `probe_failed`); a probe without a report fails by itself after its timeout. All of these also return
events for the engine.

Invariants: `PeerUp` is only about a site that answered a probe of ours, with the incarnation of that answer. A site
that shares resources with this one goes down only by probes of ours that it did not answer: what others say of it does
not count. Each event differs from the last one about its peer. At most one probe per site is on its way. What is sent
per period is bounded, whatever other sites do.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf
from typing import Any

import msgspec

from cheops.errors import ClientError
from cheops.peers import views
from cheops.peers.common_clock import CommonClock
from cheops.peers.distances import Distance
from cheops.peers.gossip import GossipState, HeartbeatOptions, RefusedRecord
from cheops.peers.heartbeat import Heartbeat, MembershipRecord, MeshError, SavedMesh, SiteRecord
from cheops.peers.liveness import NO_HISTORY, Assessment, SiteState, assess
from cheops.peers.name_conflicts import NameConflict
from cheops.peers.probes import (
    Announcements,
    AnswerLoad,
    Draw,
    PeerEvent,
    PeerState,
    PeerTable,
    Probe,
    ProbeCandidates,
    ProbeScheduler,
    SentProbe,
    updated_round_trip,
)
from cheops.peers.proofs import NoProofs, Proofs
from cheops.peers.settings import MeshSettings, Now, SteadyClock
from cheops.peers.views import SiteView
from cheops.scope.snapshot import Snapshot
from cheops.text import shortened

_CLEAN_UP_PERIODS = 16
_PAUSE_PERIODS = 3  # without a tick for so long, this agent stood still: see SteadyClock


class Mesh:
    """One site's part in the mesh. `own.revision` is set here; `saved` is what `saved()` gave earlier. Without `proofs`
    everything is believed."""

    def __init__(  # noqa: PLR0913, PLR0917 - what a mesh begins with
        self,
        own: SiteRecord,
        peers: Mapping[str, str],
        now: Now,
        settings: MeshSettings | None = None,
        saved: SavedMesh | None = None,
        proofs: Proofs | None = None,
    ) -> None:
        self.settings = settings or MeshSettings()
        self._proofs = proofs or NoProofs()
        saved = saved or SavedMesh()
        own = self._revised(own, saved.own, now)
        self._known = GossipState(own, peers, now, self.settings, self._proofs)
        self._known.restore(saved.entries, saved.members, now.wall_ms)
        self._clock = SteadyClock(_PAUSE_PERIODS * self.settings.period_ms)
        self.common_clock = CommonClock(now, self.settings.clock_skew_ms / 2)
        self._scheduler = ProbeScheduler(self.settings)
        self._peers = PeerTable(self.settings)
        self._load = AnswerLoad(self.settings)
        self._announced = Announcements()
        for site in self._known.seeds:
            self._scheduler.may_be_back(site)
        self._forgotten_seen_ms: dict[str, float] = {}  # when a forgotten site last probed this one
        self._duplicate: str | None = None  # the incarnation of another agent that uses the name of this site
        self._was_forgotten = self._known.is_forgotten  # when the last decision was applied
        self._next_ms = -inf
        self._periods = 0
        self._urgent_left = 0

    def _revised(self, own: SiteRecord, before: SiteRecord | None, now: Now) -> SiteRecord:
        """The own record of this start. Its revision grows only with a change: a restart need not be announced. One
        from the future is of a time when the clock was wrong, and other sites do not take it."""
        if before is not None and before.revision <= self.settings.latest_ms(now.wall_ms):
            same = msgspec.structs.replace(own, revision=before.revision)
            if self._proofs.sign_record(same) == before:
                return before
            return msgspec.structs.replace(own, revision=max(int(now.wall_ms), before.revision + 1))
        return msgspec.structs.replace(own, revision=max(int(now.wall_ms), 1))

    # -- driving -----------------------------------------------------------------------------------------

    def tick(self, now: Now, draw: Draw) -> tuple[list[Probe], list[PeerEvent]]:
        """The probes that are due now, and the events."""
        now_ms = self._clock.tick(now)
        jumped_ms, is_new_period = self.common_clock.jumped_ms(now), now_ms >= self._next_ms
        self._peers.clock_was_set(jumped_ms)
        if jumped_ms or is_new_period:  # not with every tick: it looks at all sites
            self.common_clock.compare(now, self._peers.clock_offsets(self._announced.up))
        for sent in self._peers.expired(now_ms):
            self._missed(sent.site, now_ms)
        if is_new_period:
            # A period varies by 5 %, so that sites that were started together do not probe in step for ever.
            self._next_ms = now_ms + self.settings.period_ms * (0.95 + draw(101) / 1_000)
            sites = self._new_period(now_ms, self.common_clock.time_ms(now), draw)
        else:
            sites = self._scheduler.next_immediate(self._candidates(now_ms), self._urgent_left)
            self._urgent_left -= len(sites)
        return [self._probe(site, now, now_ms) for site in sites], self._announced.drain()

    def wait_ms(self, now: Now) -> float:
        """For how long a tick would have nothing to do, except to expire probes that are on their way."""
        if self._scheduler.has_immediate and self._urgent_left > 0:
            return 0.0
        return max(self._next_ms - self._clock.time_ms(now), 0.0)

    def received_probe(self, payload: Heartbeat, now: Now) -> tuple[Heartbeat, list[PeerEvent]]:
        """The answer to a probe. The caller has checked the sender by its certificate."""
        now_ms, site = self._clock.time_ms(now), payload.sender
        if site == self.own.name:
            # A site may probe itself, by an address that leads back to it. Another incarnation is a copy of this site.
            if payload.incarnation != self.own.incarnation:
                self._duplicate = payload.incarnation
            return self._known.compose(HeartbeatOptions(site, now.wall_ms, full=False), now.wall_ms), []
        self._learn(payload, now_ms, self.common_clock.time_ms(now))
        self._note_prober(payload, now_ms)
        is_member = not self._known.membership.is_forgotten(site)
        options = HeartbeatOptions(
            site,
            received_ms=now.wall_ms,
            every=self._load.every,
            introduce=payload.seen[0] < self.own.revision,
            their_revision=payload.revision if is_member else None,
            # A forgotten site learns of the decision about it, and nothing else about the mesh.
            their_digests=payload.digests if is_member else (),
            full=is_member and self._load.may_gossip(),
        )
        return self._known.compose(options, now.wall_ms), self._announced.drain()

    def probe_answered(self, probe_id: int, payload: Heartbeat, now: Now) -> list[PeerEvent]:
        """Take the answer to an own probe. After its timeout an answer does not count."""
        if sent := self._peers.returned(probe_id):
            now_ms = self._clock.time_ms(now)
            self._learn(payload, now_ms, self.common_clock.time_ms(now))
            if payload.sender == sent.site and self._known.knows(sent.site):
                self._answered(sent, payload, now, now_ms)
            elif self._known.knows(sent.site):
                # Another site has this address by now. That says nothing good of the site that was meant.
                self._peers[sent.site].answers_as = payload.sender
                self._missed(sent.site, now_ms)
        return self._announced.drain()

    def probe_failed(self, probe_id: int, now: Now, why: str = "") -> list[PeerEvent]:
        """Note that an own probe was refused, or timed out."""
        sent = self._peers.returned(probe_id, why)
        if sent is not None:
            self._missed(sent.site, self._clock.time_ms(now))
        return self._announced.drain()

    # -- changes -----------------------------------------------------------------------------------------

    def interest(self, sites: Iterable[str]) -> None:
        """Set the sites that share resources with this one: it must notice within seconds if one goes down."""
        before = self._scheduler.interest
        self._scheduler.share_with(site for site in sites if site != self.own.name)
        for site in sorted(self._scheduler.interest - before - self._announced.up.keys()):
            self._scheduler.probe_now(site)

    def probe_now(self, site: str) -> None:
        """Probe a site at the next tick, for instance because a message to it failed."""
        self._scheduler.probe_now(site)

    def describe(self, **changes: Any) -> None:
        """Change these fields of the own record; the next heartbeats announce it. The same if nothing but this site's
        certificate has changed."""
        changed = msgspec.structs.replace(self.own, **changes)
        if not self._known.is_described_by(changed):
            self._known.describe(changed)

    def renew_decisions(self) -> None:
        """The authorities have changed: sign the decisions in force with the new key, if this site has it."""
        self._known.membership.renew_proofs()

    def forget(self, site: str, now: Now) -> list[PeerEvent]:
        """Remove a site from the mesh for good, whatever its state. Gossip spreads the decision."""
        if site == self.own.name:
            raise ClientError(f"'{site}' cannot forget itself; do it at another site")
        if not self._known.knows(site) and self.member_of(site) is None:
            raise views.unknown_site(site, self._known.names)
        return self._decide(site, now, forgotten=True)

    def admit(self, site: str, now: Now) -> list[PeerEvent]:
        """Admit a forgotten site again; it is back with its next heartbeat."""
        if not self._known.membership.is_forgotten(site):
            raise ClientError(f"'{shortened(site)}' was not forgotten, so there is nothing to undo")
        return self._decide(site, now, forgotten=False)

    def take_decision(self, decision: MembershipRecord, now: Now) -> list[PeerEvent]:
        """Take a decision that an operator signed with the authority's key. Raises ClientError."""
        try:
            is_new = self._known.take_decision(decision, self.common_clock.time_ms(now))
        except MeshError as error:
            raise ClientError(str(error), status=403, reason=error.reason) from None
        if not is_new:
            raise ClientError(
                f"there is a later decision about '{shortened(decision.name)}', or this is the last one already",
                status=409,
            )
        self._apply_membership(self._clock.time_ms(now))
        return self._announced.drain()

    def end_certificates(self, site: str, now: Now) -> list[PeerEvent]:
        """Decide anew that a site is a member, even if it was forgotten: its certificates from before are refused."""
        if site == self.own.name:
            raise ClientError(f"'{site}' cannot end its own certificate; use 'cheops site rejoin --ca' there")
        return self._decide(site, now, forgotten=False)

    def learn_own_membership(self, member: MembershipRecord, sender: str, now: Now) -> None:
        """Take the decision about this site by which another site refused its probe."""
        if member.name == self.own.name:
            self._known.learn_decisions(sender, (member,), self.common_clock.time_ms(now))

    def probes_to(self, sites: Iterable[str], now: Now) -> list[Probe]:
        """Probes that do not wait for their turn, to sites that are up and have none on its way: for news that must
        arrive at once."""
        now_ms = self._clock.time_ms(now)
        return [self._probe(site, now, now_ms) for site in sites if self._can_probe(site) and site in self.up]

    def refused_records(self) -> list[RefusedRecord]:
        """What was refused since the last call."""
        refused = list(self._known.refused)
        self._known.refused.clear()
        return refused

    def saved(self) -> SavedMesh:
        """What to save on disk, from time to time and at the end."""
        entries = (entry for entry in self._known.catalogue.entries() if entry.name != self.own.name)
        return SavedMesh(self.own, tuple(entries), self._known.membership.records())

    # -- look-ups ------------------------------------------------------------------------------------------

    @property
    def own(self) -> SiteRecord:
        return self._known.own

    @property
    def forgotten(self) -> frozenset[str]:
        """The sites that were removed for good."""
        return frozenset(self._known.membership.forgotten())

    def is_site_forgotten(self, site: str) -> bool:
        return self._known.membership.is_forgotten(site)

    @property
    def is_forgotten(self) -> bool:
        """Whether the other sites removed this one: it runs, but takes no part."""
        return self._known.is_forgotten

    @property
    def known_sites(self) -> Collection[str]:
        """The names in the catalogue, of this site too."""
        return self._known.catalogue.names

    @property
    def up(self) -> Mapping[str, str]:
        """The peers that were reported up to the engine, with their incarnations."""
        return self._announced.up

    def member_of(self, site: str) -> MembershipRecord | None:
        """The last decision about a site; None if there never was one."""
        return self._known.membership.of(site)

    @property
    def changes(self) -> int:
        """A number that changes with each record of a site that is taken."""
        return self._known.catalogue.changes

    @property
    def decisions(self) -> int:
        """A number that changes with each decision that is taken."""
        return self._known.membership.decisions

    def without_decision(self, about: str) -> list[str]:
        """The other sites of the mesh that have not confirmed the last decision about a site; sorted."""
        has_confirmed = self._known.membership.has_confirmed
        return sorted(site for site in self._known.names if site != about and not has_confirmed(site, about))

    def issuers(self) -> list[str]:
        """The sites that have the key of an authority, as they say; sorted."""
        return sorted(entry.name for entry in self._known.catalogue.entries() if entry.issues)

    @property
    def may_decide(self) -> bool:
        """Whether this site can forget and admit others by itself."""
        return self._proofs.may_decide

    def entry_of(self, site: str) -> SiteRecord | None:
        return self._known.catalogue.get(site)

    def problem_of(self, site: str) -> str:
        """Why the last probe of a site failed; empty if it did not."""
        return (self._peers.get(site) or PeerState()).problem

    def state_of(self, site: str, now: Now) -> Assessment:
        return self._assess(site, self._clock.time_ms(now))

    def sites(self, now: Now) -> list[SiteView]:
        """All sites: this one, those known, and those forgotten."""
        now_ms = self._clock.time_ms(now)
        names = {self.own.name, *self._known.names, *self._known.membership.forgotten()}
        distances = self.distances_from(self.own.name, now)

        def view(name: str) -> SiteView:
            seen = (self._assess(name, now_ms), self._peers.get(name) or PeerState())
            return views.view_of(self._known, name, seen, distances.get(name), now_ms)

        return [view(name) for name in sorted(names)]

    def distances_from(self, site: str, now: Now) -> dict[str, Distance]:
        """How far all other sites are from a site, as far as this one knows."""
        table = self._known.distances.table(self._clock.time_ms(now))
        return table.distances_from(site, (self.own.name, *self._known.names))

    def snapshot(self, now: Now) -> Snapshot:
        """The mesh as scope-lang needs it."""
        table = self._known.distances.table(self._clock.time_ms(now))
        return views.snapshot_of(self.own.name, self.sites(now), table)

    def problems(self) -> list[str]:
        """Problems that an operator should know."""
        problems = list(views.problems(self._known, self._peers))
        if self._duplicate is not None:
            problems.append(f"another agent calls itself '{self.own.name}' too (incarnation {self._duplicate})")
        return problems

    def name_conflicts(self) -> list[NameConflict]:
        """The names of sites that several agents use now."""
        return self._known.conflicts.all()

    # -- periods -----------------------------------------------------------------------------------------

    def _new_period(self, now_ms: float, wall_ms: float, draw: Draw) -> list[str]:
        self._periods += 1
        self._known.advance(wall_ms)
        if self.common_clock.offset_ms is not None:
            self._known.take_back_revision(wall_ms)
        self._urgent_left = self.settings.urgent_probes
        self._load.new_period(now_ms)
        if self._periods % _CLEAN_UP_PERIODS == 8:
            self._clean_up(now_ms)
        if self._periods % self.settings.row_periods(len(self._known.names)) == 0:
            self._known.distances.repeat_row()
        self._expire_evidence(now_ms)
        return self._scheduler.choose(self._candidates(now_ms), draw)

    def _clean_up(self, now_ms: float) -> None:
        known, settings = self._known, self.settings
        known.distances.expire(now_ms, 4 * settings.row_periods(len(known.names)) * settings.period_ms)
        known.distances.trim_row()
        known.conflicts.expire(now_ms)
        for site in known.seeds:
            if site not in self._announced.up:
                # Gossip never reaches a part of the mesh that no site here has met: a configured address does.
                self._scheduler.may_be_back(site)
        self._scheduler.near = known.distances.nearest(known.names, settings.near_sites, now_ms)

    def _expire_evidence(self, now_ms: float) -> None:
        """Act on evidence that grew too old: a site goes down without any event when all signs of it end."""
        sites, beats = len(self._known.names), self._known.beats
        beats.expire_silent(now_ms, self.settings.down_ms(sites))
        # A site that was heard of lately is up, unless it missed our own probe: so few must be looked at.
        old = beats.not_heard_since(self._announced.up, now_ms - self.settings.suspect_ms(sites)) | self._peers.suspects
        for site in [site for site in self._announced.up if site in old]:
            assessment = self._assess(site, now_ms)
            if assessment.state is SiteState.SUSPECT or (site in self._scheduler.interest and not assessment.is_up):
                self._scheduler.doubt(site)
            elif not assessment.is_up:
                self._peers.set_link(site, self._peers[site].link.lapsed())
                self._update_state(site, now_ms)

    def _can_probe(self, site: str) -> bool:
        peer = self._peers.get(site)
        return self._known.knows(site) and not (peer and peer.is_waiting)

    def _candidates(self, now_ms: float) -> ProbeCandidates:
        def is_due(site: str) -> bool:
            peer = self._peers.get(site)
            # Half a period of tolerance, because ticks are not exact.
            return peer is None or now_ms - peer.probed_ms >= (peer.every - 0.5) * self.settings.period_ms

        def is_absent(site: str) -> bool:
            return not self._assess(site, now_ms).is_up

        return ProbeCandidates(self._known.names, self._can_probe, is_due, is_absent)

    def _probe(self, site: str, now: Now, now_ms: float) -> Probe:
        peer = self._peers[site]
        sent = self._peers.send(site, now, now_ms, self._clock.pauses)
        options = HeartbeatOptions(
            site,
            regular=site in self._scheduler.interest,
            introduce=peer.knows_revision < self.own.revision,
        )
        url = self._known.url(site, peer.link.misses)
        return Probe(sent.id, site, url, sent.expires_ms - now_ms, self._known.compose(options, now.wall_ms))

    # -- evidence ----------------------------------------------------------------------------------------

    def _answered(self, sent: SentProbe, payload: Heartbeat, now: Now, now_ms: float) -> None:
        peer = self._peers[sent.site]
        peer.answers_as = None
        peer.incarnation = payload.incarnation
        peer.knows_revision = payload.seen[0]
        peer.every = min(payload.every, self.settings.max_every)
        self._peers.set_link(sent.site, peer.link.answered(now_ms, self.settings))
        # Otherwise the time measured is that of our own pause, or of two clocks.
        if sent.pauses == self._clock.pauses and not self.common_clock.was_set_between(sent.at, now):
            peer.trip = updated_round_trip(peer.trip, sent, payload, now, now_ms)
            distances = self._known.distances
            distances.measured(sent.site, peer.trip.rtt_ms, payload.coordinate, self._known.beat, now_ms)
        self._update_state(sent.site, now_ms)

    def _missed(self, site: str, now_ms: float) -> None:
        if self._known.knows(site):
            peer = self._peers[site]
            self._peers.set_link(site, peer.link.missed(now_ms, self.settings))
            self._update_state(site, now_ms)

    def _learn(self, payload: Heartbeat, now_ms: float, wall_ms: float) -> None:
        decisions = self._known.membership.decisions
        for site in self._known.learn(payload, now_ms, wall_ms):
            peer = self._peers.get(site)
            if peer is not None and not peer.link.reaches:
                # The whole mesh was silent about it, so it was an outage, which is over: old misses do not count.
                self._peers.set_link(site, peer.link.lapsed())
                self._scheduler.may_be_back(site)
        if self._known.membership.decisions != decisions:
            self._apply_membership(now_ms)

    def _note_prober(self, payload: Heartbeat, now_ms: float) -> None:
        """An incoming probe does not prove that we reach its sender, but it is a reason to try."""
        site = payload.sender
        if self._known.membership.is_forgotten(site):
            self._forgotten_seen_ms[site] = now_ms
            return
        if self._known.knows(site):
            self._peers[site].arrived_ms = now_ms
        if payload.regular:
            self._load.note_regular(site, now_ms)
        if self._announced.up.get(site) != payload.incarnation:
            self._scheduler.may_be_back(site)

    def _decide(self, site: str, now: Now, *, forgotten: bool) -> list[PeerEvent]:
        if not self._proofs.may_decide:
            raise views.no_authority(self.own.name, site, self.issuers(), forgotten=forgotten)
        self._known.decide(site, self.common_clock.time_ms(now), forgotten=forgotten)
        self._apply_membership(self._clock.time_ms(now))
        return self._announced.drain()

    def _apply_membership(self, now_ms: float) -> None:
        """A forgotten site is not up; if this site was forgotten, none is."""
        for site in self._known.membership.forgotten():
            self._peers.drop(site)
            self._scheduler.drop(site)
        up, known = self._announced.up, self._known
        if known.is_forgotten or self._was_forgotten:
            self._was_forgotten = known.is_forgotten
            changed = {*up, *(site for site, _ in self._peers.items())}
        else:
            changed = {site for site in up if not known.knows(site)}
        for site in sorted(changed):
            self._update_state(site, now_ms)

    def _update_state(self, site: str, now_ms: float) -> None:
        peer = self._peers.get(site)
        up = peer is not None and peer.link.reaches and self._known.knows(site) and not self._known.is_forgotten
        # Hearsay counts only for sites that share nothing with this one; those that do are probed all the time.
        up = up and (site in self._scheduler.interest or self._assess(site, now_ms).is_up)
        # The incarnation is that of the answer, not of gossip: the engine must not send to a life that has ended.
        self._announced.set_state(site, peer.incarnation if peer is not None and up else None)
        if peer is not None and peer.link.wavering:
            self._scheduler.doubt(site)

    def _assess(self, site: str, now_ms: float) -> Assessment:
        if self._known.membership.is_forgotten(site):
            seen_ms = self._forgotten_seen_ms.get(site)
            return Assessment(
                SiteState.FORGOTTEN,
                direct=False,
                as_of_ms=None if seen_ms is None else max(now_ms - seen_ms, 0.0),
            )
        if site == self.own.name:
            return Assessment(SiteState.UP, direct=True, as_of_ms=0.0)
        peer = self._peers.get(site)
        beat_age_ms = self._known.beats.age_ms(site, now_ms)
        return assess(peer.link if peer else NO_HISTORY, beat_age_ms, now_ms, len(self._known.names), self.settings)
