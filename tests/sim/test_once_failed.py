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
        # Two contents of the operation that made a resource: what fitted the one was refused by the other.
        (96, 5, "byzantine"),
        # An operation was stamped earlier than what it depends on, and sites ordered it differently.
        (107, 5, "byzantine"),
        # What a site had refused, another one had taken, which had forgotten what the stamp contradicted.
        (381, 5, "byzantine"),
        # A site that left knew the id of the list, and another content of it: nobody sent it the one that stands.
        (1, 5, "byzantine"),
        # The second content of a beginning was taken or refused by the order of arrival.
        (212, 5, "byzantine"),
        # What a forgotten site had made at the last moment did not come to all sites that it names.
        (52, 5, "byzantine"),
        # A content that was refused decided who got documents.
        (210, 5, "byzantine"),
    ],
)
def test_what_once_failed_is_well(seed: int, sites: int, profile: str) -> None:
    assert play(seed, sites, PROFILES[profile]).problems == ()
