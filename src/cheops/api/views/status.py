"""The status of resources and sites, in words."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from msgspec import structs

from cheops.api.models.resources import Overall as OverallName
from cheops.api.models.resources import ResourceDetail, ResourceStatus, ResourceSummary, SiteStatus, Trouble
from cheops.api.models.site import Sites, SiteView
from cheops.api.views.operations import detail_text, names, sites_of, stamp_text, status_at, vector_text
from cheops.config.fingerprint import Difference, differences
from cheops.engine import status as engine
from cheops.engine.admission import waiting_for_refused
from cheops.engine.replica import Replica
from cheops.engine.status import Overall
from cheops.errors import ClientError
from cheops.log.operation import Kind, OpId, Status, Verdict
from cheops.peers import views
from cheops.peers.mesh import Mesh
from cheops.peers.settings import Now
from cheops.peers.views import CLOCK_WARNING_MS
from cheops.text import in_words, listed, nearest, printable, shortened

AddressOf = Callable[[str], str | None]
_MOST_NAMED = 5
_NOTHING = "nothing was created: every operation failed at the site that submitted it"
# Without SUPERSEDED: that another operation replaced it is no failure.
_WORST_FIRST = (Status.UNKNOWN, Status.KO, Status.VOID, Status.RUNNING, Status.PENDING)


# -- sites -----------------------------------------------------------------------------------------------


class Work(NamedTuple):
    """What a site shares with this one."""

    resources: int = 0  # known here, with the site on their list
    pending: int | None = 0  # operations in memory here that the site has not settled; None: not known


_NONE = Work()


def sites_view(mesh: Mesh, now: Now, work: Mapping[str, Work] | None = None) -> Sites:
    """`work`: for each site, the resources and pending operations that it shares with this one."""
    of = work or {}
    views = tuple(structs.replace(_view(mesh, site), **of.get(site.name, _NONE)._asdict()) for site in mesh.sites(now))
    return Sites(here=mesh.own.name, sites=views, problems=tuple(mesh.problems()))


def site_view(mesh: Mesh, now: Now, name: str) -> SiteView:
    sites = {site.name: site for site in mesh.sites(now)}
    if name not in sites:
        meant = nearest(name, sites)
        hint = f"did you mean '{meant}'? " if meant else ""
        text = f"unknown site '{printable(shortened(name))}'; {hint}Known sites: {listed(sites)}"
        raise ClientError(text, status=404)
    return _view(mesh, sites[name])


def _view(mesh: Mesh, site: views.SiteView) -> SiteView:
    distance, decision = site.distance, mesh.member_of(site.name)
    return SiteView(
        name=site.name,
        url=site.url,
        state="up" if site.here and not mesh.is_forgotten else site.state.value,
        here=site.here,
        as_of_s=0.0 if site.here else None if site.as_of_ms is None else site.as_of_ms / 1000,
        rtt_ms=distance.rtt_ms if distance else None,
        rtt_measured=distance.measured if distance else False,
        incarnation=site.incarnation,
        version=site.version,
        services=tuple(service for service, _ in site.services),
        clock_offset_ms=site.clock.offset_ms if site.clock else None,
        problems=tuple(_problems(mesh, site)),
        decided_ms=decision.stamp_ms if decision else None,
    )


def _problems(mesh: Mesh, site: views.SiteView) -> list[str]:
    problems = [site.note] if site.note else []
    if site.problem and not site.is_up and not site.here:
        problems.append(site.problem)
    if mesh.is_site_forgotten(site.name) and not site.here and (missing := mesh.without_decision(site.name)):
        problems.append(f"not confirmed yet by {listed(missing)}")
    if site.clock and clock_is_wrong(site):
        problems.append(f"its clock differs from ours by {site.clock.offset_ms:+,.0f} ms")
    if found := type_differences(mesh, site.types):
        problems.append(f"it is configured differently: {in_words([str(one) for one in found])}")
    return problems


def type_differences(mesh: Mesh, types: Iterable[tuple[str, str]]) -> list[Difference]:
    """The resource types that another site and this one configure differently."""
    return differences(mesh.own.types, types)


def clock_is_wrong(site: views.SiteView) -> bool:
    """Whether the clocks differ so much that users would notice wrong times. Causal order does not depend on clocks."""
    return site.clock is not None and abs(site.clock.offset_ms) - site.clock.error_ms > CLOCK_WARNING_MS


# -- resources -------------------------------------------------------------------------------------------


def resource_status(replica: Replica, up: set[str], now_ms: int) -> ResourceStatus:
    verdict = resource_verdict(replica, up)
    return ResourceStatus(
        id=replica.resource,
        overall=word(verdict.overall),
        sentence=sentence(replica, verdict, now_ms),
        unreachable=verdict.unreachable,
        order_not_enforced=verdict.order_not_enforced,
        sites=tuple(_site(replica, site, now_ms) for site in verdict.sites),
    )


def summary(replica: Replica, up: set[str]) -> ResourceSummary:
    return ResourceSummary(
        id=replica.resource,
        type=replica.type.name,
        sites=sites_of(replica),
        overall=word(resource_verdict(replica, up).overall),
        deleted=is_deleted(replica),
        operations=len(replica.history.ops) + len(replica.drafts),
        last_change=_last_change(replica),
        last_outcome=last_outcome(replica),
        void=is_void(replica),
    )


def unreadable_summary(id_: str, sites: tuple[str, ...]) -> ResourceSummary:
    """A resource whose stored documents are damaged: nothing is known of its state here."""
    return ResourceSummary(
        id=id_, type="", sites=sites, overall="UNREACHABLE", deleted=False, operations=0, last_change=None
    )


def last_outcome(replica: Replica) -> Status:
    """The outcome of the newest operation, at the site where it is worst. A superseded operation counts as OK."""
    ops = (*replica.history.ops.values(), *replica.drafts)
    newest = max((op for op in ops if op.kind is not Kind.SEAL), key=lambda op: op.stamp, default=None)
    if newest is None:
        return Status.OK if replica.applied.base else Status.PENDING
    outcomes = {status_at(replica, newest, site) for site in sites_of(replica)}
    return next((status for status in _WORST_FIRST if status in outcomes), Status.OK)


def detail(replica: Replica, up: set[str], now_ms: int) -> ResourceDetail:
    status = resource_status(replica, up, now_ms)
    return ResourceDetail(
        id=replica.resource,
        type=replica.type.name,
        overall=status.overall,
        sentence=status.sentence,
        deleted=is_deleted(replica),
        operations=len(replica.history.ops) + len(replica.drafts),
        effective=len(replica.history.effective),
        last_change=_last_change(replica),
        matrix=replica.matrix.hash,
        sites=status.sites,
        unreachable=status.unreachable,
        order_not_enforced=status.order_not_enforced,
        checkpoint=vector_text(replica.applied.base.vector) if replica.applied.base else None,
        drafts=names(draft.id for draft in replica.drafts),
    )


def resource_verdict(replica: Replica, up: set[str]) -> engine.ResourceStatus:
    """The engine's status. A resource without a list of sites, before its first operation has run, is CONVERGING."""
    verdict = engine.status(replica, up)
    if verdict.sites:
        return verdict
    return engine.ResourceStatus(replica.resource, Overall.CONVERGING, (), verdict.order_not_enforced, ())


