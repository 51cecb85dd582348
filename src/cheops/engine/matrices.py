"""The matrices that a site knows, by hash.

Anybody can make a matrix up, so a site keeps only those that operations need. One that comes with a message must be
named by an operation that is taken, or waits. One that comes alone (CouchDB's protocol has no order) is kept until its
operation comes, and only so many of them.
"""

from collections.abc import Iterable

from cheops.engine.documents import key_of
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation

MAX_UNCLAIMED = 200  # matrices that came before the operations that name them


class Matrices(dict[str, Matrix]):
    def __init__(self, *matrices: Matrix) -> None:
        super().__init__({matrix.hash: matrix for matrix in matrices})
        self._unclaimed: dict[str, None] = {}  # those that came alone, and that no operation has named yet
        self._tried: list[Matrix] = []

    def keep(self, matrices: Iterable[Matrix], out: Effects) -> None:
        """Keep matrices whose operations may come later: those that came last."""
        for matrix in matrices:
            if matrix.hash not in self:
                self[matrix.hash] = matrix
                self._unclaimed[matrix.hash] = None
                out.documents[key_of(matrix)] = matrix
        while len(self._unclaimed) > MAX_UNCLAIMED:
            hash_ = next(iter(self._unclaimed))
            del self._unclaimed[hash_], self[hash_]
            out.drop([("matrix", hash_)])

    def try_out(self, matrices: Iterable[Matrix]) -> list[Matrix]:
        """Add the matrices of a message, and give those that are new. `save_used` follows."""
        new = {matrix.hash: matrix for matrix in matrices if matrix.hash not in self}
        self |= new
        self._tried = list(new.values())
        return self._tried

    def give_up(self) -> None:
        """The step failed between `try_out` and `save_used`: what is not saved must not be used."""
        for matrix in self._tried:
            self.pop(matrix.hash, None)
        self._tried = []

    def save_used(self, replica: Replica, new: list[Matrix], ops: Iterable[Operation], out: Effects) -> None:
        """Save those new matrices that an operation needs which was taken, or waits. The others are not kept."""
        self._tried = []
        if self._unclaimed:
            for op in ops:
                self._unclaimed.pop(op.matrix.hash, None)
        if not new:
            return
        history = replica.history
        used = {op.matrix.hash for op in (*replica.inbox.waiting.values(), *history.ops.values())}
        for matrix in new:
            if matrix.hash in used or (history.adopted and history.adopted.hash == matrix.hash):
                out.documents[key_of(matrix)] = matrix
            else:
                del self[matrix.hash]
