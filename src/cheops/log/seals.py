"""Seals: what all sites have settled for good, and the operations that come too late for it.

A site may forget only what no operation that is still to come can be concurrent to. The sites on the list achieve
that by reporting to each other what they have settled. But the resource may also be created a second time, at a site
that the others do not know, or at one that lost its disk. Operations submitted there depend on nothing of the past.

So a site that sees that all sites have settled everything up to some vector records this in an operation, the *seal*,
and nothing is forgotten before every site knows the seal. An operation is *orphaned* if the author of a seal did not
know it, and it does not depend on what is sealed: it has no effect at any site, whether that site has forgotten
anything or not. It is kept and shown like a superseded operation.

A seal speaks for all sites, so it names them, each with its store, and carries a signed statement of each
(`without_statement`). No site can seal alone what others take part in. What a site made before its statement is known
to the author of the seal, and what it makes afterwards depends on what is sealed: an operation of a site that signed is
never orphaned. What is orphaned comes from a site that was not on the list, from an earlier or later store of one that
was, or from a site that broke its own statement (`broke_statement`).

The seal of a resource at a single site carries no statement of another, so it orphans nothing: it only proves what that
site may forget. The newest seal of several sites is kept beside it. An operation that did not know of the single site's
seal comes after the checkpoint of that site, at every site: nobody else has what the checkpoint holds.

Two seals of one resource never orphan each other. If they do, two resources of one name have met: the one that more
sites sealed stands, then the one that began first (`root`); the other gives way.

The root is the earliest stamp that the signing sites know, and what a site knows only grows. So of two statements that
a site makes before it knows a seal, the later one names the same root or an earlier one. Statements for a first seal
that somebody keeps, and uses after others have sealed, therefore never speak for an older resource than the others.
"""

from collections.abc import Iterable, Sequence

from cheops.log.causality import Vector, contains, covers, joined
from cheops.log.operation import Operation, Origin, seal_hash


def excludes(sealing: Operation, op: Operation) -> bool:
    """Whether a seal orphans an operation."""
    seal = sealing.seal
    if seal is None or is_of_one_site(sealing) or op == sealing or contains(sealing.deps, op.id):
        return False
    return not covers(op.deps, seal.stable)


def is_of_one_site(op: Operation) -> bool:
    """Whether an operation carries a seal that a single site made, for a resource at that site alone."""
    return op.seal is not None and len(op.seal.origins) == 1


def excluding_seal(op: Operation, seals: Iterable[Operation]) -> Operation | None:
    """The seal that orphans an operation: the newest of them, so that all sites name the same."""
    excluding = [sealing for sealing in seals if excludes(sealing, op)]
    return max(excluding, key=lambda sealing: sealing.stamp, default=None)


def without_statement(sealing: Operation) -> list[Origin]:
    """The origins whose statement a seal needs and does not have. Its author signs the operation itself."""
    seal = sealing.seal
    if seal is None:
        return []
    said = seal_hash(seal.stable, seal.origins, seal.root)
    stated = {
        one.origin
        for one in seal.statements
        if one.resource == sealing.resource and one.seal == said and one.made <= sealing.deps.get(one.origin, 0)
    }
    return sorted(set(seal.origins) - stated - {sealing.origin})


def broke_statement(op: Operation, sealing: Operation) -> bool:
    """Whether the origin of an orphaned operation had stated, for the seal that orphans it, that it would make no such
    operation: it knows what is sealed, and the operation does not depend on it."""
    statements = sealing.seal.statements if sealing.seal else ()
    stated = {one.origin: one.made for one in statements} | {sealing.origin: sealing.seq}
    return op.origin in stated and op.seq > stated[op.origin] and excludes(sealing, op)


def standing(sealing: Iterable[Operation]) -> list[Operation]:
    """The seals that count, in their order: those of the resource that stands."""
    seals: list[Operation] = []
    for op in sorted(sealing, key=_rank):
        if not any(excludes(senior, op) for senior in seals):
            seals.append(op)
    return seals


def latest(seals: Sequence[Operation]) -> Operation | None:
    return max(seals, key=lambda sealing: sealing.stamp, default=None)


def lasting(seals: Sequence[Operation]) -> tuple[Operation | None, Operation | None]:
    """The newest seal, and the newest of several sites: one of a single site orphans nothing in its place."""
    return latest(seals), latest([sealing for sealing in seals if not is_of_one_site(sealing)])


def sealed_by(ops: Iterable[Operation]) -> dict[Origin, int]:
    """What the seals among these operations cover; themselves too, unless operations of their author are in between:
    nobody need have seen those."""
    sealed: dict[Origin, int] = {}
    for op in sorted((op for op in ops if op.seal), key=lambda op: op.stamp):
        sealed = joined(sealed, op.seal.stable) if op.seal else sealed
        if sealed.get(op.origin, 0) == op.seq - 1:
            sealed = joined(sealed, {op.origin: op.seq})
    return sealed


def overruled_by(seals: Sequence[Operation], ops: Iterable[Operation]) -> dict[Origin, int]:
    """Of the authors of seals that do not know one which counts: how many of their own operations those seals cover,
    themselves included. What came before such a seal does not know the other one either, so it has no effect. Only of
    the authors: nobody else can take the effect of what a site has made."""
    overruled: dict[Origin, int] = {}
    for op in ops:
        if op.seal and excluding_seal(op, seals):
            overruled = joined(overruled, {op.origin: sealed_by((op,)).get(op.origin, 0)})
    return overruled


def proving_seals(sealing: Iterable[Operation], floor: Vector) -> list[Operation]:
    """Seals that together cover what was forgotten, as few as simply found: the newest, and what others add to it."""
    proving: list[Operation] = []
    left = dict(floor)
    for op in sorted(sealing, key=lambda op: op.stamp, reverse=True):
        covered = sealed_by((op,))
        rest = {origin: n for origin, n in left.items() if covered.get(origin, 0) < n}
        if len(rest) < len(left):
            proving.append(op)
            left = rest
    return proving


def _rank(op: Operation) -> tuple[object, ...]:
    assert op.seal is not None  # noqa: S101 - callers pass only operations with a seal
    return (-len(op.seal.origins), op.seal.root, op.stamp)
