"""One operation: what it is, what it counts for and why, and what became of it at each site."""

from cheops.api.models import Effect, OperationView, ReplyView
from cheops.api.views.naming import stamp_text, time_text, vector_text
from cheops.engine.replica import Replica
from cheops.engine.status import operation_status
from cheops.log.operation import Operation, Status, Verdict
from cheops.log.rules import Fate, Rule
from cheops.log.vector import NOTHING, Vector, contains

_EFFECTS = {Rule.VOID: Effect.VOID, Rule.FOLDED: Effect.FOLDED, Rule.ESTRANGED: Effect.ESTRANGED}


def operation_view(replica: Replica, op: Operation) -> OperationView:
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
        files=dict(op.payload.files),
        made_at=stamp_text(op.stamp),
        knows=vector_text(op.deps),
        matrix=op.matrix.hash,
        sites=op.sites,
        verdict=op.verdict,
        why=op.why,
        effect=effect_of(op, fate),
        rule=fate.rule.value if fate else None,
        sentence=fate.rule.sentence if fate else "",
        beaten_by=str(fate.by) if fate and fate.by else None,
        replies=tuple(reply_view(replica, op, site) for site in sites_of(replica)),
    )


def sites_of(replica: Replica) -> tuple[str, ...]:
    """Where a resource is, as far as it counts; before its first operation was run, where it is to be."""
    return replica.sites or next((draft.sites for draft in replica.drafts if draft.sites), ())


def gone_from(replica: Replica) -> tuple[str, ...]:
    """The sites on its list that were removed from the mesh for good, and do not count."""
    return tuple(site for site in replica.history.roster if site not in replica.sites)


def fate_of(replica: Replica, op: Operation) -> Fate | None:
    return replica.history.reason(op.id) if op.id in replica.history.ops else None


def effect_of(op: Operation, fate: Fate | None) -> Effect:
    if op.verdict is None:
        return Effect.DRAFT
    if fate is not None:
        return _EFFECTS.get(fate.rule, Effect.SUPERSEDED)
    return Effect.SILENT if op.is_silent else Effect.EFFECTIVE


def reply_view(replica: Replica, op: Operation, site: str) -> ReplyView:
    reply = replica.by_op.get((op.id, site))
    own = reply if reply and reply.op == op.id else None
    return ReplyView(
        site=site,
        status=status_at(replica, op, site),
        detail=own.detail if own else "",
        output=own.output if own else "",
        at=time_text(reply.timing.at_ms) if reply and reply.timing.at_ms else None,
        took_ms=own.timing.took_ms if own and own.timing.at_ms else None,
        replayed=reply is not None and own is None,
    )


def status_at(replica: Replica, op: Operation, site: str) -> Status:
    """What became of an operation at a site. Of one that touches no application, and of one that a
    checkpoint holds, there is no reply; there it counts what the site has settled."""
    fate = replica.history.fates.get(op.id)
    folded = fate is not None and fate.rule is Rule.FOLDED
    if folded or (op.is_silent and op.verdict is Verdict.OK):
        return Status.OK if contains(settled_at(replica, site), op.id) else Status.PENDING
    return operation_status(replica, op.id, site)


def settled_at(replica: Replica, site: str) -> Vector:
    if site == replica.site:
        return replica.settled
    view = replica.peers.get(site)
    return view.settled if view else NOTHING


def known_at(replica: Replica, site: str) -> Vector:
    if site == replica.site:
        return replica.history.known
    view = replica.peers.get(site)
    return view.known if view else NOTHING
