"""Which sites are up: own evidence, hearsay, and how the two are weighed.

**Own evidence** is a round trip of a probe that this site sent. An incoming probe is not enough: engine messages go
directly, and need the way there as much as the way back. A `ProbeHistory` keeps the outcome of the own probes:

    UNKNOWN --answer--> UP <--answer-- SUSPECT --misses--> DOWN --answers--> UP
                         '----miss------^
    UNKNOWN --misses--> DOWN

How many misses: as many as make it less likely than one in a million that they are mere loss, given how
much this link has lost so far; between 4 (a good link) and 14. Misses of an outage do not count as loss.
A new link is given the benefit of the doubt. How many answers: one for a first contact or after a long
absence; one more for every recent fall, fading with a half-life of a minute. So one lost probe does not take a site
down, and a site that goes up and down must stay up for longer before it counts as up.

**Hearsay** is a heartbeat counter that was seen to advance (`HeartbeatCounters`). Each site counts its own
periods and others pass the count on. Only the site itself can advance its count, so a dead site's count stands
still however often old gossip goes round. A first sighting proves nothing: the count may be years old. A site
is *live* when its count was seen to advance; one that fell silent, only when it advanced twice (old gossip from
a part of the mesh that was cut off can advance it once).

`assess` weighs: own misses beat hearsay; a fresh own answer needs no hearsay; otherwise the youngest sign of
life of either kind counts, by its age. Own misses no longer count once every site was silent about the site and
it is heard of again: that was an outage, and it is over.
"""

from collections.abc import Iterable
from enum import StrEnum
from math import ceil, inf, log

from msgspec import Struct
from msgspec.structs import replace

from cheops.peers.settings import MeshSettings

_NEVER = -1


class HeartbeatCounters:
    """The heartbeat counters of all other sites in the catalogue."""

    def __init__(self, turn: int = 0) -> None:
        self._counts: dict[str, int] = {}
        self._live: dict[str, float] = {}  # when it advanced
        self._silent: dict[str, float] = {}  # the same of sites that fell silent since
        self._advances_needed: dict[str, int] = {}  # how many more advances make a silent site live
        self._names: list[str] = []  # those that have a count
        self._turn = turn

    def watch(self, site: str) -> None:
        self._counts.setdefault(site, _NEVER)

    def drop(self, site: str) -> None:
        if self._counts.pop(site, _NEVER) != _NEVER:
            self._names.remove(site)
        for known in (self._live, self._silent, self._advances_needed):
            known.pop(site, None)

    def count(self, site: str) -> int:
        return max(self._counts.get(site, 0), 0)

    def age_ms(self, site: str, now_ms: float) -> float | None:
        """How long ago a site's counter was last seen to advance; None if it never was."""
        at_ms = self._live.get(site, self._silent.get(site))
        return None if at_ms is None else max(now_ms - at_ms, 0.0)

    def not_heard_since(self, sites: Iterable[str], at_ms: float) -> set[str]:
        """Those of these sites whose counter was not seen to advance since a time."""
        live, silent = self._live, self._silent
        return {site for site in sites if live.get(site, silent.get(site, -inf)) < at_ms}

    def take(self, beats: Iterable[tuple[str, int]], now_ms: float, latest: float = inf) -> list[str]:
        """Take counters, up to the `latest` possible one. Returns the sites that had fallen silent and live again."""
        returning = []
        counts, live = self._counts, self._live
        for site, count in beats:
            before = counts.get(site)
            if before is None or count <= before or count > latest:
                continue
            counts[site] = count
            if site in live:
                live[site] = now_ms
            elif before == _NEVER:
                # A first sighting: it can be arbitrarily old, so the site is not live yet.
                self._names.append(site)
            elif self._is_live_again(site):
                live[site] = now_ms
                if self._silent.pop(site, None) is not None:
                    returning.append(site)
        return returning

    def _is_live_again(self, site: str) -> bool:
        """Whether this was the last advance that the site needed."""
        needed = self._advances_needed.pop(site, 1) - 1
        if needed > 0:
            self._advances_needed[site] = needed
        return needed <= 0

    def expire_silent(self, now_ms: float, limit_ms: float) -> None:
        """Sites that were silent for too long are not live until they advance twice."""
        for site in [name for name, at_ms in self._live.items() if now_ms - at_ms > limit_ms]:
            self._silent[site] = self._live.pop(site)
            self._advances_needed[site] = 2

    def gossip(self, most: int) -> list[tuple[str, int]]:
        """The next counters to pass on, in turn, of sites that may be alive."""
        names, counts, silent = self._names, self._counts, self._advances_needed
        entries: list[tuple[str, int]] = []
        left = len(names)
        while left and len(entries) < most:
            start = self._turn % len(names)
            part = names[
                start : start + min(most - len(entries), left)
            ]  # not an iterator: that would walk to the start
            self._turn, left = start + len(part), left - len(part)
            # Counters of silent sites would only delay those of others.
            entries += [(site, counts[site]) for site in part if site not in silent]
        return entries


# A new link starts with a pessimistic loss, worth a few samples: a site is not taken down by the first lost probes.
_FIRST_LOSS = 0.3
_FIRST_SAMPLES = 4
# Bounds of the estimate: no link is trusted more than this, and one that loses more than this is as good as down.
_LEAST_LOSS = 0.02
_MOST_LOSS = 0.6
_LOSS_GAIN = 1 / 32  # the estimate follows the last 30 probes or so


class SiteState(StrEnum):
    UP = "up"
    SUSPECT = "suspect"
    DOWN = "down"
    UNKNOWN = "unknown"
    FORGOTTEN = "forgotten"


