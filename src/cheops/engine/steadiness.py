"""Whether a step of a resource that has just ended would do anything if it were repeated.

A tick looks at every resource that is at work. Mostly nothing has happened there since its last step: it waits for a
run, or for other sites. Then the step need not be repeated as a whole. What remains is what a tick does beside it: to
send again what is due, and to ask.

This holds until an event concerns the resource, or it changes which sites are up or removed (`Residency.unsettle`);
and until one of the times comes that the end of a step looks at. Where a step depends on other times, or where a
second one may go on with what the first one did, it is always repeated. These cases are rare.
"""

from cheops.engine import health, incarnation, retention, scheduler, statements, tombstones
from cheops.engine.replica import Replica


def is_steady(replica: Replica) -> bool:
    """Whether the same step again would change nothing, whenever it is: except for what `is_due` says."""
    if replica.inbox.waiting or replica.withdrawn or replica.inherited or replica.has_left:
        return False
    request = replica.seal_request
    if request.stable or request.origins or retention.may_need_seal(replica):
        return False
    if replica.history.is_deleted or replica.has_promised:
        return False  # a tombstone, or about to be one
    slot = replica.slot
    if slot.running:
        return True
    return not slot.has_waited and scheduler.has_run_all(replica) and replica.type.checkpoint is None


def is_due(replica: Replica, now_ms: int) -> bool:
    """Whether the time has come for something that the end of a step does."""
    duties = replica.duties
    return bool(duties.unsent and duties.timer.is_due(now_ms)) or health.is_due(replica, now_ms)


def sites_behind(replica: Replica) -> set[str]:
    """The sites that lack something of a resource, or must say something."""
    behind = replica.peers_behind()
    if replica.seal_request.origins:
        behind |= statements.unanswered(replica)
    if replica.withdrawn:
        behind.update(incarnation.unheard(replica))
    return behind | tombstones.unconfirmed(replica) if replica.has_promised else behind
