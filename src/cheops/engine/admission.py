"""What a site accepts: operations of its own clients, and what other sites send.

From a client, an operation is refused at once, with a reason (`refusal`).

From another site, an operation that its origin may not submit is dropped once everything it depends on is here.
Operations that depend on it wait. If another site accepted it, the two are configured differently, and an operator must
know. So a refusal is remembered, reported once (`REFUSED`), and shown with what waits for it. It is not
acknowledged: sites that have the operation keep sending it, and it is checked again each time.

Types without a policy are open to every site.
"""

from collections.abc import Iterator
from operator import attrgetter

from cheops.engine import retention
from cheops.engine.documents import Message, Snapshot
from cheops.engine.events import Effects, Notify, Submitted
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.causality import NOTHING, contains, covers, joined
from cheops.log.operation import Command, Kind, MatrixRef, Operation, OpId, Reply
from cheops.log.policy import (
    DEFAULT_MATRIX,
    Action,
    Policy,
    creation_violation,
    draft_violation,
    is_participant,
    operation_violation,
    order_problem,
    seal_violation,
    snapshot_violation,
    violation,
)
from cheops.log.seals import excluding_seal, overruled_by, sealed_by, standing

REFUSED = "refused"
FALSE_SNAPSHOT = "false snapshot"
# Of `limits.waiting`, sites that were never on the list of the resource get one hundredth: a newly added site, whose
# list is still on its way, needs a few places, and a hostile one must not be able to fill the queue.
_UNLISTED_SHARE = 100
_MOST_STORES = 100  # of one site, that take part in one resource: a vector must not grow without end
_LEAST_SHARES = 2  # of which each site of a resource gets one


def admits(replica: Replica, op: Operation, out: Effects) -> bool:
    """Whether the origin of an operation may submit it. Everything the operation depends on must be here."""
    policy = replica.policy_of(op.rtype)
    endorsed = op.id in replica.inbox.endorsed
    problem = files_problem(op.payload, replica.limits) or _stores_problem(replica, op)
    if problem is None and not endorsed:  # a site that has forgotten what the stamp contradicts has taken it: it counts
        problem = order_problem(op, replica.history)
    others, gone = _other_contents(replica, op), replica.gone.ever
    if problem is None and policy is not None:
        problem = (
            _absence(replica, op)
            or _rivalry(replica, op, policy)
            or operation_violation(
                op,
                policy,
                replica.history,
                endorsed=endorsed,
                others=others,
                waiting=replica.inbox.waiting.values(),
            )
            or seal_violation(op, _listings(replica, op, others), gone, replica.history, _takers(replica, op))
        )
    if problem is None:
        replica.inbox.admit(op)
        return True
    if replica.inbox.refuse(op, problem):
        out.others.append(Notify(replica.resource, REFUSED, op.id, problem))
    return False


def _other_contents(replica: Replica, op: Operation) -> list[Operation]:
    """The contents that do not stand, of operations that the author of an operation may have known, and of the one that
    began the resource here: what begins it elsewhere is compared with that."""
    first = replica.history.first if not op.deps else None
    return [
        other
        for id_, proof in replica.proofs.items()
        if contains(op.deps, id_) or (first is not None and id_ == first.id)
        for other in proof.operations
    ]


def _listings(replica: Replica, op: Operation, others: list[Operation]) -> list[Operation]:
    """All contents of the operation that set the list of sites which the author of an operation knew."""
    listing = replica.history.listing_before(op) if op.seal else None
    if listing is None:
        return []
    contents = [other for other in others if other.id == listing.id]
    listings = [listing, *(other for other in contents if other.sites is not None)]
    # Another content may have set no list: then the one before it counted.
    before = replica.history.listing_before(listing) if len(listings) <= len(contents) else None
    return [*listings, before] if before else listings


def _takers(replica: Replica, op: Operation) -> set[str]:
    """The sites that have taken an operation, as far as is known, and this one."""
    return {replica.site, *(site for site, view in replica.peers.items() if contains(view.known, op.id))}


def _absence(replica: Replica, op: Operation) -> str | None:
    """Why a resource that is not known here does not concern this site: nothing that has arrived names it. Otherwise a
    site could take the name of a resource at sites that it does not even list."""
    if replica.history.ops or replica.history.known:
        return None
    listings = (op, *replica.inbox.waiting.values())
    if any(replica.site in (one.sites or ()) for one in listings):
        return None
    return f"no list of sites that has arrived names {replica.site}"


