"""The life of an operation at one site, from a client's request until it is forgotten; and the status of a resource.

Phases, in their order. An operation goes back, to DELIVERED, when its effect here is gone: a replay was interrupted
after its base wiped it; the site left the resource, deleted its copy and came back; or a snapshot made the site start
over. After a restart nothing is SETTLED until the site has compared what it applied with the history.

    phase      entered when                                done by             durable from then on
    ---------  ------------------------------------------  ------------------  ----------------------------------
    DRAFT      a client submits it, at its origin          Site._submit        the operation without a verdict
    DECIDED    its first run ended, so it has a verdict    outcome.decide      the operation, immutable from now on
    DELIVERED  all that it depends on is at this site      exchange.deliver    the operation, at this site too
    APPLIED    its run succeeded at this site              outcome.finish      the reply, which other sites get
    SETTLED    nothing before it is left to run here       scheduler._settle   nothing: it follows from the rest
    SEALED     a seal says that all sites have settled it  Site._seal_if_due   the seal, an operation like others
    FOLDED     all sites know the seal                     retention           the ledger; the operation is deleted

At its origin an operation is DELIVERED in the step in which it is DECIDED; with `parallel` it is both at once, without
a first run. On its way to another site, and while it waits there for its past, it is DECIDED. FOLDED is what has no
effect any more as soon as it is sealed (`prune`), and everything else once a checkpoint holds its effect (`fold`).

An operation may skip APPLIED, at one site or at all of them:

    void        its first run failed definitely: Verdict.VOID. Rule 1: no effect anywhere; other sites only keep it.
    superseded  rules 3 to 5 of cheops.log.rules, before it ran here. At its origin it may be superseded while it is a
                draft: Verdict.SUPERSEDED. What is superseded after it was APPLIED is wiped by its superseder's run.
    orphaned    it was submitted without knowledge of what a seal covers (cheops.log.seals): no effect anywhere.
    silent      it changes the list of sites, or is a seal: there is nothing to run.
    failed      it succeeded at its origin and failed here: Status.KO. The replicas differ (DIVERGED) until `decompose`,
                `on_error`, the operator (`Retried`), or an operation that replaces it fixes that. It is SETTLED
                nevertheless, except while it is run again.

And three things stop it on its way:

    refused     by the origin's checks: it never becomes a draft. By the policy of a type, at another site: it stays
                DECIDED there, and so does everything that depends on it (admission.py).
    not run     the application was not reachable (Result.RETRY): it is run again later.
    unknown     it may or may not have run: a timeout (Result.MAYBE), or a crash between Run and Ran. A replace
                operation is run again, unless its outcome says that it can run only `once`. Anything else is
                Status.UNKNOWN, until the operator resolves it (`Resolved`) or something runs that wipes it. As a draft
                it has no verdict until then.

The status of a resource sums up its operations over all sites, as one site knows them.
"""

from enum import IntEnum, StrEnum

from msgspec import Struct

from cheops.engine import drift, health, incarnation, tombstones
from cheops.engine.evidence import evidence_of
from cheops.engine.health import TROUBLED, State
from cheops.engine.replica import Replica
from cheops.log.causality import contains
from cheops.log.operation import OpId, Status, Verdict


class Phase(IntEnum):
    """How far an operation has come at one site."""

    DRAFT = 1
    DECIDED = 2
    DELIVERED = 3
    APPLIED = 4
    SETTLED = 5
    SEALED = 6
    FOLDED = 7


def phase_at(replica: Replica, id_: OpId) -> Phase | None:
    """The phase of an operation at the replica's site; None if the operation is not known there."""
    history, applied = replica.history, replica.applied
    if any(draft.id == id_ for draft in replica.drafts):
        return Phase.DRAFT
    if not contains(history.known, id_):
        return Phase.DECIDED if id_ in replica.inbox.waiting else None
    if id_ not in history.ops or contains(history.folded, id_):
        return Phase.FOLDED
    if contains(applied.settled, id_):
        is_sealed = any(contains(op.seal.stable, id_) for op in history.seals if op.seal)
        return Phase.SEALED if is_sealed else Phase.SETTLED
    return Phase.APPLIED if any(entry.id == id_ for entry in applied.entries) else Phase.DELIVERED


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


