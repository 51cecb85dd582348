"""Sums of contents: what they keep in memory."""

import gc

from cheops.log.contents import ContentSums
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Stamp, Verdict

A = Origin("a", "1")


def failed(seq: int) -> Operation:
    """An operation that failed at its origin: it has no effect anywhere."""
    return Operation(
        resource="sums-in-memory",
        rtype="t",
        type="inc",
        kind=Kind.NORMAL,
        payload=Command("inc"),
        origin=A,
        seq=seq,
        deps={A: seq - 1},
        stamp=Stamp(seq, 0, A),
        matrix=MatrixRef("m", Stamp(0, 0, A)),
        verdict=Verdict.VOID,
    )


def test_operations_without_effect_do_not_stay_in_memory_for_the_sums() -> None:
    sums = ContentSums({})
    for seq in range(1, 3_001):
        sums.add(failed(seq))
    kept = [one for one in gc.get_objects() if isinstance(one, Operation) and one.resource == "sums-in-memory"]
    assert len(kept) < 1_000
    at_once = ContentSums({})
    at_once.add(failed(1))
    one_by_one = at_once.copy()
    one_by_one.summary({A: 1}, {})  # counts it
    for seq in range(2, 1_501):
        for both in (at_once, one_by_one):
            both.add(failed(seq))
    assert at_once.summary({A: 1_500}, {}) == one_by_one.summary({A: 1_500}, {})
