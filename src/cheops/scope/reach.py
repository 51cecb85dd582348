"""Which routes work now, as far as the site knows, and in which order alternatives are tried.

What a route means (`resolve`) does not depend on who is up; what is tried first does, and differs between
reading, for which one replica will do, and writing. Nothing is dropped because it looks dead: that
knowledge may be stale.
"""

from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Consistency


def works_now(direct: Direct, snapshot: Snapshot, *, reading: bool) -> bool:
    """Whether enough of its sites are up for a read, or for a write, to succeed."""
    up = sum(map(snapshot.is_up, direct.sites))
    match direct:
        case Cross(parts):
            return all(works_now(part, snapshot, reading=reading) for part in parts)
        case Replicas(sites, Consistency.ATOMIC) if not reading:
            return up == len(sites)
        case Replicas(_, Consistency.STRONG) if not reading:
            return up >= direct.majority
        case One() | Replicas():
            return up > 0


def in_order(route: Route, snapshot: Snapshot, *, reading: bool) -> tuple[Direct, ...]:
    """The alternatives in the order in which to try them: those that work now first, else as written."""
    if not isinstance(route, Fallback):
        return (route,)
    return tuple(sorted(route.alternatives, key=lambda one: not works_now(one, snapshot, reading=reading)))
