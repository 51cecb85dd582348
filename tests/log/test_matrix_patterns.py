"""Patterns in a matrix: `put *` with `put *`."""

import pytest

from cheops.log.matrix import Entry, Matrix, MatrixError, Result, is_wiped

PARTS = Matrix(
    (
        Entry("put", "put", Result.TAKE_ONE),
        Entry("put *", "put *", Result.TAKE_ONE),
        Entry("put *", "delete *", Result.TAKE_ONE),
        Entry("put *", "put", Result.REVERSE_ORDER),
    )
)


def test_a_type_replaces_the_same_part_and_no_other() -> None:
    assert PARTS.replaces("put tags/x", "put tags/x")
    assert PARTS.replaces("delete tags/x", "put tags/x")
    assert not PARTS.replaces("put tags/x", "put tags/y")
    assert PARTS.is_replace_type("delete tags/x")
    assert not PARTS.is_replace_type("post reboot")


def test_different_parts_commute_unless_one_contains_the_other() -> None:
    assert PARTS.commutes("put tags/x", "put tags/y")
    assert PARTS.commutes("put a", "delete b")
    assert not PARTS.commutes("put tags", "put tags/x")
    assert not PARTS.commutes("put tags/x", "put tags")
    assert PARTS.commutes("put tag", "put tags/x")  # not a path above it
    assert not PARTS.commutes("put a", "post a")
    assert PARTS.class_of_pair("put tags", "put tags/x") == 3


def test_the_whole_replaces_its_parts_if_an_entry_says_so() -> None:
    assert PARTS.replaces("put", "put tags/x")
    assert PARTS.replaces("put", "delete tags/x")  # by transitivity
    assert not PARTS.replaces("put tags/x", "put")
    wiped = PARTS.wiped_by("put")
    assert [is_wiped(wiped, key) for key in ("put tags/x", "delete y", "put")] == [True] * 3
    assert not is_wiped(wiped, "post reboot")
    assert is_wiped(PARTS.wiped_by("put tags/x"), "delete tags/x")
    assert not is_wiped(PARTS.wiped_by("put tags/x"), "put tags/y")


def test_an_entry_without_a_star_counts_more() -> None:
    matrix = Matrix((Entry("put *", "put *", Result.TAKE_ONE), Entry("put log", "put log", Result.TAKE_BOTH)))
    assert not matrix.replaces("put log", "put log")
    assert matrix.commutes("put log", "put log")
    assert matrix.replaces("put x", "put x")


def test_a_contradiction_is_refused() -> None:
    with pytest.raises(MatrixError):
        Matrix((Entry("put *", "get *", Result.TAKE_ONE), Entry("get *", "put *", Result.TAKE_BOTH)))
    with pytest.raises(MatrixError, match="replaces"):
        Matrix(
            (
                Entry("put *", "set *", Result.TAKE_ONE),
                Entry("set *", "fix *", Result.TAKE_ONE),
                Entry("put x", "fix x", Result.TAKE_BOTH),
            )
        )


def test_matrices_are_equal_if_their_patterns_are() -> None:
    one = Matrix((Entry("put *", "put *", Result.TAKE_ONE),))
    assert one == Matrix((Entry("put *", "put *", Result.TAKE_ONE),))
    assert one != Matrix((Entry("put a", "put a", Result.TAKE_ONE),))
    assert one.types == ("put *",)
