"""Is all well: the engine's verdict on a resource, in the API's words."""

from cheops.api.models import ResourceDetail, ResourceStatus, ResourceSummary, SiteStatus, Trouble
from cheops.api.models.resources import Overall as OverallName
from cheops.api.views.naming import names, stamp_text, vector_text
from cheops.api.views.operations import sites_of, status_at
from cheops.engine import status as engine
from cheops.engine.admission import waiting_for_refused
from cheops.engine.replica import Replica
from cheops.engine.status import Overall
from cheops.log.operation import Kind, OpId, Status
from cheops.text import in_words

_WORST_FIRST = (Status.UNKNOWN, Status.KO, Status.VOID, Status.RUNNING, Status.PENDING)


def resource_status(replica: Replica, up: set[str], now_ms: int) -> ResourceStatus:
    found = judged(replica, up)
    return ResourceStatus(
        id=replica.resource,
        overall=word(found.overall),
        sentence=_with_held(sentence(found), replica),
        unreachable=found.unreachable,
        order_not_enforced=found.order_not_enforced,
        sites=tuple(_site(replica, site, now_ms) for site in found.sites),
    )


def summary(replica: Replica, up: set[str]) -> ResourceSummary:
    return ResourceSummary(
        id=replica.resource,
        type=replica.type.name,
        sites=sites_of(replica),
        overall=word(judged(replica, up).overall),
        deleted=is_deleted(replica),
        operations=len(replica.history.ops) + len(replica.drafts),
        last_change=_last_change(replica),
        last_outcome=last_outcome(replica),
    )


def last_outcome(replica: Replica) -> Status:
    """What became of the newest operation, at the site where it went worst. What lost its effect to others
    went as well as it could."""
    ops = (*replica.history.ops.values(), *replica.drafts)
    newest = max((op for op in ops if op.kind is not Kind.SEAL), key=lambda op: op.stamp, default=None)
    if newest is None:
        return Status.OK if replica.base else Status.PENDING
    found = {status_at(replica, newest, site) for site in sites_of(replica)}
    return next((status for status in _WORST_FIRST if status in found), Status.OK)


def detail(replica: Replica, up: set[str], now_ms: int) -> ResourceDetail:
    found = resource_status(replica, up, now_ms)
    return ResourceDetail(
        id=replica.resource,
        type=replica.type.name,
        overall=found.overall,
        sentence=found.sentence,
        deleted=is_deleted(replica),
        operations=len(replica.history.ops) + len(replica.drafts),
        effective=len(replica.history.effective),
        last_change=_last_change(replica),
        matrix=replica.matrix.hash,
        sites=found.sites,
        unreachable=found.unreachable,
        order_not_enforced=found.order_not_enforced,
        checkpoint=vector_text(replica.base.vector) if replica.base else None,
        drafts=names(draft.id for draft in replica.drafts),
    )


def judged(replica: Replica, up: set[str]) -> engine.ResourceStatus:
    """The engine's status. Before its first operation was run anywhere, a resource has no list of sites yet,
    and is on its way."""
    found = engine.status(replica, up)
    if found.sites:
        return found
    return engine.ResourceStatus(replica.resource, Overall.CONVERGING, (), found.order_not_enforced, ())


def sentence(found: engine.ResourceStatus) -> str:
    """The verdict in words, with the reason."""
    match found.overall:
        case Overall.CONVERGED:
            return f"{_all_of(found)} applied the same"
        case Overall.CONVERGING:
            return _still_to_come(found)
        case Overall.DIVERGED:
            return "; ".join(_differences(found)) or "the sites have applied the same operations differently"
        case Overall.UNREACHABLE:
            cut = in_words(found.unreachable)
            return f"{cut} cannot be asked now; as far as is known, {_rest(found)}"


def _with_held(said: str, replica: Replica) -> str:
    held = held_sentence(replica)
    return f"{held}; {said}" if held else said


def held_sentence(replica: Replica) -> str:
    """What waits for operations that were refused here; empty if nothing does."""
    said = []
    for id_, waiting in waiting_for_refused(replica).items():
        verb = "waits" if len(waiting) == 1 else "wait"
        who = in_words(sorted(map(str, waiting))[:3])
        said.append(f"{who} {verb} here for {id_}, which was refused: {replica.refused[id_]}")
    return "; ".join(said)


def _all_of(found: engine.ResourceStatus) -> str:
    only = found.sites[0].site
    return f"{only} has" if len(found.sites) == 1 else f"all {len(found.sites)} sites have"


def _still_to_come(found: engine.ResourceStatus) -> str:
    behind = [f"{site.site} ({site.pending})" for site in found.sites if site.pending]
    if behind:
        return f"operations are still to be run at {in_words(behind)}"
    return (
        "what the sites have applied is being compared"
        if found.sites
        else "it is being run for the first time"
    )


def _rest(found: engine.ResourceStatus) -> str:
    behind = [site.site for site in found.sites if site.pending]
    return f"operations are still to be run at {in_words(behind)}" if behind else "all is well"


def _differences(found: engine.ResourceStatus) -> list[str]:
    said = []
    for site in found.sites:
        if site.failed:
            said.append(f"{in_words(names(site.failed))} failed at {site.site} and not at its origin")
        if site.unknown:
            said.append(f"whether {in_words(names(site.unknown))} ran at {site.site} is not known")
    if found.order_not_enforced:
        said.append("operations ran here in another order than they count, and nothing can put that right")
    return said


def word(overall: Overall) -> OverallName:
    found: OverallName = overall.value
    return found


def is_deleted(replica: Replica) -> bool:
    effective = replica.history.effective
    return bool(effective) and effective[-1].kind is Kind.DELETE


def _site(replica: Replica, found: engine.SiteStatus, now_ms: int) -> SiteStatus:
    here = found.site == replica.site
    heard_s = None if found.heard_ms is None else max(now_ms - found.heard_ms, 0) / 1000
    return SiteStatus(
        site=found.site,
        reachable=found.reachable,
        as_of_s=0.0 if here else heard_s,
        digest=found.digest,
        pending=found.pending,
        failed=tuple(_trouble(replica, id_, found.site) for id_ in found.failed),
        unknown=tuple(_trouble(replica, id_, found.site) for id_ in found.unknown),
    )


def _trouble(replica: Replica, id_: OpId, site: str) -> Trouble:
    return Trouble(operation=str(id_), detail=replica.by_op[id_, site].detail)


def _last_change(replica: Replica) -> str | None:
    stamps = [draft.stamp for draft in replica.drafts]
    if replica.history.latest:
        stamps.append(replica.history.latest)
    return stamp_text(max(stamps)) if stamps else None
