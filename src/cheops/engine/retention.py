"""What a site may forget, and how sites agree on that: stability, seals, pruning, checkpoints.

An operation is *stable* when every site involved has settled it. It is *sealed* when an operation that all of them
know says so (see cheops.log.seals). Only sealed operations are forgotten: those without effect at once (`prune`), the
others when a checkpoint holds their effect (`fold`).
"""

from cheops.engine import ledger
from cheops.engine.documents import Base, op_key, reply_key
from cheops.engine.events import Effects, Notify
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, common, contains, covers
from cheops.log.operation import SILENT_KEYS, Command, OpId, Origin, Reply
from cheops.log.seals import latest, sealed_by

_AT_REST_PART = 5  # of `Limits.seal_after`


def all_settled(replica: Replica) -> bool:
    """Whether every site involved has settled everything that is known here."""
    return replica.is_synced and covers(_stable(replica), replica.history.known)


def _stable(replica: Replica) -> dict[Origin, int]:
    """What every site involved has settled, so that no operation still to come can be concurrent to it.

    This requires that everything the others knew when they reported it is known here: an operation that was submitted
    before that and is still on its way here need not depend on any of it.
    """
    views = [replica.peer(peer) for peer in replica.targets()]
    # Operations of theirs may still be on their way here, and may be concurrent to anything.
    if not all(covers(replica.history.known, view.known) and not view.differs for view in views):
        return {}
    return common([replica.applied.settled, *(view.settled for view in views)])


def _sealed(replica: Replica) -> dict[Origin, int]:
    """The operations that every site knows to be settled for good.

    A seal counts once it is stable itself: only then does every site reject late operations because of it.
    """
    stable = _stable(replica)
    newest = latest([op for op in replica.history.seals if contains(stable, op.id)])
    return common([stable, newest.seal.stable]) if newest and newest.seal else {}


def is_sealed(replica: Replica) -> bool:
    """Whether everything that is known is sealed, except the seal itself."""
    newest = latest(replica.history.seals)
    if newest is None or newest.seal is None:
        return False
    return covers(sealed_by((newest,)), replica.history.known)


def lacks_seal(replica: Replica) -> bool:
    """Whether no seal in the log covers what this site has forgotten. The seal was withdrawn (incarnation.py): without
    another one, no site takes a snapshot from here."""
    history = replica.history
    if not replica.inherited or covers(sealed_by(history.seals), history.floor):  # the usual cases
        return False
    return not covers(sealed_by(history.ops.values()), history.floor)  # also by seals that do not stand


def is_deleted(replica: Replica) -> bool:
    """Whether this site has deleted a resource, and nothing has happened since, or is in doubt."""
    applied = replica.applied
    if not replica.history.is_deleted:  # the usual case
        return False
    if replica.drafts or not replica.is_involved or not applied.is_settled or applied.starts_over:
        return False
    return not (applied.failed or applied.unknown or applied.dirty or applied.order_not_enforced)


def fullness(replica: Replica) -> str | None:
    """Why the log must not grow, or None: it has the maximal length, even without what will be forgotten soon."""
    history, most = replica.history, replica.limits.log
    if len(history.ops) < most or len(history.ops) - len(history.forgettable(_stable(replica))) < most:
        return None
    return (
        f"its log has {len(history.ops)} operations, and limits.log is {most}; a 'checkpoint' of its type "
        "keeps logs short, and one operation that replaces all others (kind 'force') makes room"
    )


def seal_due(replica: Replica) -> Vector | None:
    """What this site should seal now, or None if a seal would let nothing be forgotten."""
    if not may_need_seal(replica):  # a cheap test first: this runs at the end of every step
        return None
    history, wants_checkpoint = replica.history, replica.applied.wants_seal
    # Every site may see that a seal is due; without a rule all of them would ask for statements at the same time.
    if replica.site != min(replica.sites, default=""):
        return None
    stable = _stable(replica)
    newest = latest(history.seals)
    if not stable or (newest and newest.seal and covers(newest.seal.stable, stable)):
        return None
    if newest and not contains(stable, newest.id):
        return None  # what it lets the sites forget would be counted again
    if wants_checkpoint and covers(stable, history.known):
        return stable
    return stable if len(history.forgettable(stable)) >= _worth_seal(replica) else None


def may_need_seal(replica: Replica) -> bool:
    """Whether a seal may be due, as far as a look at the counts tells."""
    fates = replica.history.fates  # mostly there are none
    return replica.applied.wants_seal or (bool(fates) and len(fates) >= _worth_seal(replica))


def _worth_seal(replica: Replica) -> int:
    """How many operations a seal must let the sites forget. At rest fewer are worth one: otherwise a short log would
    keep them for ever."""
    most = replica.limits.seal_after
    return max(1, most // _AT_REST_PART) if replica.is_resting else most


def prune(replica: Replica, out: Effects) -> bool:
    """Forget what has no effect any more, is settled everywhere and sealed, with the replies to it; whether there was
    something."""
    if not replica.history.seals:  # the usual case
        return False
    sealed = _sealed(replica)
    gone = replica.history.prune(sealed) if sealed else []
    if gone:
        _forget(replica, gone, out)
    return bool(gone)


def fold(replica: Replica, write: Command, out: Effects) -> None:
    """A checkpoint takes the place of everything that is settled everywhere."""
    if not all_settled(replica) or not is_sealed(replica):
        return
    vector = dict(replica.history.known)
    gone = replica.history.fold()
    replica.applied.fold(Base(vector, write))
    _forget(replica, gone, out)
    out.others.append(Notify(replica.resource, "checkpoint", None, f"{len(gone)} operations folded"))


def _forget(replica: Replica, gone: list[OpId], out: Effects) -> None:
    out.drop(op_key(replica.resource, id_) for id_ in gone)
    drafts = {draft.id for draft in replica.drafts}
    views = [replica.peer(peer) for peer in replica.targets()]
    # A reply that some site lacks is kept: that site must be able to take its origin's replies without a gap.
    everywhere = common([replica.replies.known, *(view.known_replies for view in views)])
    deletion = _last_deletion(replica)
    held = _held(replica)

    def is_pointless(reply: Reply) -> bool:
        if reply.origin == replica.origin and (reply is deletion or reply.op in held):
            return False
        without_op = reply.op not in replica.history.ops and reply.op not in drafts and not reply.replay
        return without_op and reply.n <= everywhere.get(reply.origin, 0)

    pointless = replica.replies.drop(is_pointless)
    out.drop(reply_key(replica.resource, reply.origin, reply.n) for reply in pointless)
    replica.replies.forget_operations(set(gone))
    ledger.save(replica, out)


def _held(replica: Replica) -> set[OpId]:
    """What the application holds, also if it has lost its effect since and nothing could undo it. Without this site's
    reply, a restart would not know of that."""
    return {entry.id for entry in replica.applied.entries}


def _last_deletion(replica: Replica) -> Reply | None:
    """This site's last reply about deleting its copy after it had left. It must outlive the operation that removed the
    site: without it, a restart would count as applied what had run before the deletion."""
    own = reversed(replica.replies.of_origin(replica.origin))
    return next((reply for reply in own if reply.key in SILENT_KEYS and reply.wiped), None)
