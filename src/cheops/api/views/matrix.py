"""A matrix, and everything that follows from it for each pair of types."""

from collections.abc import Iterable

from msgspec import structs

from cheops.api.models import MatrixEntry, MatrixPair, MatrixView
from cheops.engine.replica import Replica
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Kind


def matrix_view(matrix: Matrix, types: Iterable[str] = ()) -> MatrixView:
    """`types`: of operations, in the order in which they are shown. The matrix need not mention them; those
    that it does and that are not among them come behind."""
    types = tuple(dict.fromkeys((*types, *matrix.types)))
    return MatrixView(
        hash=matrix.hash,
        entries=tuple(map(_entry, matrix.entries)),
        types=types,
        pairs=tuple(_pair(matrix, before, after) for before in types for after in types),
        replaces={name: matrix.wiped_by(name) for name in types if matrix.is_replace_type(name)},
        never_mentioned=tuple(name for name in types if name not in matrix.types),
    )


def matrix_in_force(replica: Replica) -> MatrixView:
    """That of a resource, with the types of its operations."""
    ops = [*replica.history.ops.values(), *replica.drafts]
    used = sorted({op.type for op in ops if op.kind is Kind.NORMAL})
    view = matrix_view(replica.matrix, (*replica.matrix.types, *used))
    adopted = replica.history.adopted
    brought = [op for op in ops if adopted is not None and op.stamp == adopted.introduced]
    by = str(brought[0].id) if brought else None
    return structs.replace(view, resource=replica.resource, introduced_by=by)


def _entry(entry: Entry) -> MatrixEntry:
    return MatrixEntry(
        before=entry.before,
        after=entry.after,
        result=entry.result.value,
        concurrent_both=entry.concurrent_both,
    )


def _pair(matrix: Matrix, before: str, after: str) -> MatrixPair:
    result = matrix.result(before, after) or _result_that_follows(matrix, before, after)
    both = matrix.both_stay_when_concurrent(before, after) or matrix.both_stay_when_concurrent(after, before)
    return MatrixPair(
        before=before,
        after=after,
        result=result.value if result else None,
        class_=matrix.class_of_pair(before, after),
        inferred=matrix.explicit(before, after) is None,
        concurrent_both=both,
    )


def _result_that_follows(matrix: Matrix, before: str, after: str) -> Result | None:
    """The entry that would mean the same, for a pair that the matrix does not name."""
    match matrix.replaces(after, before), matrix.replaces(before, after):
        case True, True:
            return Result.TAKE_ONE
        case True, False:
            return Result.REVERSE_ORDER
        case False, True:
            return Result.KEEP_ORDER
        case _:
            return None
