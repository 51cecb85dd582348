"""How events are derived: from operations, replies and fates in documents, and from notices of the engine."""

import hashlib
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import quote

from msgspec.structs import replace

from cheops.config.notify import EventKind
from cheops.engine.documents import key_of, op_key
from cheops.engine.events import Notify, PeerDown, PeerUp
from cheops.log.causality import Vector
from cheops.log.operation import SILENT_KEYS, Kind, Operation, OpId, Reply, Status, Verdict
from cheops.log.rules import Fate, Rule
from cheops.notify.event import Event, SiteResult, cut, shown_time
from cheops.store.codec import id_of

_VERDICTS = {
    None: (EventKind.ACCEPTED, Status.PENDING),
    Verdict.OK: (EventKind.DECIDED, Status.OK),
    Verdict.VOID: (EventKind.VOID, Status.VOID),
    Verdict.SUPERSEDED: (EventKind.SUPERSEDED, Status.SUPERSEDED),
}
# Only the engine reports these. All others follow from documents, which are never lost.
NOTICES = {
    kind.value: kind
    for kind in (
        EventKind.ORDER_NOT_ENFORCED,
        EventKind.UNIT_REFUSED,
        EventKind.CHECKPOINT,
        EventKind.NO_CHECKPOINT,
        EventKind.RESET_FAILED,
        EventKind.COPY_NOT_DELETED,
        EventKind.DRIFTED,
        EventKind.EQUIVOCATION,
        EventKind.OLD_COPY,
        EventKind.WITHDRAWN,
        EventKind.ISSUED_AGAIN,
        EventKind.BROKEN_STATEMENT,
        EventKind.DAMAGED,
    )
}
_BY_REASON = (EventKind.DRIFTED, EventKind.DAMAGED)  # of which there may be several while the operations are the same
# Fates that are reported with the decision of the operation, or that are nothing new.
_REPORTED_ELSEWHERE = frozenset((Rule.VOID, Rule.BEATEN_AT_ORIGIN, Rule.FOLDED))


def op_text(resource: str, op: OpId) -> str:
    """The name of an operation that is unique in the mesh: with its resource and the incarnation of its site."""
    return id_of(op_key(resource, op))


def of_operation(op: Operation, at_ms: int) -> Event | None:
    """That an operation was accepted, or decided. Seals, which sites make for themselves, are not reported."""
    if op.kind is Kind.SEAL:
        return None
    kind, status = _VERDICTS[op.verdict]
    if op.kind is Kind.SITES and op.verdict is Verdict.OK:
        kind = EventKind.SITES
    event = _about_operation(op, kind, at_ms)
    return replace(event, status=status, detail=cut(op.why), sites=op.sites or ())


class About(NamedTuple):
    """The properties of an operation that its replies do not have."""

    rtype: str = ""
    type: str = ""


def of_reply(reply: Reply, about: About, at_ms: int, *, was_unknown: bool = False) -> Event | None:
    """The outcome of an operation at a site, or that the site replayed."""
    if reply.key in SILENT_KEYS or (reply.op is None and not reply.replay):
        return None
    kind = _kind_of(reply, was_unknown=was_unknown)
    if kind is None:
        return None
    return Event(
        id=f"{kind}:{id_of(key_of(reply))}",
        kind=kind,
        time=shown_time(at_ms),
        site=reply.origin.site,
        resource=reply.resource,
        resource_type=about.rtype,
        operation=str(reply.op) if reply.op else "",
        type=about.type or reply.key,
        status=reply.status,
        detail=cut(reply.detail),
        output=cut(reply.output),
    )


def _kind_of(reply: Reply, *, was_unknown: bool) -> EventKind | None:
    if reply.op is None:
        return EventKind.REPLAYED
    if reply.status is Status.UNKNOWN:
        return EventKind.UNKNOWN
    if was_unknown:
        return EventKind.RESOLVED
    # At its origin a failure is the outcome. Elsewhere it means that this site differs from the origin now.
    if reply.status is Status.KO and reply.op.origin != reply.origin:
        return EventKind.DIVERGED
    return EventKind.RAN if reply.status in (Status.OK, Status.KO) else None


def of_fate(op: Operation, fate: Fate, at_ms: int) -> Event | None:
    """That an operation has lost its effect to others."""
    if fate.rule in _REPORTED_ELSEWHERE or op.kind is Kind.SEAL:
        return None
    kind = EventKind.ORPHANED if fate.rule is Rule.ORPHANED else EventKind.SUPERSEDED
    by = f"by {fate.by}: " if fate.by else ""
    event = _about_operation(op, kind, at_ms)
    return replace(event, status=Status.SUPERSEDED, detail=f"{by}{fate.rule.sentence}")


def of_notice(notice: Notify, site: str, rtype: str, known: Vector, at_ms: int) -> Event | None:
    """A notice of the engine. The engine repeats it with each load: the same state gives the same event."""
    kind = NOTICES.get(notice.what)
    if kind is None:
        return None
    # The id covers the known operations, so that the same notice after further operations is a new event.
    seen = repr(sorted(known.items())) + (notice.reason if kind in _BY_REASON else "")
    state = hashlib.sha256(seen.encode()).hexdigest()[:16]
    about = op_text(notice.resource, notice.op) if notice.op else _quoted(notice.resource)
    return Event(
        id=f"{kind}:{_quoted(site)}/{about}/{state}",
        kind=kind,
        time=shown_time(at_ms),
        site=site,
        resource=notice.resource,
        resource_type=rtype,
        operation=str(notice.op) if notice.op else "",
        detail=cut(notice.detail),
    )


def of_peer(event: PeerUp | PeerDown, site: str, at_ms: int, detail: str = "") -> Event:
    """That another site can be reached, or cannot; `detail` says why."""
    kind = EventKind.SITE_UP if isinstance(event, PeerUp) else EventKind.SITE_DOWN
    return Event(
        id=f"{kind}:{_quoted(site)}/{_quoted(event.peer)}/{at_ms}",
        kind=kind,
        time=shown_time(at_ms),
        site=site,
        sites=(event.peer,),
        detail=detail,
    )


def of_dropped(site: str, count: int, up_to: int, at_ms: int) -> Event:
    """That events were deleted before a target received them."""
    return Event(
        id=f"{EventKind.DROPPED}:{_quoted(site)}/{up_to}",
        kind=EventKind.DROPPED,
        time=shown_time(at_ms),
        site=site,
        detail=f"more than {count:,} events waited for this receiver: the oldest are gone, up to {up_to}",
    )


def of_summary(op: Operation, at_ms: int) -> Event:
    """The head of a summary; the results are filled in when it is complete."""
    return _about_operation(op, EventKind.SUMMARY, at_ms)


def results_of(reply: Reply) -> Iterator[tuple[OpId, SiteResult]]:
    """The results in a reply, for the summaries of the operations. A replay covers many."""
    site = reply.origin.site
    if reply.op is not None:
        yield reply.op, SiteResult(site, reply.status, cut(reply.detail))
    for applied in reply.applied:
        yield applied.id, SiteResult(site, Status.OK)


def _about_operation(op: Operation, kind: EventKind, at_ms: int) -> Event:
    """An event about an operation; the caller adds what happened."""
    return Event(
        id=f"{kind}:{op_text(op.resource, op.id)}",
        kind=kind,
        time=shown_time(at_ms),
        site=op.origin.site,
        resource=op.resource,
        resource_type=op.rtype,
        operation=str(op.id),
        type=op.type,
    )


def _quoted(name: str) -> str:
    return quote(name, safe="")
