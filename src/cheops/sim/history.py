"""One simulated history from its seed to its end."""

from collections import Counter
from dataclasses import dataclass

from cheops.sim import check, workload
from cheops.sim.profile import Profile
from cheops.sim.world import World

PATIENCE_MS = 120_000  # of virtual time, after everything is healed


@dataclass(frozen=True)
class Outcome:
    seed: int
    problems: tuple[str, ...]
    injected: Counter[str]
    operations: int
    replays: int
    story: tuple[str, ...] = ()


def play(seed: int, sites: int, profile: Profile, *, patience_ms: int = PATIENCE_MS) -> Outcome:
    """Play a history; the same arguments give the same one."""
    world = World(seed, tuple(f"site{number}" for number in range(1, sites + 1)), profile)
    try:
        workload.schedule(world)
        world.run_until(world.now_ms + profile.duration_ms)
        _heal(world)
        found = _wait_until_well(world, patience_ms)
    except Exception as error:  # a finding like any other: it has a seed, and a story
        found = [f"{type(error).__name__}: {error}"]
    for node in world.nodes.values():
        world.injected += node.injected
    replays = sum(e.replay for node in world.nodes.values() for e in node.log)
    operations = sum(map(len, world.decided.values()))
    return Outcome(seed, tuple(found), world.injected, operations, replays, tuple(world.story))


def _heal(world: World) -> None:
    world.calm = True
    world.cut.clear()
    for name in world.nodes:
        world.restart(name)
    world.tell("everything is healed")


def _wait_until_well(world: World, patience_ms: int) -> list[str]:
    """Give it time, with an operator who resolves what is UNKNOWN; gives what is wrong in the end."""
    end_ms = world.now_ms + patience_ms
    found = ["nothing was checked"]
    while found and world.now_ms < end_ms:
        world.run_until(world.now_ms + 2_000)
        world.cut.clear()
        world.resolve_unknown()
        found = check.problems(world)
    return found
