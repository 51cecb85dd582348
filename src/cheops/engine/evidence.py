"""What is known here of another site of a resource: for each operation, that the site has it, lacks it, or neither.

There are two kinds of evidence, and only the site itself can give either:

    report    every message of a site says what it knew, had settled, and how many replies it had made by then. Without
              the operation, it *lacked* it at that time. `PeerProgress` keeps the last report.
    replies   a site signs its replies and its operations, and others pass them on. One that is not in its report proves
              that the site went on without reporting here (`is_relayed`): it had what the document depends on. What it
              may have beyond that is *not known* since its report. A reply also says what a site has run before it
              reports that nothing is left to run, which takes until it is no longer busy.

Without either, nothing is known: silence is no evidence that a site lacks something.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from cheops.engine.replica import Replica
from cheops.log.causality import NOTHING, Vector, contains, covers, joined
from cheops.log.operation import SILENT_KEYS, Operation, OpId, Origin, Status, Verdict, origin_named

_FINISHED = (Status.OK, Status.KO)


class Presence(StrEnum):
    HAS = "has"
    LACKS = "lacks"  # as of `since_ms`
    NOT_KNOWN = "not known"  # since `since_ms`


@dataclass(eq=False)  # not frozen: every step makes one for each site, and a frozen one takes three times as long
class Evidence:
    """Of one site, about one resource. Made for one look: it does not follow later changes, and nobody changes it."""

    replica: Replica
    site: str
    known: Vector  # by its report: operations that it has
    settled: Vector  # by its report: operations that it has run or passed over
    is_reported: bool
    is_empty: bool  # instead of a report: it had nothing when this site made the resource
    since_ms: int | None  # when it reported; None: this site itself, or never
    origin: Origin | None  # the site with its present store; None: not known
    is_relayed: bool  # it has made replies or operations that its report does not count

    def received(self, op: Operation) -> Presence:
        """Whether the site has received an operation, or made it."""
        if contains(self.known, op.id) or op.origin == self.origin:
            return Presence.HAS
        if self.is_relayed and contains(self._replied, op.id):
            return Presence.HAS
        return self._absence(op)

    def has_settled(self, op: Operation) -> Presence:
        """Whether the site has run an operation, or passed it over for good."""
        has_effect = op.id not in self.replica.history.fates and not op.is_silent
        is_folded = contains(self.replica.history.folded, op.id)
        if self.site == self.replica.site and op.verdict is not None and has_effect and not is_folded:
            return Presence.HAS if op.id in self._ran_here else Presence.LACKS
        if contains(self.settled, op.id) and not (
            self._may_have_been_absent or (has_effect and self._judges_otherwise)
        ):
            return Presence.HAS
        if self._is_done(op):
            return Presence.HAS
        if contains(self.settled, op.id) and self.site != self.replica.site:
            return Presence.NOT_KNOWN
        return self._absence(op)

    def pending(self) -> int | None:
        """How many operations the site lacks; None if that is not known of all."""
        if covers(self.settled, self.replica.history.known):
            return 0  # the usual case, without a look at each operation
        if not self.is_reported and not self.is_relayed:
            return None  # also without operations: a checkpoint may hold some
        found = [self.has_settled(op) for op in self.replica.history.ops.values()]
        return None if Presence.NOT_KNOWN in found else found.count(Presence.LACKS)

    def is_pending(self) -> bool | None:
        """Whether the site lacks an operation; None if that is not known. Without a look at all, where that will do."""
        ops = self.replica.history.ops
        if covers(self.settled, self.replica.history.known):
            return False
        is_plain = not self._may_have_been_absent and not self._judges_otherwise
        if self.is_reported and not self.is_empty and not self.is_relayed and is_plain:
            return any(not contains(self.settled, op.id) for op in reversed(ops.values()))  # mostly the newest
        pending = self.pending()
        return None if pending is None else pending > 0

    @cached_property
    def _judges_otherwise(self) -> bool:
        """Whether the site may have passed over something that has an effect: it has not settled the operation that
        introduced the matrix in force, or a seal that orphans what superseded it."""
        history = self.replica.history
        if len(history.epochs) <= 1 and not history.orphans:  # the usual case
            return False
        introducer = history.matrix_introducer()
        deciding = [introducer.id] if introducer else []
        deciding += [fate.by for fate in history.orphans.values() if fate.by]
        return not all(contains(self.settled, id_) for id_ in deciding)

    @cached_property
    def _may_have_been_absent(self) -> bool:
        """While a site is off the list, it passes over what the others run. When it is on the list again, it has all of
        that to run, and does not take its word back: only when it has settled the new list, it has settled the rest."""
        history = self.replica.history
        by = history.site_list_op
        if by is None or contains(self.settled, by.id):
            return False
        listings = [op for op in history.listings if contains(self.settled, op.id) and op.id not in history.orphans]
        if any(self.site not in (op.sites or ()) for op in listings):
            return True
        newest = max(listings, key=lambda op: op.stamp, default=None)
        return newest is not None and history.may_have_forgotten_newer(newest)

    def _absence(self, op: Operation) -> Presence:
        """What it means that there is no sign of an operation."""
        if op.verdict is None:
            return Presence.LACKS  # a draft is with its origin alone
        is_told = self.is_reported and (not self.is_empty or op.origin == self.replica.origin)
        return Presence.LACKS if is_told and not self.is_relayed else Presence.NOT_KNOWN

    # -- by what others passed on --------------------------------------------------------------------------

    @cached_property
    def _replied(self) -> dict[Origin, int]:
        """What the site knew when it made what is known here of it: it gets causes before their effects."""
        replica, vector = self.replica, dict(self.known)
        ops = replica.history.ops
        for reply in replica.replies.of_origin(self.origin) if self.origin else ():
            ids = ((reply.op,) if reply.op else ()) + tuple(applied.id for applied in reply.applied)
            for op in (ops[id_] for id_ in ids if id_ in ops):
                vector = joined(vector, {**op.deps, op.origin: op.seq})
        for op in (op for op in ops.values() if op.origin == self.origin):
            vector = joined(vector, {**op.deps, op.origin: op.seq})
        return vector

    @cached_property
    def _ran_here(self) -> set[OpId]:
        """Of this site itself: what it has run, also before nothing is left to run."""
        applied = self.replica.applied
        return {entry.id for entry in applied.entries} | applied.failed.keys()

    @cached_property
    def _wiped_n(self) -> int:
        """The number of the site's last reply that it has deleted its copy, after it had left; else 0."""
        own = self.replica.replies.of_origin(self.origin) if self.origin else []
        return max((reply.n for reply in own if reply.key in SILENT_KEYS and reply.wiped), default=0)

    def _is_done(self, op: Operation) -> bool:
        if self.site == self.replica.site:
            return op.id in self._ran_here or op.id in self.replica.history.fates or op.is_silent
        reply = self.replica.replies.get(op.id, self.site)
        if reply is not None and reply.origin == self.origin and reply.status in _FINISHED and reply.n > self._wiped_n:
            return True
        if not contains(self._replied, op.id):
            return False
        if op.is_silent or op.verdict is Verdict.VOID:
            return True  # there is nothing to run
        fate = self.replica.history.fates.get(op.id)
        return fate is not None and (fate.by is None or contains(self._replied, fate.by))


