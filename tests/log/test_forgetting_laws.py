"""The laws of forgetting: what was pruned, saved and loaded, or folded changes nothing of what has an effect."""

from collections.abc import Iterable, Sequence

from hypothesis import example, given
from msgspec.structs import replace

from cheops.log.causality import Vector, joined
from cheops.log.history import History
from cheops.log.operation import Kind, MatrixRef, Operation, Origin, Seal, Stamp, Verdict
from tests.log.histories import (
    Past,
    Stage,
    delivered,
    history,
    ids,
    past_of,
    pasts_with_changes,
    stages,
    wishes,
)
from tests.log.once_broken import (
    BRINGER_FORGOTTEN,
    MATRIX_NOT_STABLE,
)


def forget(past: tuple[Stage, ...]) -> None:
    """Play the stages with and without forgetting; the two must never differ in what has an effect."""
    pruned, whole = history(()), history(())
    for stage in past:
        for op in stage.ops:
            pruned.add(op)
            whole.add(op)
            assert_same_effect(pruned, whole)
        gone = pruned.prune(stage.stable)
        assert set(gone).isdisjoint(pruned.ops)
        assert_same_effect(pruned, whole)


def assert_same_effect(pruned: History, whole: History) -> None:
    assert ids(pruned.effective) == ids(whole.effective)
    assert pruned.fates.keys() == {id_ for id_ in whole.fates if id_ in pruned.ops}
    assert (pruned.known, pruned.site_list) == (whole.known, whole.site_list)


@given(stages())
def test_what_was_forgotten_changes_nothing(past: tuple[Stage, ...]) -> None:
    forget(past)


@given(stages(changes=True))
@example(BRINGER_FORGOTTEN)
@example(MATRIX_NOT_STABLE)
def test_what_was_forgotten_changes_nothing_under_another_matrix(past: tuple[Stage, ...]) -> None:
    forget(past)


@given(stages(changes=True))
@example(BRINGER_FORGOTTEN)
def test_a_history_loaded_from_what_was_kept_is_the_same(past: tuple[Stage, ...]) -> None:
    growing, whole = history(()), history(())
    for stage in past:
        saved = ledger(growing)
        for op in stage.ops:
            growing.add(op)
            whole.add(op)
        for again in (loaded(saved, growing.ops.values()), loaded(ledger(growing), growing.ops.values())):
            assert_same_effect(again, whole)
            assert (again.adopted, again.matrix) == (whole.adopted, whole.matrix)
        growing = again
        growing.prune(stage.stable)


_SEALING, _OUTSIDE = Origin("z", "1"), Origin("s", "1")


def seal(after: Sequence[Operation], orphans: int, number: int, stable: Vector) -> Operation:
    """Somebody who knows all these, and so many orphans, says that all up to `stable` is settled for
    good."""
    known: Vector = {_OUTSIDE: orphans} if orphans else {}
    for op in after:
        known = joined(known, past_of(op))
    last = max(after, key=lambda op: op.stamp)
    stamp = Stamp(last.stamp.time_ms, last.stamp.counter + 1, _SEALING)
    root = next((op.seal.root for op in after if op.seal), stamp)
    ref = max((op.matrix for op in after), key=lambda ref: ref.introduced)
    made = replace(last, kind=Kind.SEAL, type="seal", origin=_SEALING, seq=number, deps=known, stamp=stamp)
    return replace(
        made, matrix=ref, sites=None, verdict=Verdict.OK, seal=Seal(stable, root, (_SEALING, Origin("t", "1")))
    )


def orphan(like: Operation, number: int, *, is_void: bool) -> Operation:
    """The same, but made at a site that nobody knows of, and that knows of nobody."""
    stamp = Stamp(like.stamp.time_ms, like.stamp.counter, _OUTSIDE)
    deps = {_OUTSIDE: number - 1} if number > 1 else {}
    made = replace(like, origin=_OUTSIDE, seq=number, deps=deps, stamp=stamp)
    return replace(
        made,
        matrix=MatrixRef(like.matrix.hash, stamp),
        sites=like.sites or ("s",),
        verdict=Verdict.VOID if is_void else like.verdict,
    )


