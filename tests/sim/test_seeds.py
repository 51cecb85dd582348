"""A sample of 120 histories on every run of the tests; `make soak` plays some four hundred times as many."""

import os

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES

# profile, sites, histories, and how many of them are one test: those of some profiles take ten times as long as others
PLAN = [
    ("hostile", 3, 20, 20), ("hostile", 5, 10, 10), ("network", 4, 7, 7), ("crashes", 3, 13, 13), ("moving", 4, 7, 7),
    ("rules", 4, 7, 7), ("policed", 4, 13, 13), ("members", 4, 7, 7), ("reborn", 3, 7, 7), ("kinds", 4, 7, 7), ("texts", 3, 4, 4),
    ("remedies", 3, 7, 7), ("joins", 4, 4, 4), ("quiet", 5, 4, 4), ("deletions", 4, 3, 3),
]  # fmt: skip
CHUNKS = [
    (profile, sites, range(first, min(first + chunk, histories)))
    for profile, sites, histories, chunk in PLAN
    for first in range(0, histories, chunk)
]
# Histories of `make soak` that once went wrong. Most are other histories by now, since the engine has changed. So `make
# test` plays every third, the newest first, and `make soak` all.
_EACH = 1 if os.environ.get("CHEOPS_TEST_HISTORIES") == "all" else -3
ONCE_BROKEN = [
    ("hostile", 3, 7114),
    ("hostile", 5, 20595),
    ("moving", 5, 20207),
    ("long", 4, 135),
    ("policed", 4, 81),
    ("members", 4, 18),
    ("members", 4, 22),
    ("members", 4, 33),
    ("members", 3, 1008),
    ("members", 3, 1107),
    ("restored", 4, 52),
    ("restored", 3, 95200),
    ("deletions", 4, 90215),
    ("deletions", 4, 223),
    ("deletions", 4, 326),
    ("moving", 3, 30362),
    ("restored", 3, 30105),
    ("restored", 3, 30223),
    ("restored", 3, 30342),
    ("restored", 3, 30059),
    ("lost", 6, 52015),
    ("deletions", 3, 30007),
    ("deletions", 4, 63001),
    ("clocks", 3, 30252),
    ("members", 4, 52019),
    ("quiet", 5, 50018),
    ("members", 3, 30048),
    ("members", 3, 30163),
    ("members", 3, 30283),
    ("members", 3, 30179),
    ("members", 4, 40010),
    ("quiet", 5, 50027),
    ("joins", 4, 3),
    ("members", 3, 30223),
    ("hostile", 3, 9438),
    ("crashes", 3, 30597),
    ("moving", 4, 40482),
    ("joins", 3, 30664),
    ("restored", 3, 30057),
    ("lost", 3, 30192),
    ("lost", 5, 50167),
    ("clocks", 3, 30178),
    ("rules", 3, 30476),
    ("rules", 4, 40208),
    ("rules", 5, 50233),
    ("rules", 7, 70143),
    ("members", 4, 40377),
    ("members", 5, 50364),
    ("kinds", 3, 30438),
    ("kinds", 4, 40231),
    ("kinds", 5, 50226),
    ("kinds", 6, 60050),
    ("kinds", 3, 30497),
    ("remedies", 6, 60018),
    ("reborn", 4, 40033),
]


def test_there_are_a_hundred_and_twenty() -> None:
    assert sum(len(seeds) for _, _, seeds in CHUNKS) == 120


@pytest.mark.parametrize(("profile", "sites", "seeds"), CHUNKS, ids=lambda one: getattr(one, "start", one))
def test_nothing_is_lost_and_all_converge(profile: str, sites: int, seeds: range) -> None:
    for seed in seeds:
        _goes_well(profile, sites, seed)


@pytest.mark.parametrize(("profile", "sites", "seed"), ONCE_BROKEN[::_EACH])
def test_what_once_went_wrong_goes_well(profile: str, sites: int, seed: int) -> None:
    _goes_well(profile, sites, seed)


@pytest.mark.parametrize("profile", ["restored", "lost", "clocks"])
def test_replaced_stores_and_wrong_clocks(profile: str) -> None:
    for seed in range(7):
        _goes_well(profile, 3, seed)


def _goes_well(profile: str, sites: int, seed: int) -> None:
    outcome = play(seed, sites, PROFILES[profile])
    assert not outcome.problems, f"cheops sim --seed {seed} --sites {sites} --profile {profile}"


def test_a_history_is_the_same_every_time_it_is_played() -> None:
    assert play(5, 4, PROFILES["hostile"]) == play(5, 4, PROFILES["hostile"])
