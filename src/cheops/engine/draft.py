"""How a client's request becomes an operation of this site: its number, past and matrix, and whether it has a seal.

It is a *draft* until its first run has given it a verdict.
"""

from cheops.engine import statements
from cheops.engine.admission import matrix_in_force
from cheops.engine.documents import SiteClock, key_of
from cheops.engine.events import Effects, Submitted
from cheops.engine.matrices import Matrices
from cheops.engine.replica import Replica
from cheops.log.causality import Clock, joined
from cheops.log.matrix import NO_RULES
from cheops.log.operation import SILENT_KINDS, Kind, MatrixRef, Operation, Stamp, Verdict


def accept(  # noqa: PLR0913, PLR0917 - what a site has
    replica: Replica, event: Submitted, clock: Clock, matrices: Matrices, out: Effects, now_ms: int
) -> tuple[Operation, Clock]:
    """Give an operation its number and stamp; from now on it is this site's. Returns the clock after it, too."""
    # The clock may have been set back since the resource was loaded: see incarnation.py.
    seen = clock.seen(replica.history.latest) if replica.history.latest else clock
    clock = seen.tick(now_ms)
    out.documents[key_of(SiteClock(clock))] = SiteClock(clock)
    draft = _draft_of(replica, event, clock.stamp(replica.origin), matrices, out)
    if draft.verdict is None:
        replica.drafts.append(draft)
    else:
        replica.add(draft)
        replica.outbox.push((draft,))
    if len(draft.deps) == 0 and draft.sites:
        for site in draft.sites:  # the first operation of a resource: no site has anything of it yet
            replica.peer(site).mark_empty()
    out.documents[key_of(draft)] = draft
    return draft, clock


def _draft_of(replica: Replica, event: Submitted, stamp: Stamp, matrices: Matrices, out: Effects) -> Operation:
    """The next operation of this site on a resource. With `parallel` it has its verdict at once."""
    # Drafts are not in the history yet, but have numbers, and this operation comes after them.
    own = max(replica.history.known.get(replica.origin, 0), replica.drafts[-1].seq if replica.drafts else 0)
    parallel = replica.type.parallel and event.kind not in SILENT_KINDS
    deps = joined(replica.history.known, {replica.origin: own} if own else {})
    return Operation(
        event.resource,
        replica.type.name,
        event.type,
        event.kind,
        event.payload,
        replica.origin,
        own + 1,
        deps,
        stamp,
        _matrix_ref(replica, event, MatrixRef("", stamp), matrices, out),
        event.sites if (own == 0 and not replica.history.site_list) or event.kind is Kind.SITES else None,
        parallel,
        Verdict.OK if parallel else None,
        seal=statements.seal_for(replica),
    )


def _matrix_ref(replica: Replica, event: Submitted, new: MatrixRef, matrices: Matrices, out: Effects) -> MatrixRef:
    """The matrix in force, unless the client sends one with other rules."""
    in_force = matrix_in_force(replica)
    matrix = event.matrix or matrices.get(in_force.hash) or NO_RULES
    if matrix.hash not in matrices:
        matrices[matrix.hash] = matrix
        out.documents[key_of(matrix)] = matrix
    return in_force if matrix.hash == in_force.hash else MatrixRef(matrix.hash, new.introduced)