def _rivalry(replica: Replica, op: Operation, policy: Policy) -> str | None:
    """Why a resource does not begin here with an operation of another site: this site is just beginning it itself."""
    if replica.history.ops or op.deps or not replica.drafts:
        return None
    return draft_violation(op, replica.drafts[0], policy)


def _stores_problem(replica: Replica, op: Operation) -> str | None:
    known, site = replica.history.known, op.origin.site
    if op.origin in known or len(known) < _MOST_STORES:  # the usual cases
        return None
    if sum(origin.site == site for origin in known) < _MOST_STORES:
        return None
    return f"{site} has used {_MOST_STORES} stores for this resource already"


def files_problem(payload: Command, limits: Limits) -> str | None:
    """Why the files of an operation are too large for this site, or None."""
    total = sum(file.size for file in payload.files) if payload.files else 0
    if total <= limits.file_bytes:
        return None
    return f"its files have {total:,} bytes together, and limits.file_size of this site is {limits.file_bytes:,}"


def is_endorsed_by(replica: Replica, peer: str, op: Operation) -> bool:
    """Whether a site of the resource has accepted another site's operation: otherwise it would not send it."""
    return peer != op.origin.site and peer in replica.history.ever_listed


def may_wait(replica: Replica, op: Operation) -> bool:
    """Whether an operation may wait for what it depends on. Sites that are on no list must not fill the queue, and none
    may take the places of the others."""
    if op.id in replica.inbox.waiting:
        return True  # it takes no further place
    history, site = replica.history, op.origin.site
    if _begins_here(replica, op):
        return True
    share = replica.limits.waiting // max(len(history.ever_listed), _LEAST_SHARES)
    if replica.inbox.waiting_of(site) >= max(1, share):
        return False
    if replica.policy_of(op.rtype) is None or not history.ever_listed or site in history.ever_listed:
        return True
    unlisted = sum(waiting.origin.site not in history.ever_listed for waiting in replica.inbox.waiting.values())
    return unlisted < max(1, replica.limits.waiting // _UNLISTED_SHARE)


def _begins_here(replica: Replica, op: Operation) -> bool:
    """Whether an operation is the first that names this site, where nothing is known: without it nothing is taken."""
    if replica.history.ops or replica.site not in (op.sites or ()):
        return False
    return not any(replica.site in (one.sites or ()) for one in replica.inbox.waiting.values())


def admits_reply(replica: Replica, reply: Reply) -> bool:
    """Whether a reply comes from a site that takes part in the resource. If that is not known yet, the reply is
    dropped; its sender sends it again."""
    if replica.policy_of(replica.type.name) is None or reply.origin in replica.replies.known:
        return True
    return is_participant(reply.origin.site, replica.history)


def admits_snapshot(replica: Replica, peer: str, message: Message, snapshot: Snapshot, out: Effects) -> bool:
    """Whether a peer may send a snapshot of the resource, and the log bears out what it says."""
    if not _may_send_snapshot(replica, peer, message):
        what = f"{peer} sent a snapshot of this resource, and is not known to be one of its sites"
        out.others.append(Notify(replica.resource, REFUSED, None, what, by=peer))
        return False
    if problem := _snapshot_lie(replica, message, snapshot):
        what = f"{peer} sent a false snapshot: {problem}"
        out.others.append(Notify(replica.resource, REFUSED, None, what, FALSE_SNAPSHOT, peer))
        return False
    return True


def _snapshot_lie(replica: Replica, message: Message, snapshot: Snapshot) -> str | None:
    """What a snapshot says that cannot be true; None if it can.

    Operations count as forgotten only up to a seal that is in the log, and never beyond what this site has made itself.
    A checkpoint must not take the place of an operation of this site that is in effect: all sites settle an operation
    before any of them folds it, and then this site would know the seal. But the others did not wait for this site if it
    had left the resource by then, or while it was removed from the mesh.
    """
    history, own = replica.history, replica.origin
    base = snapshot.base.vector if snapshot.base else NOTHING
    if snapshot.floor.get(own, 0) > history.known.get(own, 0):
        return "it counts operations of this site that this site has not made"
    if snapshot.reply_floor.get(own, 0) > replica.replies.known.get(own, 0):
        return "it counts replies of this site that this site has not made"
    if not covers(snapshot.floor, base):
        return "its checkpoint holds operations that are not forgotten"
    sealed = sealed_by((*_proving_seals(replica, message), *history.ops.values()))
    sealed = joined(sealed, overruled_by(history.seals, message.ops))
    if not covers(joined(history.known, sealed), snapshot.floor):
        return "operations count as forgotten that no seal covers"
    lost = next((op for op in history.effective if op.origin == own and contains(base, op.id)), None)
    was_away = replica.site in replica.gone.ever or (lost is not None and _had_left(replica, message, lost))
    if lost is not None and replica.is_involved and not history.folded and not was_away:
        return f"its checkpoint would take the place of {lost.id}, which is in effect here"
    return _unfounded(replica, message)


def _had_left(replica: Replica, message: Message, op: Operation) -> bool:
    """Whether this site had left the resource when others sealed an operation of it; it has come back since."""
    history = replica.history
    lists = [one for one in history.ops.values() if one.sites is not None and one.id not in history.orphans]
    departures = [one for one in lists if replica.site not in (one.sites or ()) and op.is_before(one)]
    seals = [one for one in message.ops if one.seal and contains(one.seal.stable, op.id)]
    return any(departure.is_before(sealing) for departure in departures for sealing in seals)


def _proving_seals(replica: Replica, message: Message) -> Iterator[Operation]:
    """The seals of a snapshot that prove what is forgotten. Where something is known here, a site that sealed alone
    must have been alone on the list that it knew, without those that were ever removed from the mesh; and nobody may
    have changed that list without knowledge of the seal, except them."""
    known = {op.id: op for op in (*message.ops, *replica.history.ops.values())}.values()
    listings = [op for op in known if op.sites is not None]
    for op in message.ops:
        if op.seal is None or len(op.seal.sites) > 1 or not replica.history.ops:
            yield op
            continue
        newest = max((one for one in listings if one.is_before(op)), key=lambda one: one.stamp, default=None)
        listed = set(newest.sites or ()) if newest else set()
        if newest is None or not listed.difference(replica.gone.ever) <= set(op.seal.sites) <= listed:
            continue
        others = (one for one in listings if one.origin.site not in replica.gone.ever)
        if not any(newest.is_before(one) and one.is_concurrent(op) for one in others):
            yield op


def _unfounded(replica: Replica, message: Message) -> str | None:
    """What is wrong with a seal or a list of sites that a snapshot brings with it. The sites that signed a seal have
    settled the rest. A snapshot may be the first that arrives, so nothing that it refers to need be here."""
    history = replica.history
    known = {op.id: op for op in (*message.ops, *history.ops.values())}.values()
    seals = standing(op for op in known if op.seal)
    for op in message.ops:
        policy = replica.policy_of(op.rtype)
        if policy is None or contains(history.known, op.id) or excluding_seal(op, seals):
            continue
        before = (one for one in known if one.sites is not None and one.is_before(op))
        listing = max(before, key=lambda one: one.stamp, default=None)
        # The list that several signers knew may be forgotten, and sites of it may be back: each has stated the list.
        alone = op.seal is not None and len(op.seal.sites) == 1
        listings = [listing] if listing else []
        if alone and (problem := seal_violation(op, listings, replica.gone.ever, history, _takers(replica, op))):
            return f"it has {op.id}, and {problem}"
    newest = max((op for op in message.ops if op.sites is not None), key=lambda op: op.stamp, default=None)
    policy = replica.policy_of(newest.rtype) if newest else None
    if newest is not None and policy is not None:
        return snapshot_violation(message.ops, policy, history, replica.gone.ever)
    return None


def _may_send_snapshot(replica: Replica, peer: str, message: Message) -> bool:
    """Whether the peer is on the list that is known here. If nothing is known of the resource, the list in the snapshot
    counts, and this site must be on it, or have been on one before: then it learns that it has left. Otherwise that
    list must be newer, and its author must have been allowed to set it."""
    history = replica.history
    listing = max((op for op in message.ops if op.sites is not None), key=lambda op: op.stamp, default=None)
    policy = replica.policy_of(listing.rtype if listing else replica.type.name)
    if policy is None:
        return True
    # A snapshot brings the matrix in force with it. One that no operation names could not be traced to its introducer.
    if listing is None or not _names_known_matrix(message):
        return False
    if peer in history.site_list:
        return True
    ours = history.site_list_op
    if peer not in (listing.sites or ()) or ours is None:
        arrived = (*message.ops, *replica.inbox.waiting.values())
        is_named = any(replica.site in (op.sites or ()) for op in arrived)
        return is_named and peer in (listing.sites or ()) and not history.ops
    return listing.stamp > ours.stamp and snapshot_violation(message.ops, policy, history, replica.gone.ever) is None


def waiting_for_refused(replica: Replica) -> dict[OpId, list[OpId]]:
    """The operations that wait here because one that they depend on was refused, by the id of the refused one."""
    held: dict[OpId, list[OpId]] = {}
    for op in replica.inbox.waiting.values():
        for id_ in replica.inbox.refused:
            if op.deps.get(id_.origin, 0) >= id_.seq:
                held.setdefault(id_, []).append(op.id)
    return held


def _names_known_matrix(message: Message) -> bool:
    """Whether the matrix of a snapshot is one that an operation in it names."""
    adopted = message.snapshot.adopted if message.snapshot else None
    return adopted is None or any(op.matrix == adopted for op in message.ops)


# -- from clients ----------------------------------------------------------------------------------------


def matrix_in_force(replica: Replica) -> MatrixRef:
    """The matrix for an operation that is submitted now. Drafts count: the next operation comes after them."""
    adopted = replica.history.adopted
    refs = [draft.matrix for draft in replica.drafts] if replica.drafts else []
    if adopted is not None:
        refs.append(adopted)
    return max(refs, key=attrgetter("introduced")) if refs else DEFAULT_MATRIX


def refusal(replica: Replica, event: Submitted) -> str | None:  # noqa: PLR0911 - one per reason
    """Why a client's operation is refused, or None."""
    none: tuple[str, ...] = ()
    site_list = replica.history.site_list or next((d.sites for d in replica.drafts if d.sites), none)
    changes = event.kind is Kind.SITES
    if problem := _haste(replica, event):
        return problem
    # Other kinds pass: a force or a delete operation is what shortens a full log.
    if event.kind is Kind.NORMAL and (full := retention.fullness(replica)):
        return full
    if problem := files_problem(event.payload, replica.limits):
        return problem
    if event.rtype and replica.history.ops and event.rtype != replica.type.name:
        return f"the resource is of type '{replica.type.name}', not '{event.rtype}'"
    if changes and not site_list and not replica.history.folded:
        return "no such resource is known here"
    if not event.sites and (changes or not site_list):
        return "name the sites of the resource"
    if replica.site not in (site_list or event.sites or none):
        where = ", ".join(site_list or event.sites or none)
        return f"this site, {replica.site}, is not involved; the resource is at {where}"
    named = set(event.sites or ())
    if site_list and named and not changes and named not in (set(site_list), set(replica.sites)):
        return f"the resource is at {', '.join(site_list)}; use 'cheops sites' to change that"
    return policy_violation(replica, event, replica.site)


def _haste(replica: Replica, event: Submitted) -> str | None:
    """Why an operation comes too early, and may be taken later."""
    if replica.source.site and not replica.history.ops and not replica.drafts:
        # Otherwise the resource would begin a second time here, without knowledge of the one that there is.
        return f"the resource exists at {replica.source.site}, and is on its way here; try again in a moment"
    if event.revision and event.revision != replica.revision:
        return "the resource has changed since its state was read; try again"
    if len(replica.drafts) >= replica.limits.drafts:
        return f"{len(replica.drafts)} operations are waiting already; try again later"
    return None


def policy_violation(replica: Replica, event: Submitted, site: str) -> str | None:
    """Why the policy of the resource's type does not allow a site to do this, or None if it does."""
    policy = replica.policy_of(replica.type.name or event.rtype)
    if policy is None:
        return None
    lists = [op for op in (replica.history.site_list_op, *replica.drafts) if op and op.sites is not None]
    listing = max(lists, key=attrgetter("stamp"), default=None)  # drafts included: other sites will see them first
    if listing is None:
        return creation_violation(site, event.sites or (), policy)
    changes_matrix = event.matrix is not None and event.matrix.hash != matrix_in_force(replica).hash
    return violation(Action(site, event.kind, event.kind is Kind.SITES, changes_matrix), policy, listing)
