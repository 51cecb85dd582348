"""Incarnations: what a site does when its store is an old copy or a new one, or its stamps are ahead of the clocks.

**An old copy.** A store that was replaced by a backup of itself gives numbers a second time. The other sites would drop
what it makes as known. So each site looks for proof that it has made more than its store knows: an operation, a reply,
or a statement of a seal, of its own origin (`proof_in`). Documents are signed, so nobody else can make such a proof.
That a peer counts more of them is only a claim: it is a reason to ask that peer for the documents (`Message.recall`).

With proof, the incarnation is *closed*: it makes nothing any more (`Lineage`), and the site starts again under another
one (`Restart`). What the closed incarnation made after the copy was put back is *withdrawn* from the log: everything
that is stamped after the proof, or after the start of this process. It is kept (`Withdrawn`), and issued again once all
sites of the resource have answered, unless one of them has it. What the lost store made comes back from them, like
operations of any other origin.

**Stamps ahead of the clocks.** If a clock was wrong when operations were made, other sites refuse them for their stamp,
and with them all that comes later. The operator has the incarnation closed; what was stamped after the present time is
withdrawn, and issued again with right stamps.

**Effects of an earlier store.** In both cases, and for a new store of a site that took part in a resource before, the
application may hold effects that this store knows nothing of. So nothing counts as applied, and the keys of all
operations are dirty: a base must wipe them (a replace operation, a checkpoint, or the type's `reset`) before anything
else counts. Where there is none, the status says so (`doubt`).
"""

from collections.abc import Container, Iterable, Iterator

from msgspec import Struct
from msgspec.structs import replace

from cheops.engine import ledger, retention
from cheops.engine.documents import (
    NO_LINEAGE,
    ClosedIncarnation,
    Document,
    Drops,
    Inherited,
    Ledger,
    Lineage,
    Message,
    SiteClock,
    Started,
    Withdrawn,
    key_of,
    op_key,
)
from cheops.engine.events import (
    Answer,
    Effect,
    Effects,
    Enumerate,
    Event,
    Loaded,
    Notify,
    Recovered,
    Restart,
    Stage,
    StoreOutdated,
    Submitted,
)
from cheops.engine.replica import Replica
from cheops.log.causality import Clock, contains, covers
from cheops.log.matrix import Matrix
from cheops.log.operation import MAX_NUMBER, Command, Kind, Operation, OpId, Origin, Stamp, Verdict, content_hash

OLD_COPY, WITHDRAWN, ISSUED_AGAIN = "old-copy", "withdrawn", "issued-again"
OF_INCARNATIONS = (OLD_COPY, WITHDRAWN, ISSUED_AGAIN)
_NEVER = Clock(MAX_NUMBER)


class OldCopyProof(Struct, frozen=True):
    """That this site has made more than its store knows."""

    what: str
    stamp: Stamp | None = None  # of what was made; None: it has none

    def by(self, peer: str) -> StoreOutdated:
        """What follows from it. What the copy itself holds is older than anything that was made after it; and what is
        stamped later than the clock at the start was made by this process."""
        after = _NEVER if self.stamp is None else Clock(self.stamp.time_ms, self.stamp.counter)
        return StoreOutdated(f"the store of this site is an old copy: {peer} has {self.what}", after)


# -- proof ---------------------------------------------------------------------------------------------


def proof_in(replica: Replica, message: Message, drops: Drops) -> OldCopyProof | None:
    """What in a message this site has made, and its store does not know. The documents were verified before."""
    own, known = replica.origin, replica.history.known
    if lost := next((op for op in message.ops if _is_of_lost_generation(op, replica, drops)), None):
        return OldCopyProof(f"{lost.id}, which its store neither has nor has dropped", lost.stamp)
    made = max([known.get(own, 0), *(draft.seq for draft in replica.drafts)])
    drafts = {draft.id for draft in replica.drafts}
    for op in message.ops:
        if op.origin == own:
            held = replica.history.ops.get(op.id)
            if op.seq > made or op.id in drafts or (held and content_hash(held) != content_hash(op)):
                return OldCopyProof(f"{op.id} of this site, which its store does not have", op.stamp)
        for one in op.seal.statements if op.seal else ():
            if one.origin == own and one.made > made:
                return OldCopyProof(f"a statement of this site that it has made {one.made} operations, not {made}")
    last = replica.replies.known.get(own, 0)
    for reply in message.replies:
        if reply.origin == own and reply.n > last:
            return OldCopyProof(f"reply {reply.n} of this site, whose store has {last}")
    return None


