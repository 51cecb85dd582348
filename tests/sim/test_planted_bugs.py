"""The simulator finds every planted bug: it can fail, and it would have told us."""

from itertools import chain

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES
from tests.sim.planted import BUGS

_ENOUGH = 160  # histories in which each bug must show


def found_after(limit: int) -> int | None:
    """How many histories it took until something was wrong, or None."""
    plans = chain.from_iterable(
        (
            (seed, 3, PROFILES["hostile"]),
            (seed, 4, PROFILES["moving"]),
            (seed, 3, PROFILES["crashes"]),
            (seed, 3, PROFILES["rules"]),
        )
        for seed in range(limit // 4)
    )
    for number, (seed, sites, profile) in enumerate(plans, 1):
        if play(seed, sites, profile, patience_ms=20_000).problems:
            return number
    return None


def found_only_with(bug: str) -> bool:
    """Whether a history goes wrong with the bug, and well without it: some still go wrong by themselves."""
    planted, profile = BUGS[bug], PROFILES[BUGS[bug].profile]
    for seed in dict.fromkeys((planted.seed, *range(_ENOUGH // 4))):
        with planted.plant():
            problems = play(seed, planted.sites, profile, patience_ms=20_000).problems
        if problems and not play(seed, planted.sites, profile, patience_ms=20_000).problems:
            return True
    return False


@pytest.mark.parametrize("bug", BUGS, ids=[name.replace(" ", "-") for name in BUGS])
def test_every_planted_bug_is_found(bug: str) -> None:
    """The history that is known to show it goes first: to search for one takes seconds."""
    planted = BUGS[bug]
    if planted.profile in ("byzantine", "http"):
        assert found_only_with(bug), f"{bug}: not found"
        return
    with planted.plant():
        known = play(planted.seed, planted.sites, PROFILES[planted.profile], patience_ms=20_000)
        assert known.problems or found_after(_ENOUGH), f"{bug}: not found in {_ENOUGH} histories"


def test_without_a_bug_nothing_is_found() -> None:
    assert found_after(30) is None
