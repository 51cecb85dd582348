"""Sums of the contents of operations, by which sites compare what they know, beyond the ids.

Sums, because they do not depend on the order, an operation can be taken out again, and what is forgotten stays counted.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256

from cheops.log.causality import Vector
from cheops.log.operation import CONTENT_MASK, Operation, Origin, content_hash

_MOST_UNCOUNTED = 1_000  # operations, changes; more would keep operations in memory that are forgotten


class ContentSums:
    """Of one history: per origin everything up to its floor, everything that is known; and the effective operations."""

    def __init__(self, floor: Mapping[Origin, int]) -> None:
        self.floor = dict(floor)
        self._known = dict(floor)
        self._effective = 0
        self.current = ""  # the summary; empty: to be computed again
        # Not counted yet: a resource at one site never compares, and hashing takes longer than all the rest here.
        self._new: list[Operation] = []
        self._changes: list[tuple[Operation, int]] = []  # of what is effective

    def copy(self) -> "ContentSums":
        """Sums of their own, for a history that only tries something."""
        copied = ContentSums(self.floor)
        copied._known, copied._effective, copied.current = dict(self._known), self._effective, self.current
        copied._new, copied._changes = list(self._new), list(self._changes)
        return copied

    def add(self, op: Operation) -> None:
        """An operation above the floor is known now."""
        self._new.append(op)
        self.current = ""
        if len(self._new) >= _MOST_UNCOUNTED:  # many may have no effect, and would never be among the changes
            self._count()

    def add_effective(self, op: Operation, sign: int = 1) -> None:
        self._changes.append((op, sign))
        self.note_change()

    def set_effective(self, ops: Iterable[Operation]) -> None:
        self._changes = []
        self._effective = sum(map(content_hash, ops)) & CONTENT_MASK
        self.note_change()

    def _count(self) -> None:
        for op in self._new:
            _add(self._known, op, 1)
        for op, sign in self._changes:
            self._effective = (self._effective + sign * content_hash(op)) & CONTENT_MASK
        self._new, self._changes = [], []

    def raise_floor(self, ops: Iterable[Operation]) -> None:
        """These operations are below the floor now."""
        for op in ops:
            _add(self.floor, op, 1)

    def fold(self) -> None:
        """Everything is below the floor, and nothing is effective."""
        self._count()
        self.floor, self._effective, self.current = dict(self._known), 0, ""

    def set_floor(self, origin: Origin, content: int, above: Iterable[Operation]) -> None:
        """Another site forgot this origin's operations, with this sum; the others are above."""
        self._count()
        self.floor[origin] = self._known[origin] = content
        for op in above:
            self.add(op)
        self.current = ""

    def replace_below(self, old: Operation, new: Operation) -> None:
        _add(self.floor, old, -1)
        _add(self.floor, new, 1)

    def summary(self, known: Vector, folded: Vector) -> str:
        """A short text, for `differ`."""
        if not self.current:
            self._count()
            numbers = sorted((origin, n, self._known.get(origin, 0)) for origin, n in known.items())
            parts = (numbers, sorted(folded.items()), self._effective)
            self.current = ".".join(sha256(repr(part).encode()).hexdigest()[:16] for part in parts)
        return self.current

    def note_change(self) -> None:
        self.current = ""
        if len(self._changes) >= _MOST_UNCOUNTED:
            self._count()


def differ(one: str, other: str) -> bool:
    """Whether the summaries of two sites that know the same ids say that the contents differ, or the effect. What a
    site has folded into a checkpoint is no longer effective there, so effects compare only where this is the same."""
    (known, folded, effective), (known2, folded2, effective2) = one.split("."), other.split(".")
    return known != known2 or (folded == folded2 and effective != effective2)


def _add(contents: dict[Origin, int], op: Operation, sign: int) -> None:
    contents[op.origin] = (contents.get(op.origin, 0) + sign * content_hash(op)) & CONTENT_MASK
