"""Clocks that extend causality, and vectors that say who knows what."""

from hypothesis import given
from hypothesis import strategies as st

from cheops.log.causality import Clock, common, contains, covers, joined
from cheops.log.operation import OpId, Origin

A, B = Origin("a", "1"), Origin("b", "1")
times = st.integers(0, 10**13)
vectors = st.dictionaries(st.sampled_from([A, B, Origin("a", "2")]), st.integers(1, 9))


@given(st.lists(times), times)
def test_a_clock_never_goes_back_whatever_the_time_does(earlier: list[int], now_ms: int) -> None:
    clock = Clock()
    for time_ms in [*earlier, now_ms]:
        before, clock = clock, clock.tick(time_ms)
        assert clock.stamp(A) > before.stamp(A)


@given(times, times)
def test_a_stamp_is_greater_than_every_stamp_seen(theirs_ms: int, ours_ms: int) -> None:
    seen = Clock().tick(theirs_ms).stamp(B)
    assert Clock().seen(seen).tick(ours_ms).stamp(A) > seen


def test_stamps_of_different_sites_never_tie() -> None:
    assert Clock(5, 0).stamp(A) != Clock(5, 0).stamp(B)
    assert min(Clock(5, 0).stamp(B), Clock(5, 0).stamp(A)).origin == A


@given(vectors, vectors)
def test_what_is_joined_covers_both_and_no_more(one: dict[Origin, int], other: dict[Origin, int]) -> None:
    both = joined(one, other)
    assert covers(both, one)
    assert covers(both, other)
    assert both == joined(other, one)
    assert all(number in (one.get(origin), other.get(origin)) for origin, number in both.items())


@given(st.lists(vectors, min_size=1, max_size=4))
def test_what_is_common_is_covered_by_all(several: list[dict[Origin, int]]) -> None:
    shared = common(several)
    assert all(covers(vector, shared) for vector in several)
    for origin in shared:
        assert not all(vector.get(origin, 0) > shared[origin] for vector in several)


def test_a_vector_contains_what_is_numbered_up_to_it() -> None:
    assert contains({A: 2}, OpId(A, 2))
    assert not contains({A: 2}, OpId(A, 3))
    assert not contains({}, OpId(B, 1))
