"""The log of a resource, as a list of operations and as a graph with one lane per site; and its matrix."""

from bisect import bisect_right
from collections.abc import Iterable
from operator import attrgetter

from msgspec import structs

from cheops.api.models.operations import (
    Lane,
    LaneOperation,
    Lanes,
    LaneState,
    LogView,
    Mark,
    MatrixEntry,
    MatrixPair,
    MatrixView,
    Operations,
    OperationView,
    SiteLane,
)
from cheops.api.models.resources import SiteStatus
from cheops.api.views.operations import (
    by_stamp,
    command_text,
    effect_of,
    fate_of,
    find,
    full_name,
    names,
    operation_view,
    sites_of,
    status_at,
    vector_text,
)
from cheops.api.views.status import is_deleted, resource_status
from cheops.engine.evidence import Evidence, Presence, evidence_of
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Kind, Operation, OpId, Stamp, Status, parse_origin
from cheops.text import printable, shortened

_COMMAND_CHARACTERS = 200
_stamp = attrgetter("stamp")
_STATES: dict[Status, LaneState] = {
    Status.OK: "ok",
    Status.KO: "failed",
    Status.UNKNOWN: "unknown",
    Status.RUNNING: "running",
    Status.PENDING: "pending",
    Status.SUPERSEDED: "superseded",
    Status.VOID: "void",
}
_KNOWS = {Presence.HAS: True, Presence.LACKS: False, Presence.NOT_KNOWN: None}


def lanes(replica: Replica, up: set[str], now_ms: int) -> Lanes:
    ops = by_stamp(replica)
    by_id = {op.id: op for op in ops}
    current = resource_status(replica, up, now_ms)
    status = {one.site: one for one in current.sites}
    first_ran = _first_ran(replica)
    return Lanes(
        resource=replica.resource,
        type=replica.type.name,
        overall=current.overall,
        sentence=current.sentence,
        deleted=is_deleted(replica),
        operations=tuple(_operation(replica, op, by_id) for op in ops),
        lanes=tuple(_lane(replica, site, ops, status.get(site), first_ran) for site in sites_of(replica)),
        # Numbers have no gaps, so the difference is the number of operations that the log has deleted.
        forgotten=sum(replica.history.known.values()) - len(replica.history.ops),
        order_not_enforced=replica.applied.order_not_enforced,
    )


def _operation(replica: Replica, op: Operation, by_id: dict[OpId, Operation]) -> LaneOperation:
    fate = fate_of(replica, op)
    return LaneOperation(
        id=str(op.id),
        type=op.type,
        kind=op.kind,
        origin=op.origin.site,
        made_ms=op.stamp.time_ms,
        after=tuple(str(parent.id) for parent in _direct(op, by_id)),
        effect=effect_of(op, fate),
        rule=fate.rule.value if fate else None,
        sentence=fate.rule.sentence if fate else "",
        beaten_by=str(fate.by) if fate and fate.by else None,
        command=shortened(command_text(replica, op), _COMMAND_CHARACTERS),
    )


def _direct(op: Operation, by_id: dict[OpId, Operation]) -> Iterable[Operation]:
    """The operations that an operation directly follows: the edges of the graph. None leads to an operation that was
    deleted from the log."""
    # An operation knows the first operations of each site up to a number, so only the newest of each can be direct.
    newest = [by_id.get(OpId(origin, seq)) for origin, seq in op.deps.items()]
    known = [parent for parent in newest if parent is not None]
    return [one for one in known if not any(one.is_before(other) for other in known if other is not one)]


def _lane(
    replica: Replica,
    site: str,
    ops: list[Operation],
    status: SiteStatus | None,
    first_ran: dict[tuple[OpId, str], int],
) -> SiteLane:
    evidence = evidence_of(replica, site)
    return SiteLane(
        site=site,
        here=site == replica.site,
        reachable=status.reachable if status else True,
        as_of_s=status.as_of_s if status else None,
        pending=status.pending if status else 0,
        failed=len(status.failed) if status else 0,
        unknown=len(status.unknown) if status else 0,
        digest=status.digest if status else "",
        states=tuple(_lane_state(replica, op, evidence) for op in ops),
        ran_ms=tuple(first_ran.get((op.id, site)) for op in ops),
    )


def _lane_state(replica: Replica, op: Operation, evidence: Evidence) -> LaneState:
    match _presence(op, evidence):
        case Presence.LACKS:
            return "missing"
        case Presence.NOT_KNOWN:
            return "not-known"
        case Presence.HAS:
            state = _state(replica, op, evidence)
            # It has the operation; without a report, nobody knows whether it has run it.
            is_open = state == "pending" and op.verdict is not None
            return "not-known" if is_open and evidence.has_settled(op) is Presence.NOT_KNOWN else state


def _presence(op: Operation, evidence: Evidence) -> Presence:
    """Whether a site has received an operation. What it made itself belongs in its lane, also if its store was replaced
    since and has to get it back."""
    return Presence.HAS if op.origin.site == evidence.site else evidence.received(op)


def _state(replica: Replica, op: Operation, evidence: Evidence) -> LaneState:
    site = evidence.site
    state = _STATES[status_at(replica, op, site)]
    if state != "superseded":
        return state
    reply, fate = replica.replies.get(op.id, site), fate_of(replica, op)
    by = replica.history.ops.get(fate.by) if fate and fate.by else None
    if by and by.origin.site != site and evidence.received(by) is not Presence.HAS:
        # The site does not have the superseding operation yet, so there this one still counts.
        return _STATES[reply.status] if reply else "pending"
    # Superseded before it arrived: the site never ran it.
    return "skipped" if reply is None and site != op.origin.site else state