# -- the status of a resource over all its sites -------------------------------------------------------


class Overall(StrEnum):
    CONVERGED = "CONVERGED"  # every site has applied everything, and the same
    CONVERGING = "CONVERGING"  # something is on its way
    DIVERGED = "DIVERGED"  # replicas differ until the operator or the type fixes that
    UNREACHABLE = "UNREACHABLE"  # nothing is known to be wrong, but a site cannot be reached or does not report


class SiteStatus(Struct, frozen=True):
    """What is known of one site."""

    site: str
    reachable: bool
    last_contact_ms: int | None  # None: this site itself, or never
    digest: str  # as of its last report; empty while something is missing, or if it may have changed since
    pending: int | None  # operations that it has not settled, as of its last report; None: not known
    failed: tuple[OpId, ...]
    unknown: tuple[OpId, ...]
    retry_reason: str = ""  # this site itself: why what is pending could not run yet
    relayed: bool = False  # others have passed on what it did since its last report, which has not come here


class ResourceStatus(Struct, frozen=True):
    resource: str
    overall: Overall
    unreachable: tuple[str, ...]
    order_not_enforced: bool
    sites: tuple[SiteStatus, ...]
    drift: str = ""  # how the applications differ, although all sites have applied the same
    last_known: bool = False  # DIVERGED is what was last known: not every site has reported since


def status(replica: Replica, up: set[str], *, with_drift: bool = True) -> ResourceStatus:
    """The status in one call; `up` are the peers that are reachable now. Without drift it is about the log alone."""
    sites = tuple(_site(replica, site, up) for site in health.counted_sites(replica))
    unreachable = tuple(site.site for site in sites if not site.reachable)
    state = health.state_of(replica, with_drift=with_drift)
    last_known = state is State.UNKNOWN and replica.state in TROUBLED
    is_cut = bool(unreachable) or _is_out_of_touch(replica, sites)
    return ResourceStatus(
        replica.resource,
        Overall.DIVERGED if last_known else _overall(state, is_cut=is_cut),
        unreachable,
        replica.applied.order_not_enforced,
        sites,
        incarnation.doubt(replica)
        or tombstones.doubt(replica)
        or health.refusal(replica)
        or (drift.found(replica) if with_drift else ""),
        last_known,
    )


def _overall(state: State, *, is_cut: bool) -> Overall:
    if state in TROUBLED:
        return Overall.DIVERGED
    if is_cut:
        return Overall.UNREACHABLE
    return Overall.CONVERGED if state is State.CONVERGED else Overall.CONVERGING


def _is_out_of_touch(replica: Replica, sites: tuple[SiteStatus, ...]) -> bool:
    """Whether only sites that do not report here may be missing something: their messages do not arrive."""
    others = [site for site in sites if not site.relayed]
    return len(others) < len(sites) and all(site.pending == 0 for site in others) and not replica.drafts


def _site(replica: Replica, site: str, up: set[str]) -> SiteStatus:
    troubles = health.troubles(replica, site)
    failed = tuple(id_ for id_, status in troubles if status is Status.KO)
    unknown = tuple(id_ for id_, status in troubles if status is Status.UNKNOWN)
    evidence = evidence_of(replica, site)
    pending = evidence.pending()
    if site == replica.site:
        pending = (pending or 0) + len(replica.drafts)
        why = replica.slot.retry_reason if pending else ""
        return SiteStatus(site, True, None, replica.applied.digest(), pending, failed, unknown, why)
    relayed = evidence.is_relayed
    digest = replica.peers[site].digest if site in replica.peers and not relayed else ""
    return SiteStatus(site, site in up, evidence.since_ms, digest, pending, failed, unknown, relayed=relayed)