def sentence(replica: Replica, verdict: engine.ResourceStatus, now_ms: int) -> str:
    """The verdict in words, with the reason."""
    blocked = blocked_sentence(replica)
    text = _with_fate(_reason(verdict, now_ms, is_blocked=bool(blocked)), replica)
    return f"{blocked}; {text}" if blocked else text


def _reason(verdict: engine.ResourceStatus, now_ms: int, *, is_blocked: bool) -> str:
    match verdict.overall:
        case Overall.CONVERGED:
            return _in_sync(verdict)
        case Overall.CONVERGING:
            return _still_to_come(verdict)
        case Overall.DIVERGED if verdict.last_known:
            return "the sites differed when they were last compared, and not all of them have reported since"
        case Overall.DIVERGED:
            otherwise = "the sites differ" if is_blocked else "the sites applied the same operations but differ"
            return "; ".join(_differences(verdict)) or otherwise
        case Overall.UNREACHABLE:
            parts = (_unreachable(verdict, now_ms), _out_of_touch(verdict, now_ms), _were_pending(verdict))
            return f"{'; '.join(filter(None, parts))}{_retries(verdict)}"


def _with_fate(text: str, replica: Replica) -> str:
    """Sites that agree may agree on nothing."""
    if is_void(replica):
        return _NOTHING
    return f"deleted; {text}" if is_deleted(replica) else text


