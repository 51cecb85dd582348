"""Histories of the soak that once went wrong, each for a reason of its own."""

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES


@pytest.mark.parametrize(
    ("seed", "sites", "profile"),
    [
        # A stranger was kept without the seal that made it one, and its matrix came into force.
        (8422, 3, "hostile"),
        # Who came later did not know a forgotten list, and refused what was made under it.
        (20073, 5, "policed"),
        # That a copy was deleted was forgotten with the list that asked for it.
        (50349, 5, "policed"),
        # An older list than the one that counted was left, and judged what was made under that.
        (90693, 4, "policed"),
    ],
)
def test_what_once_failed_is_well(seed: int, sites: int, profile: str) -> None:
    assert play(seed, sites, PROFILES[profile]).problems == ()