def _is_of_lost_generation(op: Operation, replica: Replica, drops: Drops) -> bool:
    """Whether this store made an operation in a generation of which it has nothing, after all that it has dropped."""
    origin, own = op.origin, replica.origin
    if origin == own or not origin.shares_store(own) or origin in replica.history.known:
        return False
    return op.stamp.time_ms > drops.until_ms


def is_claimed(replica: Replica, message: Message) -> bool:
    """Whether a peer counts more operations or replies of this store than the store has."""
    own = replica.origin
    more_ops = message.known.get(own, 0) > replica.history.known.get(own, 0)
    return more_ops or message.known_replies.get(own, 0) > replica.replies.known.get(own, 0)


class Incarnations:
    """The incarnations of one store, the present one last."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._lineage = NO_LINEAGE
        self.is_closed = False  # the present one makes nothing any more: the site is about to start again
        self._is_finishing = False  # the resources to load are all those that may have something to withdraw
        self._started = Clock()  # the clock before the first stamp of this process

    def recover(self, event: Recovered, out: Effects) -> None:
        self._lineage, self._started = event.lineage, event.clock
        if self._lineage.unfinished:
            out.others.append(Enumerate(self._origin.site))

    def note_enumerated(self, site: str) -> None:
        self._is_finishing = self._is_finishing or site == self._origin.site

    def finish(self, out: Effects) -> None:
        """All resources were loaded once."""
        if self._is_finishing:
            self._is_finishing, self._lineage = False, Lineage(self._lineage.closed, unfinished=False)
            out.documents[key_of(self._lineage)] = self._lineage

    @property
    def closed(self) -> tuple[ClosedIncarnation, ...]:
        return self._lineage.closed

    def close(self, resource: str, event: StoreOutdated, clock: Clock, now_ms: int, out: Effects) -> None:
        """Make nothing any more under this incarnation. What becomes of what it made is decided when resources are
        loaded; the clock goes on from there."""
        self.is_closed = True
        after = min(self._started, event.after) if event.old_copy else event.after
        closed = ClosedIncarnation(self._origin.incarnation, after, event.why, now_ms, ahead=not event.old_copy)
        self._lineage = Lineage((*self._lineage.closed, closed))
        if event.later and not self._lineage.closes(event.later):
            lost = ClosedIncarnation(event.later, _NEVER, event.why, now_ms)
            self._lineage = Lineage((*self._lineage.closed[:-1], lost, closed))
        out.documents[key_of(self._lineage)] = self._lineage
        later = SiteClock(min(clock, after))
        out.documents[key_of(later)] = later
        out.others += [Notify(resource, OLD_COPY, None, event.why), Restart(event.why)]

    @staticmethod
    def answers(event: Event) -> list[Effect]:
        """What the site does until it starts again: it refuses what clients submit."""
        if not isinstance(event, Submitted):
            return []
        what = "nothing was done: this site has found that its store must not go on, and starts again; try again"
        return [Answer(event.request, Stage.REFUSED, detail=what, resource=event.resource)]

    def withdraw(self, event: Loaded, out: Effects) -> tuple[Document, ...]:
        return withdraw(event.resource, self._origin.site, event.documents, self._lineage, out)


# -- a resource of a store with closed incarnations -----------------------------------------------------


def withdraw(
    resource: str, site: str, documents: Iterable[Document], lineage: Lineage, out: Effects
) -> tuple[Document, ...]:
    """The documents of a resource without what closed incarnations must take back; the first time it is loaded."""
    documents = tuple(documents)
    seen = next((d.origins for d in documents if isinstance(d, Inherited)), ())
    stores = {one.incarnation: one for one in lineage.closed}
    made = {d.origin for d in documents if isinstance(d, Operation) and d.origin.site == site}
    made |= {Origin(site, one.incarnation) for one in lineage.closed}
    closed = {origin: stores[origin.store] for origin in made if origin.store in stores}
    handled = {origin.store for origin in seen}  # by store: an operation of it may come back in any generation
    new = {origin: one for origin, one in closed.items() if origin.store not in handled}
    if not new or not documents:
        return documents
    # What is stamped after the present time goes, whichever incarnation made it: when an earlier one was closed, the
    # clock may still have been wrong.
    present = min((one.after for one in new.values() if one.ahead), default=_NEVER)
    gone: dict[OpId, Operation] = {}
    for op in (d for d in documents if isinstance(d, Operation) and d.origin in closed):
        is_new = op.origin in new and (op.verdict is None or _clock(op) > new[op.origin].after)
        if is_new or _clock(op) > present:
            gone[op.id] = op
    gone = _without_known_elsewhere(gone, documents)
    for op in gone.values():
        kept = Withdrawn(resource, op, old=_clock(op) <= min(closed[op.origin].after, present))
        out.drop([op_key(resource, op.id)])
        out.documents[key_of(kept)] = kept
        documents = (*documents, kept)
        out.others.append(Notify(resource, WITHDRAWN, op.id, closed[op.origin].why))
    inherited = Inherited(resource, tuple(closed), catching_up=True)
    out.documents[key_of(inherited)] = inherited
    out.drop([("started", resource)])
    left = (_without_rules_of(gone, d, out) for d in documents if not isinstance(d, Inherited | Started))
    return (*(d for d in left if not (isinstance(d, Operation) and d.id in gone)), inherited)


def _without_rules_of(gone: dict[OpId, Operation], document: Document, out: Effects) -> Document:
    """A ledger without the matrices that these operations introduced. Otherwise what is made next would say that it
    goes by one that is later than itself, and other sites would refuse it."""
    introduced = {op.stamp for op in gone.values() if op.matrix.introduced == op.stamp}
    if not isinstance(document, Ledger) or not introduced:
        return document
    adopted = document.adopted  # without it, that of the operations that are left is in force
    kept = replace(
        document,
        adopted=None if adopted and adopted.introduced in introduced else adopted,
        epochs=tuple(epoch for epoch in document.epochs if epoch.introduced not in introduced),
    )
    out.documents[key_of(kept)] = kept
    return kept


def withdraw_loser(replica: Replica, op: Operation, out: Effects) -> None:
    """An operation of an earlier store of this site does not stand, because another one has its id."""
    if op.origin.site == replica.site and op.origin != replica.origin and op.id not in replica.withdrawn:
        kept = replica.withdrawn[op.id] = Withdrawn(replica.resource, op)
        out.documents[key_of(kept)] = kept
        out.others.append(Notify(replica.resource, WITHDRAWN, op.id, "another operation of this site has its id"))


def _without_known_elsewhere(gone: dict[OpId, Operation], documents: tuple[Document, ...]) -> dict[OpId, Operation]:
    """What operations of other sites depend on stays: those sites have it."""
    foreign = [d for d in documents if isinstance(d, Operation) and d.id not in gone]
    return {id_: op for id_, op in gone.items() if not any(contains(other.deps, id_) for other in foreign)}


def _clock(op: Operation) -> Clock:
    return Clock(op.stamp.time_ms, op.stamp.counter)


# -- effects of an earlier store ------------------------------------------------------------------------


def distrust(replica: Replica, out: Effects) -> None:
    """Nothing counts as applied. Whatever the application holds of these operations must be wiped."""
    applied = replica.applied
    replica.is_catching_up = True
    replica.distrusted |= set(_keys(replica))
    if applied.base is not None:
        applied.start_over(applied.base)
        ledger.save_unfinished_replay(replica, out, from_start=True)
        return
    if not replica.type.creates:
        ledger.mark_dirty(replica, _keys(replica), out)


def _keys(replica: Replica) -> tuple[str, ...]:
    ops = (*replica.history.ops.values(), *(one.op for one in replica.withdrawn.values()))
    return tuple(sorted({op.key for op in ops if not op.is_silent and op.verdict is not Verdict.VOID}))


def note_earlier_stores(replica: Replica, message: Message, out: Effects) -> None:
    """Look for earlier stores of this site in what a peer sends: its application may hold what they ran."""
    if replica.is_catching_up:
        _distrust_new_keys(replica, out)
    origins = {op.origin for op in message.ops} | {reply.origin for reply in message.replies}
    origins |= {one.origin for op in message.ops if op.seal for one in op.seal.statements}
    found = {one for one in origins if one.site == replica.site} - {replica.origin, *replica.inherited}
    if not found:
        return
    replica.inherited = (*replica.inherited, *sorted(found))
    distrust(replica, out)
    _save_inherited(replica, out)


def inherit(replica: Replica, before: Origin, out: Effects) -> None:
    """The application may hold what this site ran as an earlier origin of the resource."""
    replica.inherited, replica.is_catching_up = (before,), True
    _save_inherited(replica, out)


def _save_inherited(replica: Replica, out: Effects) -> None:
    inherited = Inherited(replica.resource, replica.inherited, replica.is_catching_up)
    out.documents[key_of(inherited)] = inherited


def _distrust_new_keys(replica: Replica, out: Effects) -> None:
    """An earlier store may also have run what arrives while this site catches up."""
    if replica.applied.base is None and not replica.type.creates:
        new = set(_keys(replica)) - replica.distrusted
        if new:
            ledger.mark_dirty(replica, tuple(sorted(new)), out)
    replica.distrusted |= set(_keys(replica))
    views = [replica.peers.get(peer) for peer in replica.targets()]
    # While nothing is known, there are no sites to hear either.
    replica.is_catching_up = not replica.history.known or not all(
        view is not None and not view.is_unknown and covers(replica.history.known, view.known) for view in views
    )
    if replica.inherited and not replica.is_catching_up:
        _save_inherited(replica, out)


def doubt(replica: Replica) -> str:
    """Why the application here may hold more than the operations give; empty if it does not, as far as is known."""
    if not replica.inherited or not replica.applied.dirty:
        return ""
    return (
        f"{replica.site} has a new store, or one from a backup, and its application may have had these effects before; "
        f"compare with 'cheops verify', and take one site's state with 'cheops repair {replica.resource} --from SITE', "
        "or set it with 'cheops exec --force'"
    )


def trust(replica: Replica, out: Effects) -> None:
    """The applications were compared, and are equal: what they hold is what the operations give."""
    if doubt(replica):
        replica.applied.clear_dirty()
        ledger.save(replica, out)


# -- earlier stores of other sites ------------------------------------------------------------------------


def release_stranded(replica: Replica, up: Container[str]) -> None:
    """Do not wait for ever for what a store made that is replaced. If all sites are up and know the same, and none has
    what an operation of that store depends on, it was withdrawn there, or lost with the store. The operation is then
    issued again, or lost too."""
    if not replica.inbox.waiting:  # the usual case
        return
    known, stores = replica.history.known, {**replica.met, replica.site: replica.origin.store}
    stranded = [
        op
        for op in replica.inbox.waiting.values()
        if stores.get(op.origin.site, op.origin.store) != op.origin.store
        and not covers(known, {**op.deps, op.origin: op.seq - 1})
    ]
    if stranded and all(site in up and _knows_the_same(replica, site) for site in replica.targets()):
        for op in stranded:
            replica.inbox.release(op)


def _knows_the_same(replica: Replica, site: str) -> bool:
    view, known = replica.peer(site), replica.history.known
    return not view.must_ask and covers(known, view.known) and covers(view.known, known)


# -- issuing again --------------------------------------------------------------------------------------


def waiting(replica: Replica) -> list[Withdrawn]:
    """What is withdrawn and not dealt with, in order."""
    left = (one for one in replica.withdrawn.values() if one.again is None and not one.problem)
    return sorted(left, key=lambda one: one.op.stamp)


def sites_to_hear(replica: Replica) -> set[str]:
    """The sites that must say what they have before anything is issued again: otherwise it could run twice."""
    named = {site for one in waiting(replica) for site in one.op.sites or ()}
    return (named | set(replica.targets())) - {replica.site} - replica.gone


def unheard(replica: Replica) -> Iterator[str]:
    """Those of them that have not said it yet, or have operations of this site that are not here; none if nothing waits
    for it."""
    if not replica.withdrawn or not waiting(replica):
        return
    for site in sorted(sites_to_hear(replica)):
        view = replica.peers.get(site)
        # By the site itself: what others pass on may be older than what this site has lost.
        is_heard = view is not None and not (view.is_unknown or view.by_others) and bool(view.incarnation)
        ours = {one: n for one, n in view.known.items() if one.site == replica.site} if view else {}
        if not is_heard or not covers(replica.history.known, ours):
            yield site


def ready(replica: Replica, out: Effects) -> Iterator[Withdrawn]:
    """What is to be issued again now. What came back from other sites is not."""
    for one in waiting(replica) if replica.withdrawn else ():
        is_free = len(replica.drafts) < replica.limits.drafts and not replica.inbox.waiting
        if replica.source.site and not replica.history.ops:
            return  # it is on its way here, and may have what is withdrawn
        if not is_free or next(unheard(replica), None):
            return
        if replica.drafts and retention.lacks_seal(replica):
            return  # the next one carries the seal, if no draft changes the list: it may lead to further sites
        if not _is_in_log(replica, one):
            yield one
        elif one.op.sites is None or _has_list(replica) or waiting(replica)[-1] is one:
            _discard(replica, one, out)
        # Otherwise the resource began with an operation that failed: the next one is issued with its list.


def _is_in_log(replica: Replica, one: Withdrawn) -> bool:
    """Whether the other sites have this very operation, so that it came back; or it has no effect anyway."""
    op = one.op
    if op.kind is Kind.SEAL or op.verdict in (Verdict.VOID, Verdict.SUPERSEDED):
        return True
    held = replica.history.ops.get(op.id)
    if held is None:
        return one.old and contains(replica.history.known, op.id)
    return (held.stamp, held.payload) == (op.stamp, op.payload)


def _has_list(replica: Replica) -> bool:
    return bool(replica.history.site_list or replica.drafts)


def submission(replica: Replica, one: Withdrawn, matrix: Matrix | None) -> Submitted:
    """What a client would submit to have this operation again."""
    op = one.op
    sites = op.sites if op.kind is Kind.SITES or not _has_list(replica) else None
    if sites is None and not _has_list(replica):
        sites = next((before.op.sites for before in waiting(replica) if before.op.sites), None)
    if op.matrix.introduced in replica.history.epochs:
        matrix = None  # its rules need not be introduced again: they are in force, or others took their place
    if contains(replica.history.folded, op.id):
        # A checkpoint holds its effect. It was kept for the list or the matrix that it sets: only these are set again.
        listed = op.sites or replica.history.site_list or (replica.site,)
        return Submitted("", replica.resource, Kind.SITES.value, Command(""), Kind.SITES, op.rtype, listed, matrix)
    return Submitted("", replica.resource, op.type, op.payload, op.kind, op.rtype, sites, matrix)


def settle(replica: Replica, one: Withdrawn, again: OpId | None, problem: str, out: Effects) -> None:
    """Note what became of a withdrawn operation."""
    new = Withdrawn(replica.resource, one.op, one.old, again, problem)
    replica.withdrawn[one.op.id] = new
    out.documents[key_of(new)] = new
    what = f"as {again} of the incarnation {again.origin.incarnation}" if again else f"not possible: {problem}"
    out.others.append(Notify(replica.resource, ISSUED_AGAIN, one.op.id, what))


def _discard(replica: Replica, one: Withdrawn, out: Effects) -> None:
    """A withdrawn operation came back from another site: it is in the log again."""
    del replica.withdrawn[one.op.id]
    out.drop([key_of(one)])
