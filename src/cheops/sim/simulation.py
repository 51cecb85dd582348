"""One simulated history from its seed to its end; how a failure is shrunk; and a timeline of it as text."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from cheops.sim import agreement, heartbeats, http_agreement, invariants, mutator, workload
from cheops.sim.byzantine import ByzantineWorld
from cheops.sim.http_clients import Clients
from cheops.sim.http_world import HttpWorld
from cheops.sim.large import Measure, play_large
from cheops.sim.last_words import ExplanationChecker
from cheops.sim.status_checker import StatusChecker
from cheops.sim.workload import Profile
from cheops.sim.world import World

PATIENCE_MS = 120_000  # of virtual time after everything is healed: several times the longest retry delay


@dataclass(frozen=True)
class SimulationResult:
    seed: int
    problems: tuple[str, ...]
    injected: Counter[str]
    operations: int
    replays: int
    story: tuple[str, ...] = ()
    measures: tuple[Measure, ...] = ()  # of a large world


def play(seed: int, sites: int, profile: Profile, *, patience_ms: int = PATIENCE_MS) -> SimulationResult:
    """Play a history; equal arguments give equal histories."""
    names = tuple(f"site{number}" for number in range(1, sites + 1))
    if profile.large:
        return _play_large(seed, names, profile, patience_ms)
    world = _kind_of(profile)(seed, names, profile)
    try:
        workload.schedule(world)
        explanations = ExplanationChecker(world, seed)
        if type(world) is World:  # a hostile site may lie about itself, and HTTP has its own checks
            StatusChecker(world, seed).start()
            explanations.start()
        if isinstance(world, HttpWorld):
            Clients(world).start()
        world.run_until(world.now_ms + profile.duration_ms)
        _heal(world)
        problems = _wait_until_healthy(world, explanations, patience_ms)
        if isinstance(world, ByzantineWorld) and not problems:
            world.write_everywhere()
            problems = _wait_until_healthy(world, explanations, patience_ms)
    except Exception as error:  # a failure like any other: it can be replayed and shrunk
        problems = [f"{type(error).__name__}: {error}"]
    if isinstance(world, HttpWorld):
        world.close()
    for node in world.nodes.values():
        world.injected += node.injected
    replays = sum(e.replay for node in world.nodes.values() for e in node.log)
    operations = sum(map(len, world.decided.values()))
    return SimulationResult(seed, tuple(problems), world.injected, operations, replays, tuple(world.story))


def _play_large(seed: int, names: tuple[str, ...], profile: Profile, patience_ms: int) -> SimulationResult:
    history = play_large(seed, names, profile, patience_ms)
    world = history.world
    replays = sum(e.replay for node in world.nodes.values() for e in node.log)
    operations = sum(map(len, world.decided.values()))
    counts = (world.injected, operations, replays)
    return SimulationResult(seed, tuple(history.problems), *counts, tuple(world.story), history.measures)


def _kind_of(profile: Profile) -> type[World]:
    if profile.http:
        return HttpWorld
    return ByzantineWorld if profile.byzantine else World


def _problems(world: World, explanations: ExplanationChecker) -> list[str]:
    if isinstance(world, HttpWorld):
        return http_agreement.problems(world)
    if isinstance(world, ByzantineWorld):
        return agreement.problems(world)
    return invariants.problems(world, explanations)


def _heal(world: World) -> None:
    world.calm = True
    world.cut.clear()
    world.membership.heal()
    for name in world.nodes:
        world.restart(name)
    world.record("everything is healed")
    if isinstance(world, ByzantineWorld):
        world.silence()


def _wait_until_healthy(world: World, explanations: ExplanationChecker, patience_ms: int) -> list[str]:
    """Give the sites time, with an operator who resolves UNKNOWN operations; return the problems that remain."""
    end_ms = world.now_ms + patience_ms
    problems = ["nothing was checked"]
    while problems and world.now_ms < end_ms:
        if isinstance(world, HttpWorld):
            world.refresh()
        world.run_until(world.now_ms + 2_000)
        world.cut.clear()
        world.resolve_unknown()
        world.cure_clocks()
        problems = _problems(world, explanations)
    return problems


_WIDTH = 30


def timeline(story: Iterable[str], sites: list[str], most: int = 60) -> str:
    """The last events, each in the lane of its site; those of all sites across the lanes."""
    rows = [_row(line, sites) for line in list(story)[-most:]]
    head = " " * 12 + "".join(site.ljust(_WIDTH) for site in sites)
    return "\n".join([head.rstrip(), " " * 12 + "".join("│".ljust(_WIDTH) for _ in sites).rstrip(), *rows])


def _row(line: str, sites: list[str]) -> str:
    time, _, what = line.partition(" ms  ")
    place = next((n for n, site in enumerate(sites) if what.startswith(f"{site} ")), None)
    if place is None:
        return f"{time:>9}   ─── {what} "
    cells = ["│".ljust(_WIDTH)] * len(sites)
    cells[place] = f"● {what.removeprefix(sites[place]).strip()}"[: _WIDTH - 1].ljust(_WIDTH)
    return f"{time:>9}   {''.join(cells)}".rstrip()


# Each turns off one kind of fault. Whole kinds first: that removes most, and a history with fewer kinds reads better.
_SWITCHES: tuple[dict[str, float], ...] = (
    {"crashes": 0}, {"crash_between_effects": 0}, {"trouble": 0}, {"loss": 0}, {"duplication": 0},
    {"long_delay": 0}, {"partitions": 0}, {"one_way_cuts": 0}, {"clock_jumps": 0}, {"skew_ms": 0},
    {"site_changes": 0}, {"matrix_changes": 0}, {"deletes": 0}, {"forces": 0}, {"bad_command": 0},
    {"resources": 1}, {"rebirths": 0}, {"forgettings": 0}, {"batch": 500, "waiting": 10_000}, {"backups": 0},
    {"lost_stores": 0}, {"wrong_clocks": 0},
)  # fmt: skip


def shrink(seed: int, sites: int, profile: Profile) -> tuple[Profile, SimulationResult]:
    """Remove what the failure does not need; return the profile that is left, and its result."""
    best, outcome = profile, play(seed, sites, profile)
    for switch in _SWITCHES:
        best, outcome = _try(seed, sites, best, outcome, switch)
    for tactic in (*mutator.TACTICS, *heartbeats.TACTICS) if profile.byzantine else ():
        best, outcome = _try(seed, sites, best, outcome, {"spared": best.spared | {tactic}})
    operations = best.operations
    while operations > 2:
        smaller = max(2, operations * 3 // 4 if operations > 8 else operations - 1)
        shrunk, outcome = _try(seed, sites, best, outcome, {"operations": smaller})
        if shrunk is best:
            break
        best, operations = shrunk, smaller
    return best, outcome


def _try(
    seed: int, sites: int, profile: Profile, outcome: SimulationResult, change: Mapping[str, object]
) -> tuple[Profile, SimulationResult]:
    candidate = replace(profile, **change)  # type: ignore[arg-type]
    if candidate == profile:
        return profile, outcome
    tried = play(seed, sites, candidate)
    return (candidate, tried) if tried.problems else (profile, outcome)
