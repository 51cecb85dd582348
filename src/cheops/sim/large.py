"""A history of a large world from its seed to its end, and what is checked then: the invariants, and the budgets."""

import gc
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from cheops.sim import invariants, large_workload
from cheops.sim.large_world import LargeWorld, MembershipChange
from cheops.sim.last_words import ExplanationChecker
from cheops.sim.traffic import BYTES_PER_SITE, MESSAGES_PER_SITE
from cheops.sim.workload import Profile

# Budgets, whatever the number of sites. Heartbeats are probes and answers: at most nine probes a period (MeshSettings).
HEARTBEATS_PER_S = 20
HEARTBEAT_BYTES = 4_096
KNOWN_WITHIN_MS = 10_000
CONNECTIONS = 40

# Times the budget of an operation, in messages. By satellite the budget itself is not met yet: some messages count as
# lost while their answers are on the way, where several sites write.
BY_SATELLITE = 2
WITH_FAULTS, BYTES_WITH_FAULTS = 3, 2  # where a site of its resource has crashed, was cut off, or is new

_REST_MS = 15_000  # at the end, until nothing but heartbeats is sent
_MEASURED_MS = 5_000
_AT_REST = 0.01  # messages about resources per second and site


@dataclass(frozen=True)
class Measure:
    """What was measured, beside its budget."""

    what: str
    found: float
    budget: float
    unit: str = ""

    @property
    def is_kept(self) -> bool:
        return self.found <= self.budget


@dataclass(frozen=True)
class LargeHistory:
    world: LargeWorld
    problems: list[str]
    measures: tuple[Measure, ...]


def play_large(seed: int, names: tuple[str, ...], profile: Profile, patience_ms: int) -> LargeHistory:
    per_site = profile
    profile = replace(per_site, operations=per_site.operations * len(names), resources=per_site.resources * len(names))
    world = LargeWorld(seed, names, profile)
    gc.collect()
    gc.freeze()
    gc.disable()  # a thousand catalogues make it slow, and there is hardly any garbage
    try:
        large_workload.schedule(world)
        explanations = ExplanationChecker(world, seed)
        explanations.start()
        world.run_until(world.now_ms + large_workload.WARM_UP_MS + profile.duration_ms)
        _heal(world)
        end_ms = world.now_ms + patience_ms
        problems, idle = ["nothing was checked"], 0
        while (problems or idle > _AT_REST * len(names) * _MEASURED_MS / 1_000) and world.now_ms < end_ms:
            world.run_until(world.now_ms + _REST_MS - _MEASURED_MS)
            world.resolve_unknown()
            before, messages = world.meshes.sent.copy(), sum(sent.messages for sent in world.sent.values())
            world.run_until(world.now_ms + _MEASURED_MS)
            world.resolve_unknown()
            idle = sum(sent.messages for sent in world.sent.values()) - messages
            problems = invariants.problems(world, explanations)
        beats = world.heartbeats_since(before)
        per_s = _MEASURED_MS / 1_000
        measures = (
            *_operation_measures(world),
            Measure("heartbeats per site and second", sum(beats.values()) / len(beats) / per_s, HEARTBEATS_PER_S),
            Measure("heartbeats per second, the most of one site", max(beats.values()) / per_s, 2 * HEARTBEATS_PER_S),
            Measure("bytes of a heartbeat", world.meshes.weighed_bytes / max(world.meshes.weighed, 1), HEARTBEAT_BYTES),
            Measure("messages about resources per second, at rest", idle / per_s, _AT_REST * len(names)),
            Measure("connections of an agent", max(world.connections.most.values()), CONNECTIONS),
            *(_change_measure(world, change) for change in world.changes),
        )
    finally:
        gc.enable()
        gc.unfreeze()
    problems += [
        f"{one.what}: {one.found:,.1f}, and at most {one.budget:,.1f} are allowed"
        for one in measures
        if not one.is_kept
    ]
    return LargeHistory(world, problems, measures)


def _heal(world: LargeWorld) -> None:
    world.calm = True
    world.heal_cuts()
    for name in world.nodes:
        world.restart(name)
    world.record("everything is healed")


def _change_measure(world: LargeWorld, change: MembershipChange) -> Measure:
    after_ms = change.known_ms if change.known_ms is not None else world.now_ms - change.at_ms
    word = "joins" if change.joins else "is forgotten"
    return Measure(f"seconds until all know that {change.site} {word}", after_ms / 1_000, KNOWN_WITHIN_MS / 1_000)


def _operation_measures(world: LargeWorld) -> Iterator[Measure]:
    """Messages and bytes, per operation and site of its resource."""
    groups: dict[str, tuple[int, int, Callable[[tuple[str, ...]], bool]]] = {
        "no fault": (1, 1, lambda sites: not world.met_fault(sites) and not world.is_slow(sites)),
        "no fault, by satellite": (BY_SATELLITE, 1, lambda sites: not world.met_fault(sites) and world.is_slow(sites)),
        "crashes, cuts, new sites": (WITH_FAULTS, BYTES_WITH_FAULTS, world.met_fault),
    }
    for group, (messages, bytes_, is_in) in groups.items():
        counted = world.decided.keys() - world.uncounted
        chosen = [name for name in world.sent if name in counted and is_in(world.last_sites(name))]
        if chosen:
            yield _per_site(
                world, chosen, f"messages per operation and site, {group}", messages * MESSAGES_PER_SITE, "messages"
            )
            weighed = [name for name in chosen if world.sent[name].is_weighed]
            yield _per_site(world, weighed, f"bytes per operation and site, {group}", bytes_ * BYTES_PER_SITE, "bytes")


def _per_site(world: LargeWorld, resources: Iterable[str], what: str, budget: float, count: str) -> Measure:
    sent = parts = 0
    for name in resources:
        sent += getattr(world.sent[name], count)
        parts += len(world.decided[name]) * len(world.last_sites(name))
    return Measure(what, sent / max(parts, 1), budget)
