"""The log of a resource: all operations that are known, which of them count, and what each site has."""

from cheops.api.models import Lane, LogView, Mark, Operations
from cheops.api.views.naming import by_stamp, find, full_name, names, vector_text
from cheops.api.views.operations import known_at, operation_view, sites_of, status_at
from cheops.engine.replica import Replica
from cheops.log.operation import Operation
from cheops.log.vector import contains


def log_view(replica: Replica) -> LogView:
    ops = by_stamp(replica)
    return LogView(
        resource=replica.resource,
        effective=names(op.id for op in replica.history.effective),
        operations=tuple(operation_view(replica, op) for op in ops),
        lanes=tuple(_lane(replica, site, ops) for site in sites_of(replica)),
        checkpoint=vector_text(replica.base.vector) if replica.base else None,
        forgotten=vector_text(replica.history.floor),
    )


def _lane(replica: Replica, site: str, ops: list[Operation]) -> Lane:
    known = known_at(replica, site)
    marks = (
        Mark(
            operation=str(op.id),
            knows=contains(known, op.id) or site == op.origin.site,
            status=status_at(replica, op, site),
        )
        for op in ops
    )
    return Lane(site=site, marks=tuple(marks))


def operations_page(replica: Replica, cursor: str, limit: int) -> Operations:
    """Operations by stamp, after the one that the cursor names."""
    ops = by_stamp(replica)
    first = ops.index(find(replica, cursor)) + 1 if cursor else 0
    page = ops[first : first + limit]
    return Operations(
        resource=replica.resource,
        operations=tuple(operation_view(replica, op) for op in page),
        next=full_name(page[-1].id) if first + limit < len(ops) else None,
    )
