"""Disks that change what they hold: no site uses it, and all converge."""

from collections import Counter

from cheops.sim.simulation import play
from cheops.sim.workload import PROFILES


def test_damaged_operations_are_fetched_again_and_never_used() -> None:
    injected: Counter[str] = Counter()
    for seed in range(8):
        outcome = play(seed, 3 + seed % 2, PROFILES["rot"])
        assert outcome.problems == (), f"cheops sim --seed {seed} --sites {3 + seed % 2} --profile rot"
        injected += outcome.injected
    assert injected["bit rot"]
    assert injected["damaged document fetched again"]
