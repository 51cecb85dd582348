"""Histories with a hostile site: honest sites lose nothing, agree, and can forget it."""

import pytest

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES

_CHUNK = 4
_CHUNKS = 3


def problems(seed: int) -> tuple[str, ...]:
    return play(seed, 5, PROFILES["byzantine"]).problems


@pytest.mark.parametrize("chunk", range(_CHUNKS))
def test_honest_sites_lose_nothing_and_agree(chunk: int) -> None:
    for seed in range(chunk * _CHUNK, (chunk + 1) * _CHUNK):
        assert problems(seed) == (), f"cheops sim --seed {seed} --sites 5 --profile byzantine"


def test_a_history_with_a_hostile_site_is_the_same_every_time() -> None:
    assert play(7, 5, PROFILES["byzantine"]) == play(7, 5, PROFILES["byzantine"])