def _first_ran(replica: Replica) -> dict[tuple[OpId, str], int]:
    """When each operation first ran at each site, according to the replies that are still stored."""
    first_ms: dict[tuple[OpId, str], int] = {}
    for reply in replica.replies:
        at_ms = reply.timing.at_ms
        ids = [reply.op] if reply.op else [applied.id for applied in reply.applied]
        for id_ in ids if at_ms else ():
            key = (id_, reply.origin.site)
            first_ms[key] = min(at_ms, first_ms.get(key, at_ms))
    return first_ms


def log_view(replica: Replica, cursor: str = "", limit: int | None = None) -> LogView:
    """The operations after a cursor. Only those of the page are examined: the log may have very many."""
    ops = by_stamp(replica)
    first = bisect_right(ops, _stamp_in(cursor), key=_stamp) if cursor else 0
    page = ops[first:] if limit is None else ops[first : first + limit]
    shown = {op.id for op in page}
    effective = [(n, op.id) for n, op in enumerate(replica.history.effective, 1) if op.id in shown]
    sites = sites_of(replica)
    operations = tuple(operation_view(replica, op, sites) for op in page)
    return LogView(
        resource=replica.resource,
        effective=names(id_ for _, id_ in effective),
        positions=tuple(n for n, _ in effective),
        operations=operations,
        lanes=tuple(_lane_of_log(replica, site, n, page, operations) for n, site in enumerate(sites)),
        checkpoint=vector_text(replica.applied.base.vector) if replica.applied.base else None,
        forgotten=vector_text(replica.history.floor),
        next=_cursor_after(page[-1]) if first + len(page) < len(ops) else None,
    )


def _lane_of_log(
    replica: Replica, site: str, number: int, ops: list[Operation], views: tuple[OperationView, ...]
) -> Lane:
    """`number`: of the site, among the replies of each view."""
    evidence = evidence_of(replica, site)
    marks = (
        Mark(operation=view.id, knows=_KNOWS[_presence(op, evidence)], status=view.replies[number].status)
        for op, view in zip(ops, views, strict=True)
    )
    return Lane(site=site, marks=tuple(marks))


def _cursor_after(op: Operation) -> str:
    # A stamp, not the name of an operation: that may be deleted before the next page is read.
    return f"{op.stamp.time_ms}-{op.stamp.counter}-{op.stamp.origin}"


def _stamp_in(cursor: str) -> Stamp:
    time_ms, _, rest = cursor.partition("-")
    counter, _, origin = rest.partition("-")
    try:
        return Stamp(int(time_ms), int(counter), parse_origin(origin))
    except ValueError:
        text = f"'{printable(shortened(cursor))}' is not a cursor of a log: use the 'next' of a page"
        raise ClientError(text, status=422, reason="bad cursor") from None


def operations_page(replica: Replica, cursor: str, limit: int) -> Operations:
    """Operations by stamp, after the one that the cursor names."""
    ops = by_stamp(replica)
    first = bisect_right(ops, find(replica, cursor).stamp, key=_stamp) if cursor else 0
    page = ops[first : first + limit]
    return Operations(
        resource=replica.resource,
        operations=tuple(operation_view(replica, op) for op in page),
        next=full_name(page[-1].id) if first + limit < len(ops) else None,
    )


# -- the matrix, and everything that follows from it for each pair of types ------------------------------------


def matrix_view(matrix: Matrix, types: Iterable[str] = ()) -> MatrixView:
    """`types`: types of operations in the order in which they are shown; the matrix need not name them. Those that only
    the matrix names come last."""
    types = tuple(dict.fromkeys((*types, *matrix.types)))
    return MatrixView(
        hash=matrix.hash,
        entries=tuple(map(_entry, matrix.entries)),
        types=types,
        pairs=tuple(_pair(matrix, before, after) for before in types for after in types),
        replaces={name: matrix.wiped_by(name) for name in types if matrix.is_replace_type(name)},
        never_mentioned=tuple(name for name in types if name not in matrix.types),
    )


def matrix_in_force(replica: Replica) -> MatrixView:
    """The matrix of a resource, with the types of its operations."""
    ops = [*replica.history.ops.values(), *replica.drafts]
    used = sorted({op.type for op in ops if op.kind is Kind.NORMAL})
    view = matrix_view(replica.matrix, (*replica.matrix.types, *used))
    adopted = replica.history.adopted
    introducers = [op for op in ops if adopted is not None and op.stamp == adopted.introduced]
    by = str(introducers[0].id) if introducers else None
    return structs.replace(view, resource=replica.resource, introduced_by=by)


def _entry(entry: Entry) -> MatrixEntry:
    return MatrixEntry(
        before=entry.before,
        after=entry.after,
        result=entry.result.value,
        concurrent_both=entry.concurrent_both,
    )


def _pair(matrix: Matrix, before: str, after: str) -> MatrixPair:
    result = matrix.result(before, after) or _result_that_follows(matrix, before, after)
    both = matrix.both_stay_when_concurrent(before, after) or matrix.both_stay_when_concurrent(after, before)
    return MatrixPair(
        before=before,
        after=after,
        result=result.value if result else None,
        class_=matrix.class_of_pair(before, after),
        inferred=matrix.explicit(before, after) is None,
        concurrent_both=both,
    )


def _result_that_follows(matrix: Matrix, before: str, after: str) -> Result | None:
    """The entry that would mean the same, for a pair that the matrix does not name."""
    match matrix.replaces(after, before), matrix.replaces(before, after):
        case True, True:
            return Result.TAKE_ONE
        case True, False:
            return Result.REVERSE_ORDER
        case False, True:
            return Result.KEEP_ORDER
        case _:
            return None
