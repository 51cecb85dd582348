"""The state of a resource, as far as this site knows: computed at the end of every step, saved when it changes.

The ledger holds the state, and the store counts resources by it. So it is known how many resources are diverged, and
which, without loading any, also right after a restart. It does not depend on which sites are reachable at the moment:
`status` adds that. A resource that is not in memory keeps the state that it last had.

A state is saved together with what has changed it, with one exception: `converged` waits until the resource is at
rest, because the ledger is written then anyway. Until then the store says `converging`. Where somebody asks all the
time, the answers of other sites keep it from resting; then `converged` is saved after a while.

`deleted` is what a tombstone is counted in (see `tombstones`). It is not listed with the others, and its ledger says
when it may be dropped.

What is not known (see `evidence`) is never counted as converged. A resource that was converged is `unknown` until its
sites have reported; one that was anything else stays what it was, because nobody has reported that this is over.
"""

from collections.abc import Iterable
from enum import StrEnum

from cheops.engine import drift, incarnation, ledger, tombstones
from cheops.engine.admission import waiting_for_refused
from cheops.engine.events import Effects
from cheops.engine.evidence import evidence_of, has_certainly_settled_all, origin_of
from cheops.engine.progress import PeerProgress
from cheops.engine.replica import Replica
from cheops.log.causality import contains, covers
from cheops.log.operation import OpId, Reply, Status
from cheops.text import in_words


class State(StrEnum):
    CONVERGED = "converged"  # every site has reported that it has applied everything, and the same
    CONVERGING = "converging"  # something is on its way
    DIVERGED = "diverged"  # replicas differ until the operator or the type fixes that
    ORDER_NOT_ENFORCED = "order-not-enforced"  # likewise, because operations ran here out of order
    UNKNOWN = "unknown"  # nothing is known to be wrong or missing, but not every site has reported
    DELETED = "deleted"  # every site has deleted it, and nothing else is left of it


TROUBLED = (State.DIVERGED, State.ORDER_NOT_ENFORCED)
_COUNTED = (State.CONVERGED, *TROUBLED)  # which `converged` follows at once
_SETTLED = ("", State.CONVERGED, State.DELETED)
_LATEST_MS = 3_000  # after which `converged` is saved, although the resource is not at rest
_LATER_PART = 10  # of the time that a tombstone is kept: when it is looked at again, if it could not be dropped


# -- saving it -----------------------------------------------------------------------------------------


def save(replica: Replica, out: Effects, now_ms: int, *, unsynced: bool, parked: bool) -> None:
    """At the end of a step. `parked`: nothing more happens until another site is up, so `converged` cannot wait."""
    state = counted_state(replica)
    if state != State.CONVERGED:
        replica.converged_ms = None
    elif replica.converged_ms is None:
        replica.converged_ms = now_ms
    if not parked and replica.state not in _COUNTED and _may_wait(replica, now_ms):
        state = replica.state or State.UNKNOWN  # until it is at rest
    if state == State.DELETED and replica.state != State.DELETED:
        tombstones.bury(replica, out)
    due_ms = _due_ms(replica, state) if state == State.DELETED else None
    ledger.save_state(replica, out, state, unsynced=unsynced or replica.saved.unsynced, due_ms=due_ms)


def is_due(replica: Replica, now_ms: int) -> bool:
    """Whether `converged` may have to be saved now, although nothing has changed."""
    return replica.converged_ms is not None and replica.state != State.CONVERGED and not _may_wait(replica, now_ms)


def _may_wait(replica: Replica, now_ms: int) -> bool:
    return replica.converged_ms is not None and now_ms - replica.converged_ms < _LATEST_MS


def save_at_rest(replica: Replica, out: Effects, now_ms: int) -> None:
    state = counted_state(replica)
    due_ms = _due_ms(replica, state)
    if due_ms is not None and due_ms <= now_ms:  # it could not be dropped: a site of its list was removed, say
        due_ms = now_ms + replica.limits.tombstone_ms // _LATER_PART
    ledger.save_state(replica, out, state, unsynced=False, due_ms=due_ms)
    ledger.save_progress(replica, out)


def _due_ms(replica: Replica, state: str) -> int | None:
    """When a resource in this state may be dropped; None if it is not to be dropped."""
    if state == State.DELETED:
        return tombstones.due_ms(replica) if replica.due_ms is None else replica.due_ms
    return None


# -- computing it --------------------------------------------------------------------------------------


def counted_state(replica: Replica) -> str:
    """The state that this site counts the resource in; empty if it has no such resource, or has left it."""
    history = replica.history
    if not (history.ops or history.site_list or replica.drafts) or replica.has_left:
        return ""
    state = state_of(replica)
    if state is State.CONVERGED and tombstones.is_tombstone(replica):
        return State.DELETED
    return replica.state if state is State.UNKNOWN and replica.state not in _SETTLED else state


