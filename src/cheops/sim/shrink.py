"""The smallest history that still fails: fewer operations, fewer kinds of trouble, the same seed."""

from dataclasses import replace

from cheops.sim.history import Outcome, play
from cheops.sim.profile import Profile

_SWITCHES: tuple[dict[str, float], ...] = (
    {"crashes": 0}, {"crash_between_effects": 0}, {"trouble": 0}, {"loss": 0}, {"duplication": 0},
    {"long_delay": 0}, {"partitions": 0}, {"one_way_cuts": 0}, {"clock_jumps": 0}, {"skew_ms": 0},
    {"site_changes": 0}, {"matrix_changes": 0}, {"deletes": 0}, {"forces": 0}, {"bad_command": 0},
    {"resources": 1}, {"rebirths": 0},
)  # fmt: skip


def shrink(seed: int, sites: int, profile: Profile) -> tuple[Profile, Outcome]:
    """Take away what is not needed for the failure; gives the profile that is left and how it fails."""
    best, outcome = profile, play(seed, sites, profile)
    for switch in _SWITCHES:
        best, outcome = _try(seed, sites, best, outcome, switch)
    operations = best.operations
    while operations > 2:
        smaller = max(2, operations * 3 // 4 if operations > 8 else operations - 1)
        shrunk, outcome = _try(seed, sites, best, outcome, {"operations": smaller})
        if shrunk is best:
            break
        best, operations = shrunk, smaller
    return best, outcome


def _try(
    seed: int, sites: int, profile: Profile, outcome: Outcome, change: dict[str, float]
) -> tuple[Profile, Outcome]:
    candidate = replace(profile, **change)  # type: ignore[arg-type]
    if candidate == profile:
        return profile, outcome
    tried = play(seed, sites, candidate)
    return (candidate, tried) if tried.problems else (profile, outcome)
