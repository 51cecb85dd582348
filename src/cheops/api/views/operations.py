"""One operation: its effect and why, its outcome at each site; and how ids, times, requests and responses are
written."""

from collections.abc import Iterable
from datetime import UTC, datetime
from functools import lru_cache
from operator import attrgetter

from cheops.api.models.operations import Effect, OperationView, ReplyView
from cheops.backends.http.explanation import request_text, response_text
from cheops.config.services import service_of
from cheops.engine.documents import Withdrawn
from cheops.engine.evidence import Presence, evidence_of
from cheops.engine.replica import Replica
from cheops.engine.status import operation_status
from cheops.errors import ClientError
from cheops.log.causality import Vector
from cheops.log.operation import Operation, OpId, Stamp, Status, Verdict
from cheops.log.rules import Fate, Rule
from cheops.text import printable, shortened

_MOST_DIGITS = 16  # of the number of an operation
_LAST_YEAR_MS = 253_402_300_799_000  # the end of year 9999, the last of `datetime`: a clock may be wrong


def time_text(ms: int) -> str:
    """A time in ISO 8601, in UTC."""
    seconds, ms = divmod(min(max(ms, 0), _LAST_YEAR_MS), 1000)
    return f"{_second_text(seconds)}.{ms:03}Z"


@lru_cache(maxsize=1_024)  # what follows each other in a log often happened in the same second
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="seconds")


def stamp_text(stamp: Stamp) -> str:
    return time_text(stamp.time_ms)


def vector_text(vector: Vector) -> dict[str, int]:
    """For each site the highest number, over all its incarnations."""
    numbers: dict[str, int] = {}
    for origin, number in sorted(vector.items()):
        numbers[origin.site] = max(number, numbers.get(origin.site, 0))
    return numbers


def command_text(replica: Replica, op: Operation) -> str:
    """`PUT /images/5`, or the command."""
    return op.payload.line if service_of(replica.type.name) is None else request_text(op.payload)


def detail_text(replica: Replica, detail: str) -> str:
    """`the service answers 404: …`, or the text of the reply as it is."""
    return detail if service_of(replica.type.name) is None else response_text(detail)


def by_stamp(replica: Replica) -> list[Operation]:
    """All operations on a resource that are known here, drafts included, in the order of the log."""
    return sorted((*replica.history.ops.values(), *replica.drafts), key=attrgetter("stamp"))


def full_name(id_: OpId) -> str:
    """`site1@6f1c9a:3`: unlike `site1:3`, it distinguishes the incarnations of a site."""
    return f"{id_.origin.site}@{id_.origin.incarnation}:{id_.seq}"


def find(replica: Replica, name: str) -> Operation:
    """The operation that is called `site1:3` or `site1@6f1c9a:3`; of several incarnations the newest.

    Where an operation of this name was withdrawn, the name says too little: another one may have it by now."""
    matches = _called(replica, name)
    for one in replica.withdrawn.values():
        if name in (str(one.op.id), full_name(one.op.id)):
            raise ClientError(_withdrawn_text(name, one, matches), status=409, reason="operation was withdrawn")
    if not matches:
        newest = ", ".join(str(op.id) for op in by_stamp(replica)[-5:])
        text = (
            f"no operation '{printable(shortened(name))}' of '{printable(shortened(replica.resource))}' is "
            f"known here; the newest are {newest or 'none'}. Old operations without effect are deleted"
        )
        raise ClientError(text, status=404, reason="no such operation")
    return matches[-1]


def _called(replica: Replica, name: str) -> list[Operation]:
    """The operations of this name, of all incarnations, in the order of the log; without a look at all operations."""
    number = name.rpartition(":")[2]
    if not number.isdecimal() or len(number) > _MOST_DIGITS:
        return []
    known = [replica.history.ops.get(OpId(origin, int(number))) for origin in replica.history.known]
    candidates = [*(op for op in known if op), *replica.drafts]
    matches = [op for op in candidates if name in (str(op.id), full_name(op.id))]
    return sorted(matches, key=attrgetter("stamp"))