def evidence_of(replica: Replica, site: str) -> Evidence:
    """What is known of a site; of this one, everything."""
    known = replica.history.known
    if site == replica.site:
        settled = replica.applied.settled
        return Evidence(
            replica, site, known, settled, True, is_empty=False, since_ms=None, origin=replica.origin, is_relayed=False
        )
    view, origin = replica.peers.get(site), origin_of(replica, site)
    return Evidence(
        replica,
        site,
        view.known if view else NOTHING,
        view.settled if view else NOTHING,
        is_reported=view is not None and view.reported,
        is_empty=view is not None and not view.incarnation,
        since_ms=view.last_contact_ms if view else None,
        origin=origin,
        is_relayed=origin is not None and _is_relayed(replica, origin),
    )


def origin_of(replica: Replica, site: str) -> Origin | None:
    """A site with its present store, as far as is known. Of several that nobody has met, none can be told apart."""
    if site == replica.site:
        return replica.origin
    view, store = replica.peers.get(site), replica.met.get(site)
    if view is not None and view.incarnation:
        origin = origin_named(site, view.incarnation)
        if store is None or store == origin.store:
            return origin
    seen = {one for one in (*replica.history.known, *replica.replies.known) if one.site == site}
    if store is not None:
        return max((one for one in seen if one.store == store), key=_generation, default=Origin(site, store))
    return seen.pop() if len(seen) == 1 else None


def _generation(origin: Origin) -> int:
    return origin.generation


def _is_relayed(replica: Replica, origin: Origin) -> bool:
    view = replica.peers.get(origin.site)
    known, replies = (view.known, view.known_replies) if view else (NOTHING, NOTHING)
    return replica.history.known.get(origin, 0) > known.get(origin, 0) or replica.replies.known.get(
        origin, 0
    ) > replies.get(origin, 0)


def has_certainly_settled_all(replica: Replica, site: str) -> bool:
    """Whether no operation is pending at a site, by its own word, which is not older than anything that is known of it.
    Every step asks that of each site, so it is without `Evidence`."""
    known = replica.history.known
    if site == replica.site:
        return replica.applied.settled == known or covers(replica.applied.settled, known)
    view = replica.peers.get(site)
    if view is None or not (view.settled == known or covers(view.settled, known)):
        return False
    origin = origin_of(replica, site)
    return origin is None or not _is_relayed(replica, origin)


def pending_at(replicas: Iterable[Replica]) -> dict[str, int | None]:
    """For each site, the operations that are pending there, over all of these resources; None if that is not known."""
    pending: dict[str, int | None] = {}
    for replica in replicas:
        if not replica.saved.unsynced:
            continue  # all its sites have everything
        pending[replica.site] = (pending.get(replica.site) or 0) + len(replica.drafts)
        for site in replica.targets():
            before, more = pending.get(site, 0), evidence_of(replica, site).pending()
            pending[site] = None if before is None or more is None else before + more
    return pending
