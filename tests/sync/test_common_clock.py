"""The time that most sites agree on."""

from hypothesis import given
from hypothesis import strategies as st

from cheops.peers.common_clock import CommonClock, majority_offset_ms
from cheops.peers.settings import Now

HOUR_MS = 3_600_000.0
offsets = st.lists(st.floats(-1e12, 1e12), max_size=9)


def test_two_clocks_that_differ_say_nothing() -> None:
    assert majority_offset_ms([]) is None
    assert majority_offset_ms([-HOUR_MS]) is None


def test_one_wrong_clock_changes_no_right_one() -> None:
    assert majority_offset_ms([-HOUR_MS, 3.0]) == 0
    assert majority_offset_ms([HOUR_MS, -3.0]) == 0
    assert majority_offset_ms([0.0, 2.0, -HOUR_MS]) == 0


def test_a_wrong_clock_follows_the_others() -> None:
    assert majority_offset_ms([HOUR_MS, HOUR_MS + 2]) == HOUR_MS
    assert majority_offset_ms([-HOUR_MS, -HOUR_MS - 2]) == -HOUR_MS


def test_half_of_the_clocks_are_not_most_of_them() -> None:
    assert majority_offset_ms([0.0, HOUR_MS, HOUR_MS]) == 0


@given(offsets)
def test_most_sites_are_on_that_side(found: list[float]) -> None:
    offset = majority_offset_ms(found)
    if offset:
        beyond = sum(abs(one) >= abs(offset) and (one > 0) == (offset > 0) for one in found)
        assert beyond > (len(found) + 1) / 2


@given(offsets)
def test_sides_are_alike(found: list[float]) -> None:
    offset = majority_offset_ms(found)
    assert majority_offset_ms([-one for one in found]) == (None if offset is None else -offset)


def test_small_differences_are_not_corrected() -> None:
    clock = CommonClock(Now(0, HOUR_MS), 30_000)
    clock.compare(Now(1_000, HOUR_MS + 1_000), [20_000, 20_000])
    assert (clock.offset_ms, clock.correction_ms) == (20_000, 0)
    assert clock.time_ms(Now(2_000, HOUR_MS + 2_000)) == HOUR_MS + 2_000


def test_the_time_does_not_jump_with_the_wall_clock() -> None:
    clock = CommonClock(Now(0, HOUR_MS), 30_000)
    clock.compare(Now(1_000, HOUR_MS + 1_000), [0.0, 0.0])
    set_back = Now(2_000, 2_000)
    assert clock.time_ms(set_back) == HOUR_MS + 2_000
    assert clock.jumped_ms(set_back) == -HOUR_MS
    clock.compare(set_back, [HOUR_MS, HOUR_MS])
    assert clock.correction_ms == HOUR_MS
    assert clock.time_ms(Now(3_000, 3_000)) == HOUR_MS + 3_000
    assert not clock.jumped_ms(Now(3_000, 3_000))


def test_without_other_sites_the_own_clock_counts() -> None:
    clock = CommonClock(Now(0, HOUR_MS), 30_000)
    clock.compare(Now(1_000, 5_000), [])
    assert clock.time_ms(Now(2_000, 6_000)) == 6_000
