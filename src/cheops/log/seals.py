"""Seals: what all sites have settled for good, and what comes too late for it.

A site may forget only what no operation that is still to come can be concurrent to. The sites on the list
see to that by telling each other what they have settled. But somebody may make the resource anew at a site of
which those do not know, or at one that lost its disk; what is made there knows nothing of the past.

So whoever sees that all sites have settled everything up to some vector says so in an operation, the *seal*,
and nothing is forgotten before every site knows the seal. An operation that the author of a seal did not
know, and that was not made in knowledge of what is sealed, is *estranged*: it has no effect, at any site,
whether that site has forgotten anything or not. It is kept and shown like anything else that was superseded.

Two seals of one resource never estrange each other. Where they do, two resources of one name meet: the one
that was sealed first (`root`) stands.
"""

from collections.abc import Iterable, Sequence

from cheops.log.causality import contains, covers
from cheops.log.operation import Operation


def excludes(sealing: Operation, op: Operation) -> bool:
    """Whether an operation was made outside of what this one seals."""
    seal = sealing.seal
    if seal is None or op == sealing or contains(sealing.deps, op.id):
        return False
    return not covers(op.deps, seal.stable)


def excluding_seal(op: Operation, seals: Iterable[Operation]) -> Operation | None:
    """The seal for which an operation comes too late: the newest of them, so that all sites name the same."""
    found = [sealing for sealing in seals if excludes(sealing, op)]
    return max(found, key=lambda sealing: sealing.stamp, default=None)


def standing(sealing: Iterable[Operation]) -> list[Operation]:
    """The seals that count, in their order: those of the resource that was sealed first."""
    found: list[Operation] = []
    for op in sorted(sealing, key=_rank):
        if not any(excludes(senior, op) for senior in found):
            found.append(op)
    return found


def latest(seals: Sequence[Operation]) -> Operation | None:
    return max(seals, key=lambda sealing: sealing.stamp, default=None)


def _rank(op: Operation) -> tuple[object, ...]:
    assert op.seal is not None  # noqa: S101 - only such are asked for
    return (op.seal.root, op.stamp)
