"""450 histories on every run of the tests; `make soak` plays fifty times as many."""

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES

_CHUNK = 25
# profile, sites, chunks of histories
PLAN = [
    ("hostile", 3, 3), ("hostile", 5, 2), ("network", 4, 1), ("crashes", 3, 2), ("moving", 4, 1), ("rules", 4, 1),
    ("policed", 4, 2), ("members", 4, 1), ("reborn", 3, 1), ("kinds", 4, 1), ("remedies", 3, 1), ("joins", 4, 1),
    ("quiet", 5, 1),
]  # fmt: skip
CHUNKS = [(profile, sites, chunk) for profile, sites, chunks in PLAN for chunk in range(chunks)]
# Histories of `make soak` that once went wrong.
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
]


def test_there_are_four_hundred_and_fifty() -> None:
    assert len(CHUNKS) * _CHUNK == 450


@pytest.mark.parametrize(("profile", "sites", "chunk"), CHUNKS)
def test_nothing_is_lost_and_all_converge(profile: str, sites: int, chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        _goes_well(profile, sites, seed)


@pytest.mark.parametrize(("profile", "sites", "seed"), ONCE_BROKEN)
def test_what_once_went_wrong_goes_well(profile: str, sites: int, seed: int) -> None:
    _goes_well(profile, sites, seed)


@pytest.mark.parametrize("profile", ["restored", "lost", "clocks"])
def test_replaced_stores_and_wrong_clocks(profile: str) -> None:
    for seed in range(_CHUNK):
        _goes_well(profile, 3, seed)


def _goes_well(profile: str, sites: int, seed: int) -> None:
    outcome = play(seed, sites, PROFILES[profile])
    assert not outcome.problems, f"cheops sim --seed {seed} --sites {sites} --profile {profile}"


def test_a_history_is_the_same_every_time_it_is_played() -> None:
    assert play(5, 4, PROFILES["hostile"]) == play(5, 4, PROFILES["hostile"])
