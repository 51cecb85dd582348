"""The simulator finds every planted bug: it can fail, and it would have told us."""

from functools import cache

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES
from tests.sim.planted import BUGS, Histories, Planted

_ENOUGH = 40  # histories. Each bug shows in at least one of five, so nothing here depends on a seed.
PATIENCE_MS = 10_000
# A plant that no longer fits the code that it replaces: whatever goes wrong then, the bug is not what was found.
_MISFITS = ("TypeError", "AttributeError", "NameError")


def problems_of(seed: int, histories: Histories) -> tuple[str, ...]:
    return play(seed, histories.sites, histories.profile, patience_ms=PATIENCE_MS).problems


def is_shown(seed: int, planted: Planted, histories: Histories) -> bool:
    """Whether a history goes wrong with the bug, and well without it."""
    with planted.plant():
        problems = problems_of(seed, histories)
    misfits = [problem for problem in problems if any(name in problem for name in _MISFITS)]
    assert not misfits, f"the plant does not fit any more: {misfits[0]}"
    return bool(problems) and _goes_well(seed, histories)


@cache  # many bugs are shown by the same histories
def _goes_well(seed: int, histories: Histories) -> bool:
    """Whether a history goes well. No bug may be planted meanwhile: the answer is for all of them."""
    return not problems_of(seed, histories)


@pytest.mark.parametrize("bug", BUGS, ids=lambda name: name.replace(" ", "-"))
def test_every_planted_bug_is_found(bug: str) -> None:
    planted = BUGS[bug]
    if isinstance(planted.shown_by, Histories):
        assert any(is_shown(seed, planted, planted.shown_by) for seed in range(_ENOUGH)), f"{bug}: not found"
        return
    planted.shown_by()
    # What waits for something that never comes is told to be endless by the world.
    with planted.plant(), pytest.raises((AssertionError, RuntimeError)):
        planted.shown_by()


@pytest.mark.parametrize(("profile", "sites"), [("hostile", 3), ("moving", 4), ("crashes", 3), ("rules", 3)])
def test_without_a_bug_nothing_is_found(profile: str, sites: int) -> None:
    assert not any(problems_of(seed, Histories(PROFILES[profile], sites)) for seed in range(2))
