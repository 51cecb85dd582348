"""The matrix: what follows from the entries that a user wrote, and which of them contradict each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.log.matrix import DELETE_KEY, FORCE_KEY, Entry, Matrix, MatrixError, Result, is_wiped, result_named
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Origin, Stamp

ONE, BOTH, KEEP, REVERSE = Result.TAKE_ONE, Result.TAKE_BOTH, Result.KEEP_ORDER, Result.REVERSE_ORDER


def matrix(*rows: tuple[str, str, Result]) -> Matrix:
    return Matrix(Entry(*row) for row in rows)


COUNTER = matrix(("set", "inc", KEEP), ("inc", "inc", BOTH), ("set", "set", ONE))


# -- what was written, and its mirror ------------------------------------------------------------------------


@pytest.mark.parametrize(("written", "mirror"), [(ONE, ONE), (BOTH, BOTH), (KEEP, REVERSE), (REVERSE, KEEP)])
def test_a_missing_mirror_entry_is_inferred(written: Result, mirror: Result) -> None:
    made = matrix(("a", "b", written))
    assert (made.result("a", "b"), made.result("b", "a")) == (written, mirror)
    assert (made.explicit("a", "b"), made.explicit("b", "a")) == (written, None)


@pytest.mark.parametrize("result", Result)
def test_a_mirror_entry_that_is_written_changes_nothing(result: Result) -> None:
    once, twice = matrix(("a", "b", result)), matrix(("a", "b", result), ("b", "a", result.mirror))
    for pair in (("a", "b"), ("b", "a"), ("a", "a"), ("b", "b")):
        assert once.result(*pair) is twice.result(*pair)
        assert once.replaces(*pair) == twice.replaces(*pair)


def test_an_entry_may_be_repeated() -> None:
    made = matrix(("set", "inc", KEEP), ("set", "inc", KEEP))
    assert made.types == ("set", "inc")
    assert made.replaces("set", "inc")


def test_of_an_undefined_pair_nothing_is_said() -> None:
    assert COUNTER.result("set", "add") is None
    assert COUNTER.explicit("add", "add") is None
    assert Matrix().types == ()


@pytest.mark.parametrize("result", Result)
def test_a_result_is_known_by_its_name(result: Result) -> None:
    assert result_named(result.value) is result


def test_take_both_has_an_alias() -> None:
    assert result_named("take-both-any-order") is BOTH


def test_an_unknown_result_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(MatrixError) as refused:
        result_named("take-all")
    assert str(refused.value) == (
        "unknown result 'take-all'; known results: take-one, take-both, take-both-keep-order, "
        "take-both-reverse-order, take-both-any-order"
    )
    assert refused.value.entry is None


# -- who replaces whom -----------------------------------------------------------------------------------------


def test_take_one_replaces_both_ways() -> None:
    made = matrix(("a", "b", ONE))
    assert made.replaces("a", "b")
    assert made.replaces("b", "a")


@pytest.mark.parametrize("row", [("set", "inc", KEEP), ("inc", "set", REVERSE)])
def test_keep_order_and_reverse_order_replace_one_way(row: tuple[str, str, Result]) -> None:
    made = matrix(row)
    assert made.replaces("set", "inc")
    assert not made.replaces("inc", "set")


def test_what_replaces_anything_replaces_itself() -> None:
    made = matrix(("set", "inc", KEEP))
    assert made.is_replace_type("set")
    assert made.replaces("set", "set")
    assert not made.is_replace_type("inc")
    assert not made.replaces("inc", "inc")


def test_replacing_is_closed_under_transitivity() -> None:
    made = matrix(("wipe", "set", KEEP), ("inc", "dec", BOTH), ("set", "inc", KEEP))
    assert made.replaces("wipe", "inc")
    assert not made.replaces("inc", "wipe")
    assert not made.replaces("wipe", "dec")
    assert made.result("wipe", "inc") is None  # it follows, but nobody wrote it
    assert made.wiped_by("wipe") == ("inc", "set", "wipe")


def test_a_long_chain_is_closed_in_whatever_order_it_is_written() -> None:
    chain = [(f"t{number}", f"t{number + 1}", KEEP) for number in range(20)]
    everything = tuple(sorted(f"t{number}" for number in range(21)))
    for rows in (chain, chain[::-1], chain[::2] + chain[1::2]):
        assert matrix(*rows).wiped_by("t0") == everything


def test_a_circle_makes_one_class() -> None:
    made = matrix(("a", "b", ONE), ("b", "c", ONE), ("c", "x", KEEP))
    for one in "abc":
        assert made.wiped_by(one) == ("a", "b", "c", "x")


# -- contradictions --------------------------------------------------------------------------------------------

CONTRADICTIONS = [
    (
        [("a", "b", BOTH), ("a", "b", ONE)],
        "(a, b) take-one contradicts (a, b) take-both",
    ),
    (
        [("set", "inc", KEEP), ("inc", "set", KEEP)],
        "(inc, set) take-both-keep-order contradicts (inc, set) take-both-reverse-order",
    ),
    (
        [("a", "a", KEEP)],
        "(a, a) take-both-keep-order: a type has no order with itself; leave the pair out, and it is ordered by time",
    ),
    (
        [("a", "a", REVERSE)],
        "(a, a) take-both-reverse-order: a type has no order with itself; leave the pair out, and it is ordered by time",
    ),
    (
        [("set", "inc", KEEP), ("set", "set", BOTH)],
        "(set, set) take-both contradicts the other entries, by which 'set' replaces 'set'",
    ),
    (
        [("z", "y", KEEP), ("y", "x", KEEP), ("z", "x", BOTH)],
        "(z, x) take-both contradicts the other entries, by which 'z' replaces 'x'",
    ),
    (
        [("z", "y", KEEP), ("y", "x", KEEP), ("x", "z", BOTH)],
        "(x, z) take-both contradicts the other entries, by which 'z' replaces 'x'",
    ),
    (
        [("x", "z", KEEP), ("z", "y", KEEP), ("y", "x", KEEP)],
        "(x, z) take-both-keep-order contradicts the other entries, by which 'z' replaces 'x'",
    ),
    (
        [("z", "x", REVERSE), ("z", "y", KEEP), ("y", "x", KEEP)],
        "(z, x) take-both-reverse-order contradicts the other entries, by which 'z' replaces 'x'",
    ),
    (
        [("a", "b", ONE), ("b", "c", ONE), ("a", "c", KEEP)],
        "(a, c) take-both-keep-order contradicts the other entries, by which 'c' replaces 'a'",
    ),
]


@pytest.mark.parametrize(("rows", "complaint"), CONTRADICTIONS, ids=[text for _, text in CONTRADICTIONS])
def test_a_contradiction_is_refused_and_names_its_entry(rows: list[tuple[str, str, Result]], complaint: str) -> None:
    with pytest.raises(MatrixError) as refused:
        matrix(*rows)
    assert str(refused.value) == complaint
    assert refused.value.entry in [Entry(*row) for row in rows]
    assert complaint.startswith(str(refused.value.entry))


@pytest.mark.parametrize("result", [ONE, BOTH])
def test_a_type_may_be_paired_with_itself(result: Result) -> None:
    made = matrix(("a", "a", result))
    assert made.replaces("a", "a") == (result is ONE)
    assert made.commutes("a", "a") == (result is BOTH)


# -- concurrent: take-both ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entry",
    [Entry("set", "inc", KEEP, concurrent_both=True), Entry("inc", "set", REVERSE, concurrent_both=True)],
)
def test_both_may_stay_when_concurrent(entry: Entry) -> None:
    made = Matrix([entry])
    assert made.has_overrides
    assert made.both_stay_when_concurrent("set", "inc")
    assert not made.both_stay_when_concurrent("inc", "set")
    assert made.replaces("set", "inc")
    assert not COUNTER.has_overrides


@pytest.mark.parametrize("result", [ONE, BOTH])
def test_concurrent_needs_one_that_replaces_the_other(result: Result) -> None:
    entry = Entry("a", "b", result, concurrent_both=True)
    with pytest.raises(MatrixError, match="goes with keep-order or reverse-order only") as refused:
        Matrix([entry])
    assert refused.value.entry == entry


# -- what commutes, and the classes of the papers -------------------------------------------------------------


def test_types_commute_only_when_somebody_said_so() -> None:
    made = matrix(("a", "b", BOTH), ("b", "c", BOTH))
    assert made.commutes("a", "b")
    assert made.commutes("b", "a")
    assert not made.commutes("a", "c")  # what commutes is not closed under transitivity
    assert not made.commutes("a", "a")
    assert not made.commutes("a", "unknown")
    assert not COUNTER.commutes("set", "inc")
    assert not Matrix().commutes("a", "a")


@pytest.mark.parametrize(
    ("one", "other", "number"),
    [("inc", "inc", 1), ("set", "inc", 2), ("set", "set", 2), ("inc", "add", 3), ("add", "add", 3)],
)
def test_each_pair_has_a_class(one: str, other: str, number: int) -> None:
    assert COUNTER.class_of_pair(one, other) == COUNTER.class_of_pair(other, one) == number


# -- reserved keys ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reserved", [DELETE_KEY, FORCE_KEY])
@pytest.mark.parametrize("name", ["set", "inc", "unknown", DELETE_KEY, FORCE_KEY])
def test_delete_and_force_replace_everything(reserved: str, name: str) -> None:
    assert COUNTER.is_replace_type(reserved)
    assert COUNTER.replaces(reserved, name)
    assert COUNTER.replaces(name, reserved) == (name in (DELETE_KEY, FORCE_KEY))
    assert COUNTER.class_of_pair(reserved, name) == 2
    assert is_wiped(COUNTER.wiped_by(reserved), name)


def test_a_run_wipes_what_its_type_replaces() -> None:
    wiped = COUNTER.wiped_by("set")
    assert wiped == ("inc", "set")
    assert is_wiped(wiped, "inc")
    assert not is_wiped(wiped, "add")
    assert COUNTER.wiped_by("inc") == ()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Kind.NORMAL, "set"), (Kind.DELETE, DELETE_KEY), (Kind.FORCE, FORCE_KEY)],
)
def test_an_operation_stands_under_its_type_or_a_reserved_key(kind: Kind, expected: str) -> None:
    origin = Origin("site1", "1")
    stamp = Stamp(0, 0, origin)
    ref = MatrixRef(COUNTER.hash, stamp)
    op = Operation("r", "counter", "set", kind, Command("set 1"), origin, 1, {}, stamp, ref)
    assert op.key == expected


# -- the hash --------------------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcd")
ENTRIES = st.lists(st.builds(Entry, NAMES, NAMES, st.sampled_from(Result)), max_size=6)


def test_the_hash_tells_rules_apart() -> None:
    matrices = [
        Matrix(),
        COUNTER,
        matrix(("a", "b", KEEP)),
        matrix(("b", "a", KEEP)),
        matrix(("a", "b", ONE)),
        Matrix([Entry("a", "b", KEEP, concurrent_both=True)]),
    ]
    assert len({made.hash for made in matrices}) == len(matrices)


@given(st.data())
def test_law_the_hash_does_not_depend_on_the_order_of_the_entries(data: st.DataObject) -> None:
    entries = [Entry("set", "inc", KEEP), Entry("inc", "inc", BOTH), Entry("set", "set", ONE)]
    assert Matrix(data.draw(st.permutations(entries))).hash == Matrix(entries).hash


# -- laws of every matrix that is accepted ------------------------------------------------------------------------


def accepted(entries: list[Entry]) -> Matrix:
    """The matrix of those entries that do not contradict the ones before them."""
    kept: list[Entry] = []
    for entry in entries:
        try:
            Matrix([*kept, entry])
        except MatrixError:
            continue
        kept.append(entry)
    return Matrix(kept)


@given(ENTRIES)
def test_law_replacing_is_transitive(entries: list[Entry]) -> None:
    made = accepted(entries)
    for x, y, z in ((x, y, z) for x in "abcd" for y in "abcd" for z in "abcd"):
        assert made.replaces(z, x) or not (made.replaces(z, y) and made.replaces(y, x))


@given(ENTRIES)
def test_law_what_was_written_is_what_holds(entries: list[Entry]) -> None:
    made = accepted(entries)
    for entry in made.entries:
        after_replaces = made.replaces(entry.after, entry.before)
        before_replaces = made.replaces(entry.before, entry.after)
        assert after_replaces == (entry.result in (ONE, REVERSE))
        assert before_replaces == (entry.result in (ONE, KEEP))
        assert made.commutes(entry.before, entry.after) == (entry.result is BOTH)


@given(ENTRIES)
def test_law_what_commutes_does_not_replace(entries: list[Entry]) -> None:
    made = accepted(entries)
    for one, other in ((one, other) for one in "abcd" for other in "abcd"):
        assert not (made.commutes(one, other) and made.replaces(one, other))