class ProbeHistory(Struct, frozen=True):
    """What the own probes to one site have shown."""

    state: SiteState = SiteState.UNKNOWN
    misses: int = 0  # in a row
    hits: int = 0  # in a row
    loss: float = _FIRST_LOSS
    samples: int = 0  # on which `loss` rests
    flaps: float = 0.0  # recent falls, as of `fell_ms`
    fell_ms: float = 0.0
    missing_ms: float = 0.0  # the first miss in a row
    contact_ms: float | None = None  # the last answer
    result_ms: float | None = None  # the last answer or miss

    @property
    def reaches(self) -> bool:
        """Whether messages can be sent, as far as the own probes go."""
        return self.state in (SiteState.UP, SiteState.SUSPECT)

    @property
    def wavering(self) -> bool:
        """Whether the next probe decides something, so that it should not wait."""
        return (
            self.state is SiteState.SUSPECT
            or (self.state is not SiteState.UP and self.hits > 0)
            or (self.state is SiteState.UNKNOWN and self.misses > 0)
        )

    def answered(self, now_ms: float, settings: MeshSettings) -> "ProbeHistory":
        hits = self.hits + 1
        up = self.reaches or hits >= self._hits_needed(now_ms, settings)
        loss, samples = self.loss, self.samples
        # Misses count as loss only now that an answer has ended them: otherwise they were an outage.
        for missed in (*(1.0 for _ in range(self.misses)), 0.0) if self.reaches else ():
            samples += 1
            loss += max(_LOSS_GAIN, 1 / (_FIRST_SAMPLES + samples)) * (missed - loss)
        return replace(
            self,
            state=SiteState.UP if up else self.state,
            misses=0,
            hits=hits,
            loss=loss,
            samples=samples,
            contact_ms=now_ms,
            result_ms=now_ms,
        )

    def missed(self, now_ms: float, settings: MeshSettings) -> "ProbeHistory":
        misses = self.misses + 1
        missing_ms = now_ms if self.misses == 0 else self.missing_ms
        after = replace(self, misses=misses, hits=0, missing_ms=missing_ms, result_ms=now_ms)
        if self.state is SiteState.DOWN:
            return after
        if misses >= _misses_allowed(self.loss, settings):
            flaps = self._flaps_now(now_ms, settings) + 1 if self.reaches else self.flaps
            return replace(after, state=SiteState.DOWN, flaps=flaps, fell_ms=now_ms)
        return replace(after, state=SiteState.SUSPECT) if self.reaches else after

    def lapsed(self) -> "ProbeHistory":
        """The history after the whole mesh was silent about the site: earlier outcomes no longer count."""
        return replace(self, state=SiteState.UNKNOWN, misses=0, hits=0)

    def _flaps_now(self, now_ms: float, settings: MeshSettings) -> float:
        return float(self.flaps * 0.5 ** (max(now_ms - self.fell_ms, 0) / settings.flap_half_life_ms))

    def _hits_needed(self, now_ms: float, settings: MeshSettings) -> int:
        return min(1 + round(self._flaps_now(now_ms, settings)), settings.most_hits)


NO_HISTORY = ProbeHistory()


def _misses_allowed(loss: float, settings: MeshSettings) -> int:
    """How many misses in a row cannot be explained by loss any more."""
    bounded = min(max(loss, _LEAST_LOSS), _MOST_LOSS)
    enough = ceil(log(settings.false_alarm) / log(bounded))
    return min(max(enough, settings.least_misses), settings.most_misses)


class Assessment(Struct, frozen=True):
    """The state of a site, when it was last heard of, and whether the evidence is our own."""

    state: SiteState
    direct: bool
    only_through_others: bool = False  # others see it, we cannot reach it
    as_of_ms: float | None = None  # how long ago the site was last heard of, not when it last failed to answer

    @property
    def is_up(self) -> bool:
        return self.state in (SiteState.UP, SiteState.SUSPECT)


def assess(
    link: ProbeHistory, beat_age_ms: float | None, now_ms: float, sites: int, settings: MeshSettings
) -> Assessment:
    """Weigh own evidence and hearsay; `beat_age_ms` is the age of the last beat, if any was seen."""
    result_age_ms = _age(link.result_ms, now_ms)
    contact_age_ms = _age(link.contact_ms, now_ms)
    if link.state is SiteState.DOWN:
        # Even if others reach it: messages of the engine go directly.
        others = _others_see_it(link, beat_age_ms, now_ms, settings.suspect_ms(sites) / 2)
        return Assessment(SiteState.DOWN, direct=True, only_through_others=others, as_of_ms=contact_age_ms)
    ages = [age for age in (contact_age_ms, beat_age_ms) if age is not None]
    if not ages:
        return Assessment(SiteState.UNKNOWN, direct=False)
    state = _by_age(min(ages), sites, settings)
    direct = link.reaches and result_age_ms is not None and result_age_ms <= settings.suspect_after_ms
    if state is SiteState.UP and direct and link.state is SiteState.SUSPECT:
        state = SiteState.SUSPECT
    return Assessment(state, direct, as_of_ms=min(ages))


def _others_see_it(link: ProbeHistory, beat_age_ms: float | None, now_ms: float, delay_ms: float) -> bool:
    """Whether its counter advanced after our probes began to fail, by more than the delay of gossip."""
    return beat_age_ms is not None and now_ms - beat_age_ms - link.missing_ms > delay_ms


def _by_age(age_ms: float, sites: int, settings: MeshSettings) -> SiteState:
    if age_ms <= settings.suspect_ms(sites):
        return SiteState.UP
    return SiteState.SUSPECT if age_ms <= settings.down_ms(sites) else SiteState.DOWN


def _age(at_ms: float | None, now_ms: float) -> float | None:
    return None if at_ms is None else max(now_ms - at_ms, 0.0)