def blocked_sentence(replica: Replica) -> str:
    """What waits for operations that were refused here; empty if nothing does."""
    parts = []
    for id_, waiting in waiting_for_refused(replica).items():
        verb = "is" if len(waiting) == 1 else "are"
        who = in_words(sorted(map(str, waiting))[:3])
        parts.append(f"{who} {verb} waiting here for {id_}, which was refused: {replica.inbox.refused[id_]}")
    return "; ".join(parts)


def _in_sync(verdict: engine.ResourceStatus) -> str:
    match len(verdict.sites):
        case 1:
            return f"{verdict.sites[0].site}, its only site, is up to date"
        case 2:
            return "both sites are in sync"
        case count:
            return f"all {count} sites are in sync"


def _still_to_come(verdict: engine.ResourceStatus) -> str:
    behind = [f"{site.site} ({site.pending})" for site in verdict.sites if site.pending]
    not_known = [site.site for site in verdict.sites if site.pending is None]
    silent = f"what is pending at {in_words(not_known)} is not known" if not_known else ""
    if behind:
        text = f"operations are pending at {in_words(behind)}"
        return f"{text}{f'; {silent}' if silent else ''}{_retries(verdict)}"
    if silent:
        return f"{silent}: {'it has' if len(not_known) == 1 else 'they have'} not reported yet"
    return "the sites are comparing their states" if verdict.sites else "its first operation is running"


def _retries(verdict: engine.ResourceStatus) -> str:
    """Why this site could not run what is pending; only it knows."""
    reasons = {site.site: printable(shortened(site.retry_reason, 300)) for site in verdict.sites if site.retry_reason}
    return "".join(f"; {site} tries again: {reason}" for site, reason in reasons.items())


def _unreachable(verdict: engine.ResourceStatus, now_ms: int) -> str:
    lost = [site for site in verdict.sites if site.site in verdict.unreachable]
    if not lost:
        return ""
    if len(lost) == 1:
        return f"{lost[0].site} is unreachable ({_last_report(lost[0], now_ms)})"
    return f"{in_words(f'{site.site} ({_last_report(site, now_ms)})' for site in lost)} are unreachable"


def _last_report(site: engine.SiteStatus, now_ms: int) -> str:
    if site.last_contact_ms is None:
        return "no report"
    return f"last report {max(now_ms - site.last_contact_ms, 0) / 1000:.0f} s ago"


def _out_of_touch(verdict: engine.ResourceStatus, now_ms: int) -> str:
    """The sites that can be reached, and whose reports do not come here."""
    silent = [site for site in verdict.sites if site.relayed and site.reachable]
    if not silent:
        return ""
    verb = "does" if len(silent) == 1 else "do"
    named = in_words(f"{site.site} ({_last_report(site, now_ms)})" for site in silent)
    return f"{named} {verb} not report here, so the states cannot be compared"


def _were_pending(verdict: engine.ResourceStatus) -> str:
    """What was pending when the sites last reported. Where that is not known, there is no number."""
    behind = {site.site: site.pending for site in verdict.sites if site.pending}
    not_known = [site.site for site in verdict.sites if site.pending is None]
    parts = []
    if behind:
        total = sum(behind.values())
        counts = [f"{pending} at {site}" for site, pending in behind.items()] if len(behind) > 1 else []
        what = "1 operation was" if total == 1 else f"{total} operations were"
        parts.append(f"{what} pending {f'({in_words(counts)})' if counts else f'at {next(iter(behind))}'}")
    if not_known:
        parts.append(f"what is pending at {in_words(not_known)} is not known")
    return "; ".join(parts) or "no operation was pending"


