"""The merge by the book: written from docs/merging.md, slowly, and sharing no code with the one in use.

The simulator compares the two at the end of each history. For one matrix without `Concurrent` entries.
"""

from collections.abc import Iterable

from cheops.log.matrix import Entry
from cheops.log.operation import Kind, Operation, OpId, Verdict

_REPLACING = {"take-one", "take-both-reverse-order"}
_MIRRORED = {"take-one", "take-both-keep-order"}


def effective_by_the_book(ops: Iterable[Operation], entries: Iterable[Entry]) -> list[OpId]:
    """The operations that have an effect, in their order."""
    ops = list(ops)
    silent = (Kind.SITES, Kind.SEAL)
    running = [op for op in ops if op.verdict is Verdict.OK and op.kind not in silent]  # rule 1
    running = [op for op in running if not _comes_too_late(op, ops)]
    names = {_name(op) for op in running}
    replaces = _replaces(entries, names)
    strictly = {n: sum((n, m) in replaces and (m, n) not in replaces for m in names) for n in names}
    running.sort(key=lambda op: (strictly[_name(op)], op.stamp), reverse=True)  # rule 2: from the top down
    effective: list[Operation] = []
    for x in running:
        if not any(_beats(y, x, replaces) for y in effective):
            effective.append(x)
    return [op.id for op in sorted(effective, key=lambda op: op.stamp)]  # rule 6


def _name(op: Operation) -> str:
    return "*" if op.kind in (Kind.DELETE, Kind.FORCE) else op.type


def _comes_too_late(op: Operation, ops: list[Operation], *, asking: frozenset[OpId] = frozenset()) -> bool:
    """Whether it is neither known to somebody who sealed the past, nor made in knowledge of that past."""
    for other in ops:
        if other.seal is None or other.id in asking or other.id == op.id:
            continue
        if op.seq <= other.deps.get(op.origin, 0):
            continue
        if all(op.deps.get(origin, 0) >= n for origin, n in other.seal.stable.items()):
            continue
        if op.seal and (op.seal.root, op.stamp) < (other.seal.root, other.stamp):
            continue  # the seal that was there first stands
        if not _comes_too_late(other, ops, asking=asking | {op.id}):
            return True
    return False


def _beats(y: Operation, x: Operation, replaces: set[tuple[str, str]]) -> bool:
    if (_name(y), _name(x)) not in replaces:
        return False
    if x.seq <= y.deps.get(x.origin, 0):
        return True  # rule 3
    if y.seq <= x.deps.get(y.origin, 0):
        return False
    mutual = (_name(x), _name(y)) in replaces
    return y.stamp > x.stamp if mutual else True  # rules 5 and 4


def _replaces(entries: Iterable[Entry], names: set[str]) -> set[tuple[str, str]]:
    """Pairs (y, x) such that y replaces x, closed under transitivity."""
    pairs = {("*", name) for name in (*names, "*")}
    for entry in entries:
        if entry.result.value in _REPLACING:
            pairs.add((entry.after, entry.before))
        if entry.result.value in _MIRRORED:
            pairs.add((entry.before, entry.after))
    pairs |= {(y, y) for y, _ in pairs}
    while True:
        more = {(z, x) for z, y in pairs for w, x in pairs if w == y} - pairs
        if not more:
            return pairs
        pairs |= more
