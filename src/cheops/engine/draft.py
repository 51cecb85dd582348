"""How a client's request becomes a draft: its number, its past, its matrix, and whether it carries a seal."""

from cheops.engine import statements
from cheops.engine.admission import NO_RULES, matrix_in_force
from cheops.engine.documents import key_of
from cheops.engine.events import Effects, Submitted
from cheops.engine.matrices import Matrices
from cheops.engine.replica import Replica
from cheops.log.causality import joined
from cheops.log.operation import SILENT_KINDS, Kind, MatrixRef, Operation, Stamp, Verdict


def draft_of(replica: Replica, event: Submitted, stamp: Stamp, matrices: Matrices, out: Effects) -> Operation:
    """The next operation of this site on a resource. With `parallel` it has its verdict at once."""
    # Drafts are not in the history yet, but have numbers, and this operation comes after them.
    own = max([replica.history.known.get(replica.origin, 0), *(draft.seq for draft in replica.drafts)])
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
