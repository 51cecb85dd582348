"""The rules of the merge once more, word by word: what the code is compared with."""

from collections.abc import Iterable, Sequence
from functools import cache

from cheops.log.matrix import Entry, Result
from cheops.log.operation import Kind, Operation, OpId, Verdict
from tests.log.histories import (
    ids,
)

View = tuple[list[OpId], set[OpId]]


def naive(ops: Sequence[Operation], entries: Sequence[Entry]) -> View:
    """Rules 1 to 8 in the words of docs/merging.md, with no thought for speed, and nothing from the code but what an
    operation is. Rule 2 is well-founded, since whatever supersedes stands in a higher class, or in the same one and
    has a greater stamp."""
    replaces, tolerated = relation(entries), tolerances(entries)

    def would_supersede(y: Operation, x: Operation) -> bool:
        if x == y or (name(y), name(x)) not in replaces or before(y, x):
            return False
        if before(x, y):
            return True  # rule 3
        if (name(x), name(y)) in replaces:
            return y.stamp > x.stamp  # rule 5
        return (name(y), name(x)) not in tolerated  # rule 4

    @cache
    def supersedes(y: Operation, x: Operation) -> bool:
        in_past = [z for z in candidates if before(z, x)]
        return would_supersede(y, x) and not any(supersedes(z, y) for z in in_past)  # rule 2

    candidates = [op for op in ops if op.kind is not Kind.SITES and op.verdict is Verdict.OK]  # rule 1
    superseded = {x.id for x in candidates if any(supersedes(y, x) for y in candidates)}
    effective = {op for op in candidates if op.id not in superseded}
    failed = {op.id for op in ops if op.verdict is not Verdict.OK}
    return ids(in_order(effective, tolerated)), failed | superseded


def in_order(effective: Iterable[Operation], tolerated: set[tuple[str, str]]) -> list[Operation]:
    """Rule 6: always the smallest stamp of those that nothing left must come before. Where the matrix asks for
    a circle, causality stands and the matrix gives way."""
    left, order = sorted(effective, key=lambda op: op.stamp), list[Operation]()
    while left:
        caused = [op for op in left if not any(before(other, op) for other in left)]
        free = [op for op in caused if not any(comes_first(y, op, tolerated) for y in left)]
        left.remove(first := (free or caused)[0])
        order.append(first)
    return order


def comes_first(y: Operation, x: Operation, tolerated: set[tuple[str, str]]) -> bool:
    return (name(y), name(x)) in tolerated and not before(x, y) and not before(y, x)


def asks_for_a_circle(effective: Iterable[Operation], entries: Sequence[Entry]) -> bool:
    """Whether no order at all does what matrix and causality ask for: only with two classes that let others stay."""
    order, tolerated = in_order(effective, tolerances(entries)), tolerances(entries)
    return any(comes_first(y, x, tolerated) for place, x in enumerate(order) for y in order[place:])


def before(a: Operation, b: Operation) -> bool:
    return b.deps.get(a.origin, 0) >= a.seq


def name(op: Operation) -> str:
    return {Kind.DELETE: "/top", Kind.FORCE: "/top"}.get(op.kind, op.type)


def relation(entries: Sequence[Entry]) -> set[tuple[str, str]]:
    """All (y, x) where y replaces x: what is written, its mirror, itself, and what follows."""
    names = {name for entry in entries for name in (entry.before, entry.after)} | {"note"}
    found = {("/top", name) for name in names | {"/top"}}
    for entry in entries:
        if entry.result in (Result.TAKE_ONE, Result.REVERSE_ORDER):
            found |= {(entry.after, entry.before), (entry.after, entry.after)}
        if entry.result in (Result.TAKE_ONE, Result.KEEP_ORDER):
            found |= {(entry.before, entry.after), (entry.before, entry.before)}
    for middle in names:
        found |= {(y, x) for y in names for x in names if {(y, middle), (middle, x)} <= found}
    return found


def tolerances(entries: Sequence[Entry]) -> set[tuple[str, str]]:
    """All (y, x) where y replaces x but lets it stay when the two are concurrent."""
    written = [entry for entry in entries if entry.concurrent_both]
    return {(e.before, e.after) if e.result is Result.KEEP_ORDER else (e.after, e.before) for e in written}
