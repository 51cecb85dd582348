"""The laws of the merge. Each holds for every history that could happen; each test is named after its law."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from hypothesis import example, given
from hypothesis import strategies as st

from cheops.log.history import History
from cheops.log.matrix import Entry, Result
from cheops.log.operation import Applied, Kind, MatrixRef, Operation, OpId, Origin, Seal, Stamp, Verdict
from cheops.log.plan import Plan, after_running, plan, same_state
from cheops.log.rules import merged
from cheops.log.vector import Vector, contains, joined
from tests.log.histories import (
    COUNTER,
    FILE,
    LEVELS,
    LEVELS_UPSIDE_DOWN,
    STRICT,
    TOLERANT,
    TOLERANT_LEVELS,
    TOLERANT_TWICE,
    Past,
    Rules,
    Stage,
    State,
    delivered,
    history,
    ids,
    in_causal_order,
    pairs,
    past_cone,
    past_of,
    pasts,
    pasts_with_changes,
    run,
    stages,
    subset,
    told,
    told_in_stages,
    wishes,
)

# -- histories that once broke a law -------------------------------------------------------------------------

AS_MADE, BACKWARDS = bytes(18), bytes(range(18, 0, -1))
SECOND_LAST = bytes([0, 1, *[0] * 16])

# Each site brings the same matrix, one that lets concurrent operations stay.
TWO_BEGIN = told([TOLERANT], "a1 inc at 0", "c2 set at 9")
# What had stepped behind the first set must step forward when a second set takes that away.
STEPS_FORWARD = told(
    [TOLERANT],
    "a1 inc at 1",
    "a1 note at 2",
    "b1 note at 3",
    "b1 set at 4",
    "c1 set at 5 knowing a1:2 b1:2",
)
# put-b comes before add-b, on which put-a depends, which comes before add-a.
TWO_STEPS = told(
    [TOLERANT_TWICE],
    "a1 put-a at 7",
    "b1 add-b at 7 knowing a1:1",
    "c2 add-a at 7 knowing a1:1",
    "b1 put-a at 7",
    "c1 put-b at 9",
)
# The file's matrix gives way to the counter's twice: once introduced without, once with that past.
SAME_MATRIX_TWICE = told(
    [FILE, COUNTER],
    "a1 add at 1 under file",
    "b1 inc at 2 under counter",
    "a1 set at 3",
    "a1 set at 4 under counter",
)
# The only operation that still carried the matrix in force is superseded, and forgotten.
BRINGER_FORGOTTEN = told_in_stages(
    [COUNTER, FILE, TOLERANT],
    "b1 set at 2",
    "stable b1:1",
    "c1 add at 3 knowing b1:1 under file",
    "a1 set at 3 knowing c1:1 under counter",
    "c1 set at 4",
    "c1 set at 5",
    "stable c1:3 a1:1",
    "c1 set at 7 knowing a1:1 under tolerant",
    "stable c1:3 a1:1",
)
# Something is superseded by a matrix that not everybody knows, and that is never in force for the next one.
MATRIX_NOT_STABLE = told_in_stages(
    [TOLERANT_LEVELS, LEVELS_UPSIDE_DOWN, LEVELS],
    "a1 force at 1",
    "b1 y at 6 knowing a1:1",
    "c2 x at 5 knowing a1:1",
    "c1 y at 5 knowing c2:1 under levels upside down",
    "stable c2:1 b1:1",
    "a1 x at 8 knowing c2:1 b1:1 under levels",
    "stable c2:1 b1:1",
)

# -- the merge of sets -------------------------------------------------------------------------------------

Known = dict[OpId, Operation]
View = tuple[list[OpId], set[OpId]]


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


# -- the merge, one operation at a time ----------------------------------------------------------------------


@given(pasts(), wishes)
@example(TWO_BEGIN, BACKWARDS)
@example(STEPS_FORWARD, BACKWARDS)
def test_any_causal_delivery_order_gives_the_same_view(past: Past, wish: bytes) -> None:
    one, other = history(past.ops), history(delivered(past.ops, wish))
    assert ids(other.effective) == ids(one.effective)
    assert other.fates.keys() == one.fates.keys()
    assert all(other.reason(id_) == one.reason(id_) for id_ in one.fates)
    assert other.known == one.known


@given(pasts(STRICT), wishes)
def test_nothing_superseded_ever_comes_back(past: Past, wish: bytes) -> None:
    growing, gone = history(()), set[OpId]()
    for op in delivered(past.ops, wish):
        growing.add(op)
        assert gone <= growing.fates.keys()
        gone = set(growing.fates)
        assert gone.isdisjoint(ids(growing.effective))


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


@given(pasts())
def test_the_effective_order_extends_causality(past: Past) -> None:
    effective = history(past.ops).effective
    assert not any(b.is_before(a) for place, a in enumerate(effective) for b in effective[place:])


@given(pasts())
def test_within_a_class_at_most_one_operation_is_effective(past: Past) -> None:
    replaces = relation(past.rules.entries)
    for a, b in pairs(history(past.ops).effective):
        assert not {(name(a), name(b)), (name(b), name(a))} <= replaces


# -- the rules once more, word by word -----------------------------------------------------------------------


def naive(ops: Sequence[Operation], entries: Sequence[Entry]) -> View:
    """Rules 1 to 8 in the words of the design, with no thought for speed, and nothing from the code but what an
    operation is. Effective are those that no effective one supersedes: well-founded, since whatever supersedes
    stands in a higher class, or in the same one and has a greater stamp."""
    replaces, tolerated = relation(entries), tolerances(entries)

    def supersedes(y: Operation, x: Operation) -> bool:
        if x == y or (name(y), name(x)) not in replaces or before(y, x):
            return False
        if before(x, y):
            return True  # rule 3
        if (name(x), name(y)) in replaces:
            return y.stamp > x.stamp  # rule 5
        return (name(y), name(x)) not in tolerated  # rule 4

    @cache
    def has_effect(x: Operation) -> bool:
        if x.verdict is not Verdict.OK:
            return False  # rule 1
        return not any(supersedes(y, x) and has_effect(y) for y in candidates)  # rule 2

    candidates = [op for op in ops if op.kind is not Kind.SITES]
    effective = {op for op in candidates if has_effect(op)}
    failed = {op.id for op in ops if op.verdict is not Verdict.OK}
    superseded = {op.id for op in candidates if op not in effective}
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


# -- running -------------------------------------------------------------------------------------------------


class Site:
    """What one site has applied, and the state of an application that behaves as its matrix says."""

    def __init__(self, rules: Rules, *, has_start: bool) -> None:
        self.rules = rules
        self.has_start = has_start
        self.history = history(())
        self.applied: list[Applied] = []
        self.state: State = {}

    def plan(self) -> Plan:
        return plan(self.applied, self.history.effective, self.history.matrix, has_start=self.has_start)

    def carry_out(self, wanted: Plan, steps: int | None = None) -> None:
        """All of it, or the first steps: what is no replay may be interrupted."""
        ops = wanted.run if wanted.replay else wanted.run[:steps]
        if wanted.from_start:
            self.applied, self.state = [], {}
        self.applied = after_running(self.applied, ops, self.history.matrix)
        self.state = run(self.state, ops, self.rules)


def living(past: Past, wish: bytes, pauses: bytes, *, has_start: bool) -> Site:
    """A site that hears of operations in any order, and runs what it must at any moment, or does not."""
    site = Site(past.rules, has_start=has_start)
    for op, pause in zip(delivered(past.ops, wish), pauses, strict=False):
        site.history.add(op)
        if steps := pause % 4:
            site.carry_out(site.plan(), steps)
    return site


@given(pasts(), wishes, wishes, st.booleans())
@example(TWO_STEPS, AS_MADE, AS_MADE, True)
def test_the_plan_leads_to_the_state(past: Past, wish: bytes, pauses: bytes, has_start: bool) -> None:
    site = living(past, wish, pauses, has_start=has_start)
    wanted = site.plan()
    site.carry_out(wanted)
    if wanted.order_not_enforced:
        assert not site.has_start
    elif not asks_for_a_circle(site.history.effective, past.rules.entries):
        assert same_state(site.applied, site.history.effective, site.history.matrix)
        assert not site.plan()


@given(pasts(), wishes, wishes, st.booleans())
def test_after_the_plan_the_application_is_as_if_replayed_from_scratch(
    past: Past, wish: bytes, pauses: bytes, has_start: bool
) -> None:
    site = living(past, wish, pauses, has_start=has_start)
    wanted = site.plan()
    site.carry_out(wanted)
    if not wanted.order_not_enforced:
        assert site.state == run({}, site.history.effective, past.rules)


# -- forgetting ----------------------------------------------------------------------------------------------


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
    assert (pruned.known, pruned.roster) == (whole.known, whole.roster)


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


def seal(after: Sequence[Operation], number: int, stable: Vector) -> Operation:
    """Somebody who knows all these says that everything up to `stable` is settled for good."""
    known: Vector = {}
    for op in after:
        known = joined(known, past_of(op))
    origin, last = Origin("z", "1"), max(after, key=lambda op: op.stamp)
    stamp = Stamp(last.stamp.time_ms, last.stamp.counter + 1, origin)
    root = next((op.seal.root for op in after if op.seal), stamp)
    ref = max((op.matrix for op in after), key=lambda ref: ref.introduced)
    made = replace(last, kind=Kind.SEAL, type="seal", origin=origin, seq=number, deps=known, stamp=stamp)
    return replace(made, matrix=ref, sites=None, verdict=Verdict.OK, seal=Seal(stable, root))


def stranger(like: Operation, number: int) -> Operation:
    """The same, but made at a site that nobody knows of, and that knows of nobody."""
    origin = Origin("s", "1")
    stamp = Stamp(like.stamp.time_ms, like.stamp.counter, origin)
    deps = {origin: number - 1} if number > 1 else {}
    return replace(
        like, origin=origin, seq=number, deps=deps, stamp=stamp, matrix=MatrixRef(like.matrix.hash, stamp)
    )


def with_strangers(past: tuple[Stage, ...], wish: bytes) -> tuple[list[list[Operation]], list[Vector]]:
    """Per stage the operations in an order of delivery, with a seal at its end, and strangers in between."""
    found, stables, before, outside = list[list[Operation]](), list[Vector](), list[Operation](), 0
    for number, stage in enumerate(past, start=1):
        inside = [*stage.ops, seal([*before, *stage.ops], number, stage.stable)]
        before += inside
        order = []
        for op, byte in zip(inside, wish[number:], strict=False):
            order.append(op)
            if byte % 4 == 0:
                outside += 1
                order.append(stranger(op if op.kind is not Kind.SEAL else stage.ops[0], outside))
        found.append(order)
        stables.append(stage.stable)
    return found, stables


@given(stages(changes=True), wishes)
def test_a_stranger_means_the_same_whether_the_past_is_forgotten_or_not(
    past: tuple[Stage, ...], wish: bytes
) -> None:
    told, stables = with_strangers(tuple(stage for stage in past if stage.ops), wish)
    pruned, whole = history(()), history(())
    for order, stable in zip(told, stables, strict=True):
        for op in order:
            pruned.add(op)
            whole.add(op)
        pruned = loaded(ledger(pruned), pruned.ops.values())
        assert_same_effect(pruned, whole)
        assert (pruned.adopted, pruned.roster) == (whole.adopted, whole.roster)
        pruned.prune(stable)
        assert_same_effect(pruned, whole)


@given(stages(), wishes, wishes)
def test_strangers_may_come_in_any_order(past: tuple[Stage, ...], wish: bytes, order: bytes) -> None:
    told, _ = with_strangers(tuple(stage for stage in past if stage.ops), wish)
    ops = [op for stage in told for op in stage]
    one, other = history(ops), history(delivered(ops[:18], order) if len(ops) <= 18 else ops[:1])
    if len(ops) <= 18:
        assert ids(one.effective) == ids(other.effective)
        assert (one.fates.keys(), one.roster, one.adopted) == (
            other.fates.keys(),
            other.roster,
            other.adopted,
        )


@given(pasts_with_changes())
def test_a_checkpoint_takes_the_effect_and_leaves_the_matrix(past: Past) -> None:
    folded, whole = history(past.ops), history(past.ops)
    folded.fold()
    for history_ in (folded, loaded(ledger(folded), folded.ops.values())):
        assert history_.effective == []
        assert (history_.adopted, history_.matrix) == (whole.adopted, whole.matrix)
        assert (history_.known, history_.roster) == (whole.known, whole.roster)


def ledger(kept: History) -> History:
    """What a site saves beside the operations when it forgets: an otherwise empty history."""
    saved = history(())
    saved.floor, saved.known, saved.folded = dict(kept.floor), dict(kept.floor), dict(kept.folded)
    saved.epochs = {introduced: epoch.copy() for introduced, epoch in kept.epochs.items()}
    saved.disowned = set(kept.disowned)
    saved.take_matrix(kept.adopted)
    return saved


def loaded(saved: History, ops: Iterable[Operation]) -> History:
    """As a site does after a restart: what was forgotten is known, the rest is merged anew."""
    for op in sorted(ops, key=lambda op: op.stamp):
        saved.add(op)
    return saved


# -- other matrices --------------------------------------------------------------------------------------------


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