def _differences(verdict: engine.ResourceStatus) -> list[str]:
    differences = []
    for site in verdict.sites:
        if site.failed:
            differences.append(f"{in_words(names(site.failed))} failed at {site.site} but not at its origin")
        if site.unknown:
            differences.append(f"it is unknown whether {in_words(names(site.unknown))} ran at {site.site}")
    if verdict.order_not_enforced:
        differences.append("operations ran here out of order, and the order cannot be restored")
    if verdict.drift:
        differences.append(verdict.drift)
    return differences


def word(overall: Overall) -> OverallName:
    name: OverallName = overall.value
    return name


def is_void(replica: Replica) -> bool:
    """Whether nothing was ever created: its sites agree, but on nothing. The log keeps the operations that failed."""
    history = replica.history
    if history.effective or replica.drafts or replica.applied.base:
        return False
    ops = [op for op in history.ops.values() if op.kind is not Kind.SEAL]
    return bool(ops) and all(op.verdict is Verdict.VOID for op in ops)


def is_deleted(replica: Replica) -> bool:
    effective = replica.history.effective
    return bool(effective) and effective[-1].kind is Kind.DELETE


def _site(replica: Replica, status: engine.SiteStatus, now_ms: int) -> SiteStatus:
    here = status.site == replica.site
    age_s = None if status.last_contact_ms is None else max(now_ms - status.last_contact_ms, 0) / 1000
    return SiteStatus(
        site=status.site,
        reachable=status.reachable,
        as_of_s=0.0 if here else age_s,
        digest=status.digest,
        pending=status.pending,
        failed=tuple(_trouble(replica, id_, status.site) for id_ in status.failed),
        unknown=tuple(_trouble(replica, id_, status.site) for id_ in status.unknown),
        retry_reason=printable(shortened(status.retry_reason, 300)),
        relayed=status.relayed,
    )


def _trouble(replica: Replica, id_: OpId, site: str) -> Trouble:
    return Trouble(operation=str(id_), detail=detail_text(replica, replica.replies[id_, site].detail))


def _last_change(replica: Replica) -> str | None:
    stamps = [draft.stamp for draft in replica.drafts]
    if replica.history.latest:
        stamps.append(replica.history.latest)
    return stamp_text(max(stamps)) if stamps else None


def is_known(replica: Replica) -> bool:
    return bool(replica.history.site_list or replica.history.ops or replica.drafts)


def is_here(replica: Replica) -> bool:
    """Whether this site has the resource now. One that the resource has left gets no more updates of it."""
    return is_known(replica) and replica.site in (sites_of(replica) or (replica.site,))


def not_here_text(replica: Replica, others: Iterable[str], address_of: AddressOf) -> str:
    """Why this site has no such resource, and where to look. `others`: the other known sites, reachable ones first."""
    id_, site = printable(shortened(replica.resource)), replica.site
    if is_known(replica):
        where = _named(sites_of(replica), address_of)
        return f"'{id_}' is no longer at {site}, which gets no news of it; ask {where}"
    text = f"no resource '{id_}' is known at {site}; only the sites of a resource know it"
    where = _named(others, address_of)
    return f"{text}. Other sites: {where}" if where else f"{text}, and no other site is known here"


def _named(sites: Iterable[str], address_of: AddressOf) -> str:
    named = [_with_address(site, address_of(site)) for site in sites]
    more = [f"{len(named) - _MOST_NAMED} more"] if len(named) > _MOST_NAMED else []
    shown = [*named[:_MOST_NAMED], *more]
    return in_words(shown) if shown else ""


def _with_address(site: str, address: str | None) -> str:
    return f"{printable(site)} ({address})" if address else printable(site)
