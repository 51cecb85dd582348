"""Epochs: what was superseded when a matrix was introduced, which that matrix does not change.

An epoch is computed from the past of the operation that introduced the matrix, so it is the same at every site. What a
site forgets, it takes out of its epochs too. Where such an operation is here again, or still, because another site
forgot it and sent a snapshot, the epoch is completed: otherwise the operation would be judged by the new matrix, and
might come back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from msgspec import Struct, field

from cheops.log.causality import Vector, contains
from cheops.log.matrix import Matrix
from cheops.log.operation import MatrixRef, Operation, OpId, Stamp
from cheops.log.rules import Fate, merged

FindMatrix = Callable[[str], Matrix]


class Epoch(Struct, frozen=True):
    """The past of the operation that introduced a matrix, and what was superseded in it."""

    past: Vector = field(default_factory=dict)
    settled: dict[OpId, Fate] = field(default_factory=dict)

    def copy(self) -> "Epoch":
        return Epoch(self.past, dict(self.settled))


NO_EPOCH = Epoch()


def newest_matrix(ops: Iterable[Operation], rejected: AbstractSet[Stamp]) -> MatrixRef | None:
    """Of all matrices, the one that was introduced last is in force."""
    refs = (op.matrix for op in ops if op.matrix.introduced not in rejected)
    return max(refs, key=lambda ref: ref.introduced, default=None)


def epoch_after(
    past: Sequence[Operation],
    in_force: MatrixRef | None,
    epochs: Mapping[Stamp, Epoch],
    folded: Vector,
    find_matrix: FindMatrix,
) -> dict[OpId, Fate]:
    """What is superseded in the past of an operation that introduces a matrix, by the matrix in force there."""
    if in_force is None:
        return {}
    before = epochs.get(in_force.introduced, NO_EPOCH)
    open_ = [op for op in past if op.id not in before.settled and not contains(folded, op.id)]
    return before.settled | merged(open_, find_matrix(in_force.hash), before.past).fates