def with_orphans(past: tuple[Stage, ...], wish: bytes) -> tuple[list[list[Operation]], list[Vector]]:
    """Per stage the operations in an order of delivery, with a seal at its end, and orphans in between. Seals
    and orphans of earlier stages are known and settled everywhere, as anything else is."""
    found, stables, before, outside = list[list[Operation]](), list[Vector](), list[Operation](), 0
    for number, stage in enumerate(past, start=1):
        earlier = {_SEALING: number - 1, _OUTSIDE: outside}
        stable = joined(stage.stable, {origin: many for origin, many in earlier.items() if many})
        inside = [*stage.ops, seal([*before, *stage.ops], outside, number, stable)]
        before += inside
        order = []
        for op, byte in zip(inside, wish[number:], strict=False):
            order.append(op)
            if byte % 4 == 0:
                outside += 1
                like = op if op.kind is not Kind.SEAL else stage.ops[0]
                order.append(orphan(like, outside, is_void=byte % 8 == 0))
        found.append(order)
        stables.append(stable)
    return found, stables


@given(stages(changes=True), wishes)
def test_an_orphan_means_the_same_whether_the_past_is_forgotten_or_not(past: tuple[Stage, ...], wish: bytes) -> None:
    stages, stables = with_orphans(tuple(stage for stage in past if stage.ops), wish)
    pruned, whole = history(()), history(())
    for order, stable in zip(stages, stables, strict=True):
        for op in order:
            pruned.add(op)
            whole.add(op)
        pruned = loaded(ledger(pruned), pruned.ops.values())
        assert_same_effect(pruned, whole)
        assert (pruned.adopted, pruned.site_list) == (whole.adopted, whole.site_list)
        pruned.prune(stable)
        assert_same_effect(pruned, whole)


@given(stages(), wishes, wishes)
def test_orphans_may_come_in_any_order(past: tuple[Stage, ...], wish: bytes, order: bytes) -> None:
    stages, _ = with_orphans(tuple(stage for stage in past if stage.ops), wish)
    ops = [op for stage in stages for op in stage]
    one, other = history(ops), history(delivered(ops[:18], order) if len(ops) <= 18 else ops[:1])
    if len(ops) <= 18:
        assert ids(one.effective) == ids(other.effective)
        assert (one.fates.keys(), one.site_list, one.adopted) == (
            other.fates.keys(),
            other.site_list,
            other.adopted,
        )


@given(stages(changes=True))
@example(BRINGER_FORGOTTEN)
def test_what_was_forgotten_and_comes_back_has_no_effect(past: tuple[Stage, ...]) -> None:
    """A site that has not forgotten it sends it again, or gets the snapshot of one that has."""
    pruned, whole = history(()), history(())
    for stage in past:
        for op in stage.ops:
            pruned.add(op)
            whole.add(op)
        pruned.prune(stage.stable)
    gone = [op for op in whole.ops.values() if op.id not in pruned.ops]
    beside = loaded(ledger(pruned), [*pruned.ops.values(), *gone])
    assert ids(beside.effective) == ids(whole.effective)
    for op in gone:
        pruned.add(op)
    assert ids(pruned.effective) == ids(whole.effective)


@given(pasts_with_changes())
def test_a_checkpoint_takes_the_effect_and_leaves_the_matrix(past: Past) -> None:
    folded, whole = history(past.ops), history(past.ops)
    folded.fold()
    for history_ in (folded, loaded(ledger(folded), folded.ops.values())):
        assert history_.effective == []
        assert (history_.adopted, history_.matrix) == (whole.adopted, whole.matrix)
        assert (history_.known, history_.site_list) == (whole.known, whole.site_list)


def ledger(kept: History) -> History:
    """What a site saves beside the operations when it forgets: an otherwise empty history."""
    saved = history(())
    saved.restore(kept.floor, kept.folded, kept.epochs, kept.rejected_matrices, kept.adopted)
    return saved


def loaded(saved: History, ops: Iterable[Operation]) -> History:
    """As a site does after a restart: what was forgotten is known, the rest is merged anew."""
    for op in sorted(ops, key=lambda op: op.stamp):
        saved.add(op)
    return saved