def state_of(replica: Replica, *, with_drift: bool = True) -> State:
    """What is known now. Every step ends with this, so it must not look at all operations."""
    if _is_diverged(replica, with_drift=with_drift):
        return State.DIVERGED
    if replica.applied.order_not_enforced:
        return State.ORDER_NOT_ENFORCED
    if replica.drafts or (replica.withdrawn and incarnation.waiting(replica)):
        return State.CONVERGING
    sites, dropped = counted_sites(replica), replica.droppers()
    if dropped:
        sites = tuple(site for site in sites if site not in dropped)
    is_certain = _is_nothing_pending(replica, sites)
    if not sites or is_certain is False:
        return State.CONVERGING
    others = [replica.peer(site) for site in sites if site != replica.site]
    for peer in others:
        is_certain = None if peer.is_unknown else is_certain
    return State.UNKNOWN if is_certain is None else _compared(replica, others, is_here=replica.site in sites)


def _is_nothing_pending(replica: Replica, sites: Iterable[str]) -> bool | None:
    """Whether no operation is pending at any of these sites; None if that is not certain."""
    is_certain = True
    for site in sites:
        if has_certainly_settled_all(replica, site):  # the usual case
            continue
        found = evidence_of(replica, site)
        is_pending = found.is_pending()
        if is_pending:
            return False  # whatever is known of the others
        is_certain = is_certain and is_pending is not None and not found.is_relayed
    return True if is_certain else None


def _is_diverged(replica: Replica, *, with_drift: bool) -> bool:
    # Each begins with a look at what is mostly empty.
    if (with_drift and replica.drifts and drift.found(replica)) or (replica.inherited and incarnation.doubt(replica)):
        return True
    if replica.replies.troubles and any(troubles(replica, site) for site in counted_sites(replica)):
        return True
    if replica.inbox.waiting and waiting_for_refused(replica):
        return True
    for peer in replica.peers.values():
        if peer.dropped or peer.refuses or peer.differs:
            break
    else:
        return False
    differing = [site for site, peer in replica.peers.items() if peer.differs]
    if differing and not set(replica.targets()).isdisjoint(differing):
        return True
    return bool(tombstones.doubt(replica) or refusal(replica))


def refusal(replica: Replica) -> str:
    """Which sites refuse what this one has, and what to do; empty if none does."""
    refusing = [site for site, peer in replica.peers.items() if peer.refuses and site in replica.sites]
    behind = [site for site in sorted(refusing) if not covers(replica.peers[site].known, replica.history.known)]
    if not behind:  # the usual case; or they have taken it since, by what others pass on
        return ""
    return (
        f"{in_words(behind)} {'refuses' if len(behind) == 1 else 'refuse'} operations that {replica.site} has: "
        f"'cheops status' there says which, and why. If two resources of this name were made, create one of them "
        "under another id"
    )


def _compared(replica: Replica, others: list[PeerProgress], *, is_here: bool) -> State:
    """The state of a resource of which no operation is pending."""
    if not others:  # no digest, which hashes every new operation: a resource at one site has nothing to compare
        return State.CONVERGED if replica.applied.is_settled else State.CONVERGING
    known = replica.history.known
    for peer in others:
        if not (peer.known == known or covers(known, peer.known)):
            return State.CONVERGING  # one has more, which is on its way here: its digest is about other operations
    digests = {peer.digest for peer in others} | ({replica.applied.digest()} if is_here else set())
    if "" in digests or (len(digests) > 1 and not replica.is_synced):
        return State.CONVERGING
    return State.DIVERGED if len(digests) > 1 else State.CONVERGED


def counted_sites(replica: Replica) -> tuple[str, ...]:
    """Until its first operation has a verdict, a resource has no list of sites. If that operation is UNKNOWN, it is so
    at this site."""
    return replica.sites or ((replica.site,) if replica.applied.unknown else ())


def troubles(replica: Replica, site: str) -> list[tuple[OpId, Status]]:
    """Operations to which a site last replied KO or UNKNOWN, unless they have no effect any more."""
    return [
        (id_, reply.status)
        for (id_, replier), reply in replica.replies.troubles.items()
        if replier == site and id_ not in replica.history.fates and not _is_over(replica, id_, reply)
    ]


def _is_over(replica: Replica, id_: OpId, reply: Reply) -> bool:
    """Whether there is no such operation any more, although a reply to it is kept: for a site that lacks the reply, or
    because it came late. It was forgotten because it has no effect; or the store that replied was the only one that had
    it, and that site has another store now: then it was lost, or withdrawn (see incarnation.py)."""
    if id_ in replica.history.ops:
        return False
    if contains(replica.history.known, id_):
        return True
    return origin_of(replica, reply.origin.site) not in {None, reply.origin}
