"""The laws of the merge. Each holds for every history that could happen; each test is named after its law."""

from collections.abc import Iterable

from hypothesis import example, given

from cheops.log.causality import contains
from cheops.log.operation import Operation, OpId
from cheops.log.rules import merged
from tests.log.histories import (
    Past,
    delivered,
    history,
    ids,
    in_causal_order,
    pairs,
    past_cone,
    pasts,
    pasts_with_changes,
    subset,
    wishes,
)
from tests.log.once_broken import (
    AS_MADE,
    BACKWARDS,
    COMES_BACK,
    COMES_BACK_FROM_BELOW,
    SAME_MATRIX_TWICE,
    SECOND_LAST,
    STEPS_FORWARD,
    TWO_BEGIN,
    TWO_STEPS,
)
from tests.log.word_by_word import View, naive, name, relation

Known = dict[OpId, Operation]


def known(ops: Iterable[Operation]) -> Known:
    return {op.id: op for op in ops}


def view(ops: Known, past: Past) -> View:
    found = merged(ops.values(), past.matrix)
    return ids(found.effective), set(found.fates)


@given(pasts(), wishes, wishes)
def test_merge_is_commutative(past: Past, wish: bytes, other: bytes) -> None:
    a, b = known(subset(past.ops, wish)), known(subset(past.ops, other))
    assert view(a | b, past) == view(b | a, past)


@given(pasts(), wishes, wishes, wishes)
def test_merge_is_associative(past: Past, wish: bytes, other: bytes, third: bytes) -> None:
    a, b, c = (known(subset(past.ops, each)) for each in (wish, other, third))
    assert view((c | b) | a, past) == view(c | (b | a), past) == view(a | (b | c), past)


@given(pasts(), wishes)
def test_merge_is_idempotent(past: Past, wish: bytes) -> None:
    a = known(past.ops)
    again = known(delivered(past.ops, wish))
    assert view(a | again, past) == view(again, past) == view(a, past)


@given(pasts(), wishes)
@example(TWO_BEGIN, BACKWARDS)
@example(STEPS_FORWARD, BACKWARDS)
def test_any_causal_delivery_order_gives_the_same_view(past: Past, wish: bytes) -> None:
    one, other = history(past.ops), history(delivered(past.ops, wish))
    assert ids(other.effective) == ids(one.effective)
    assert other.fates.keys() == one.fates.keys()
    assert all(other.reason(id_) == one.reason(id_) for id_ in one.fates)
    assert other.known == one.known


@given(pasts(), wishes)
@example(COMES_BACK, AS_MADE)
@example(COMES_BACK_FROM_BELOW, AS_MADE)
def test_nothing_superseded_ever_comes_back(past: Past, wish: bytes) -> None:
    growing, gone = history(()), set[OpId]()
    for op in delivered(past.ops, wish):
        growing.add(op)
        assert gone <= growing.fates.keys()
        gone = set(growing.fates)
        assert gone.isdisjoint(ids(growing.effective))


@given(pasts(), wishes)
@example(COMES_BACK, bytes([0, 0, 1, *[0] * 15]))
def test_what_a_part_of_the_log_supersedes_has_no_effect_in_the_whole(past: Past, wish: bytes) -> None:
    """Any part that holds all that its operations know of, not only those that one site goes through."""
    cone = past_cone(past.ops, [op for byte, op in zip(wish, past.ops, strict=False) if byte % 3 == 0])
    part, whole = naive(cone, past.rules.entries), view(known(past.ops), past)
    assert part[1].isdisjoint(whole[0])
    assert part[1] <= whole[1]
    assert view(known(cone), past) == part


@given(pasts(), wishes)
@example(TWO_BEGIN, AS_MADE)
@example(STEPS_FORWARD, AS_MADE)
def test_history_equals_the_rules_read_word_by_word(past: Past, wish: bytes) -> None:
    growing = history(())
    for number, op in enumerate(order := delivered(past.ops, wish), start=1):
        before = list(growing.effective)
        first = growing.add(op)
        assert (ids(growing.effective), set(growing.fates)) == naive(order[:number], past.rules.entries)
        assert ids(before[:first]) == ids(growing.effective[:first])


@given(pasts(), wishes)
@example(TWO_STEPS, b"1" * 18)
def test_the_merge_of_a_set_equals_the_rules_read_word_by_word(past: Past, wish: bytes) -> None:
    ops = subset(past.ops, wish)
    assert view(known(ops), past) == naive(ops, past.rules.entries)


@given(pasts_with_changes())
def test_stamps_extend_causality_whatever_the_clocks_do(past: Past) -> None:
    assert all(a.stamp < b.stamp for a, b in pairs(past.ops) if a.is_before(b))
    assert len({op.stamp for op in past.ops}) == len(past.ops)


@given(pasts() | pasts_with_changes())
def test_the_effective_order_extends_causality(past: Past) -> None:
    effective = history(past.ops).effective
    assert not any(b.is_before(a) for place, a in enumerate(effective) for b in effective[place:])


@given(pasts())
def test_within_a_class_at_most_one_operation_is_effective(past: Past) -> None:
    replaces = relation(past.rules.entries)
    for a, b in pairs(history(past.ops).effective):
        assert not {(name(a), name(b)), (name(b), name(a))} <= replaces


@given(pasts_with_changes(), wishes)
@example(SAME_MATRIX_TWICE, SECOND_LAST)
def test_after_a_change_of_matrix_all_delivery_orders_agree(past: Past, wish: bytes) -> None:
    one, other = history(past.ops), history(delivered(past.ops, wish))
    assert other.adopted == one.adopted
    assert ids(other.effective) == ids(one.effective)
    assert other.fates.keys() == one.fates.keys()


@given(pasts_with_changes(), wishes)
@example(SAME_MATRIX_TWICE, AS_MADE)
@example(SAME_MATRIX_TWICE, BACKWARDS)
def test_a_change_of_matrix_brings_back_nothing_of_its_own_past(past: Past, wish: bytes) -> None:
    final = history(delivered(past.ops, wish))
    assert final.adopted is not None
    introducing = next(op for op in past.ops if op.stamp == final.adopted.introduced)
    cone = [op for op in past_cone(past.ops, [introducing]) if op != introducing]
    assert set(history(in_causal_order(cone)).fates) <= final.fates.keys()


@given(pasts_with_changes(), wishes)
def test_the_newest_matrix_is_in_force(past: Past, wish: bytes) -> None:
    final = history(delivered(past.ops, wish))
    assert final.adopted == max((op.matrix for op in past.ops), key=lambda ref: ref.introduced)
    assert all(contains(final.known, op.id) for op in past.ops)
    assert all(not final.matrix.replaces(a.key, b.key) for a, b in pairs(final.effective) if b.is_before(a))
