"""How far the sites of a resource are with the operations of this site, as far as this site knows. Pure.

A site has dealt with an operation when its reply says so, or when it says that it has settled it and we know
all the replies that it had made by then: it passed over the operation, because something had superseded it,
or it took the effect with a checkpoint.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from cheops.engine.replica import Replica
from cheops.log.operation import Origin, Status
from cheops.notify.events import Event, SiteResult, shown_time

_LAST_WORDS = (Status.OK, Status.KO)


@dataclass(frozen=True, slots=True)
class Standing:
    """Per site of the list: up to which number it has settled what this site made."""

    settled: Mapping[str, int]
    has_left: bool  # this site is not on the list any more, and may never hear the rest


def standing_of(replica: Replica) -> Standing:
    settled = {site: _settled(replica, site) for site in replica.sites}
    return Standing(settled, bool(replica.history.roster) and not replica.is_involved)


def _settled(replica: Replica, site: str) -> int:
    if site == replica.site:
        return replica.settled.get(replica.origin, 0)
    view = replica.peers.get(site)
    if view is None or not view.incarnation:
        return 0
    theirs = Origin(site, view.incarnation)
    knows_replies = replica.known_replies.get(theirs, 0) >= view.known_replies.get(theirs, 0)
    return view.settled.get(replica.origin, 0) if knows_replies else 0


@dataclass(frozen=True, slots=True)
class Awaited:
    """An operation of this site whose summary is still to come."""

    seq: int
    summary: Event
    words: Mapping[str, SiteResult]
    without_effect: bool


def finished(awaited: Awaited, standing: Standing, at_ms: int) -> Event | None:
    """The summary, if every site has dealt with the operation, or if this site will not hear of it."""
    results = tuple(_result(awaited, standing, site) for site in sorted(standing.settled))
    complete = bool(results) and all(result.status is not Status.PENDING for result in results)
    if not complete and not standing.has_left:
        return None
    return msgspec.structs.replace(
        awaited.summary,
        time=shown_time(at_ms),
        status=_overall(awaited, results),
        results=results,
        complete=complete,
    )


def _result(awaited: Awaited, standing: Standing, site: str) -> SiteResult:
    word = awaited.words.get(site)
    if word is not None and word.status in _LAST_WORDS:
        return word
    if standing.settled[site] >= awaited.seq:
        return SiteResult(site, Status.SUPERSEDED if awaited.without_effect else Status.OK)
    return SiteResult(site, Status.PENDING)


def _overall(awaited: Awaited, results: Iterable[SiteResult]) -> Status:
    found = {result.status for result in results}
    if Status.KO in found:
        return Status.KO
    if Status.PENDING in found:
        return Status.PENDING
    return Status.SUPERSEDED if awaited.without_effect else Status.OK