def _withdrawn_text(name: str, one: Withdrawn, others: list[Operation]) -> str:
    """What became of an operation that was acknowledged and is not in the log any more."""
    shown = printable(shortened(one.op.payload.line))
    fate = "waits until all sites of the resource have answered, and is then issued again"
    if one.again:
        fate = f"was issued again as {full_name(one.again)}"
    elif one.problem:
        fate = f"could not be issued again: {printable(one.problem)}"
    same = [full_name(op.id) for op in others if op.id != one.op.id]
    also = f". This name is also that of {', '.join(same)}" if same else ""
    if any(op.id == one.op.id for op in others):
        also += f". Another operation, which the other sites have, is {full_name(one.op.id)} in the log"
    return (
        f"'{printable(shortened(name))}' ({shown}) was acknowledged while the store of {one.op.origin.site} was an old "
        f"copy or its clock was wrong; it {fate}{also}"
    )


def names(ids: Iterable[OpId]) -> tuple[str, ...]:
    return tuple(map(str, ids))


_EFFECTS = {Rule.VOID: Effect.VOID, Rule.FOLDED: Effect.FOLDED, Rule.ORPHANED: Effect.ORPHANED}


def operation_view(replica: Replica, op: Operation, sites: tuple[str, ...] | None = None) -> OperationView:
    """`sites`: those of the resource, where a caller has them already."""
    fate = fate_of(replica, op)
    return OperationView(
        id=str(op.id),
        resource=op.resource,
        origin=op.origin.site,
        incarnation=op.origin.incarnation,
        seq=op.seq,
        type=op.type,
        kind=op.kind,
        command=op.payload.line,
        files={file.name: file.hash for file in op.payload.files},
        made_at=stamp_text(op.stamp),
        knows=vector_text(op.deps),
        matrix=op.matrix.hash,
        sites=op.sites,
        verdict=op.verdict,
        why=detail_text(replica, op.why),
        effect=effect_of(op, fate),
        rule=fate.rule.value if fate else None,
        sentence=fate.rule.sentence if fate else "",
        beaten_by=str(fate.by) if fate and fate.by else None,
        replies=tuple(reply_view(replica, op, site) for site in (sites_of(replica) if sites is None else sites)),
    )


def sites_of(replica: Replica) -> tuple[str, ...]:
    """The sites of a resource; before its first operation has run, the sites that this operation names."""
    return replica.sites or next((draft.sites for draft in replica.drafts if draft.sites), ())


def gone_from(replica: Replica) -> tuple[str, ...]:
    """The sites on its list that were removed from the mesh for good."""
    return tuple(site for site in replica.history.site_list if site not in replica.sites)


def fate_of(replica: Replica, op: Operation) -> Fate | None:
    return replica.history.reason(op.id) if op.id in replica.history.ops else None


def effect_of(op: Operation, fate: Fate | None) -> Effect:
    if op.verdict is None:
        return Effect.DRAFT
    if fate is not None:
        return _EFFECTS.get(fate.rule, Effect.SUPERSEDED)
    return Effect.SILENT if op.is_silent else Effect.EFFECTIVE


def reply_view(replica: Replica, op: Operation, site: str) -> ReplyView:
    reply = replica.replies.get(op.id, site)
    own = reply if reply and reply.op == op.id else None
    return ReplyView(
        site=site,
        status=status_at(replica, op, site),
        detail=own.detail if own else "",
        output=own.output if own else "",
        output_missing=f"it is at {site}; look at this operation to fetch it" if own and own.is_cut else None,
        at=time_text(reply.timing.at_ms) if reply and reply.timing.at_ms else None,
        took_ms=own.timing.took_ms if own and own.timing.at_ms else None,
        replayed=reply is not None and own is None,
    )


def status_at(replica: Replica, op: Operation, site: str) -> Status:
    """The outcome of an operation at a site. There is no reply for an operation that does not touch the application, or
    that a checkpoint contains: for these, what the site has settled counts."""
    fate = replica.history.fates.get(op.id)
    folded = fate is not None and fate.rule is Rule.FOLDED
    if folded or (op.is_silent and op.verdict is Verdict.OK):
        return Status.OK if evidence_of(replica, site).has_settled(op) is Presence.HAS else Status.PENDING
    return operation_status(replica, op.id, site)
