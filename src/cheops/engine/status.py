"""The status of a resource over all its sites, as one site knows it."""

from dataclasses import dataclass
from enum import StrEnum

from cheops.engine.admission import waiting_for_refused
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, contains, covers
from cheops.log.operation import OpId, Status, Verdict


class Overall(StrEnum):
    CONVERGED = "CONVERGED"  # every site has applied everything, and the same
    CONVERGING = "CONVERGING"  # something is on its way
    DIVERGED = "DIVERGED"  # replicas differ until the operator or the type fixes that
    UNREACHABLE = "UNREACHABLE"  # nothing is known to be wrong, but a site cannot be reached


@dataclass(frozen=True, slots=True)
class SiteStatus:
    """What is known of one site."""

    site: str
    reachable: bool
    last_contact_ms: int | None  # None: this site itself, or never
    digest: str
    pending: int  # operations that it is not known to have settled
    failed: tuple[OpId, ...]
    unknown: tuple[OpId, ...]


@dataclass(frozen=True, slots=True)
class ResourceStatus:
    resource: str
    overall: Overall
    unreachable: tuple[str, ...]
    order_not_enforced: bool
    sites: tuple[SiteStatus, ...]


def status(replica: Replica, up: set[str]) -> ResourceStatus:
    """The status in one call; `up` are the peers that are reachable now.

    Until its first operation has a verdict, a resource has no list of sites. If that operation is UNKNOWN, it is so
    at this site.
    """
    counted = replica.sites or ((replica.site,) if replica.applied.unknown else ())
    sites = tuple(_site(replica, site, up) for site in counted)
    unreachable = tuple(site.site for site in sites if not site.reachable)
    return ResourceStatus(
        replica.resource, _overall(replica, sites), unreachable, replica.applied.order_not_enforced, sites
    )


def _overall(replica: Replica, sites: tuple[SiteStatus, ...]) -> Overall:
    if any(site.failed or site.unknown for site in sites) or replica.applied.order_not_enforced:
        return Overall.DIVERGED
    if waiting_for_refused(replica):
        return Overall.DIVERGED
    digests = {site.digest for site in sites}
    done = not any(site.pending for site in sites) and not replica.drafts and "" not in digests
    if done and len(digests) > 1 and replica.is_synced:
        return Overall.DIVERGED
    if not all(site.reachable for site in sites):
        return Overall.UNREACHABLE
    return Overall.CONVERGED if done and len(digests) == 1 else Overall.CONVERGING


def _site(replica: Replica, site: str, up: set[str]) -> SiteStatus:
    failed = _with_status(replica, site, Status.KO)
    unknown = _with_status(replica, site, Status.UNKNOWN)
    if site == replica.site:
        pending = _pending(replica, replica.applied.settled) + len(replica.drafts)
        return SiteStatus(site, True, None, replica.applied.digest(), pending, failed, unknown)
    peer = replica.peer(site)
    pending = _pending(replica, peer.settled)
    return SiteStatus(site, site in up, peer.last_contact_ms, peer.digest, pending, failed, unknown)


def _pending(replica: Replica, settled: Vector) -> int:
    if covers(settled, replica.history.known):
        return 0
    return sum(not contains(settled, op.id) for op in replica.history.ops.values())


def _with_status(replica: Replica, site: str, wanted: Status) -> tuple[OpId, ...]:
    """Operations to which a site last replied this, unless they have no effect any more."""
    return tuple(
        id_
        for (id_, replier), reply in replica.replies.by_operation()
        if replier == site and reply.status is wanted and id_ not in replica.history.fates
    )


def operation_status(replica: Replica, id_: OpId, site: str) -> Status:
    """The status of one operation at one site."""
    op = replica.history.ops.get(id_)
    if op is not None and op.verdict is Verdict.VOID:
        return Status.VOID
    if id_ in replica.history.fates:
        return Status.SUPERSEDED
    running = replica.slot.running
    if site == replica.site and running and running.op and running.op.id == id_:
        return Status.RUNNING
    reply = replica.replies.get(id_, site)
    return reply.status if reply else Status.PENDING
