"""Whether a site with many resources is slower than one with few.

Agents and stores of all sizes are there at the same time and are measured in turns, so that a busy moment
hits all of them.
"""

import contextlib
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop

from bench.agents import SITES, cpu_s, on_bed
from bench.client import Client, connected, exec_request
from bench.desk import SITE, Desk, desk
from bench.filling import fill, name_of
from bench.load import each_s
from bench.measure import human
from bench.place import folder
from bench.report import Section
from bench.starting import start_section
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig

SIZES = (0, 1_000, 10_000, 100_000)
_FEW = 1_000
_ROUNDS, _PER_ROUND = 10, 15
_READY = 50  # operations before anything counts


@dataclass(frozen=True)
class Probe:
    """Something to be done again and again, and the processor time that whoever does it has used so far."""

    action: Callable[[int], Awaitable[object]]
    cpu_s: Callable[[], float]


@dataclass
class Cost:
    """What it took: seconds of each, and processor time of all."""

    took_s: list[float] = field(default_factory=list)
    cpu_s: float = 0.0

    @property
    def median_s(self) -> float:
        return statistics.median(self.took_s)

    @property
    def mean_cpu_s(self) -> float:
        return self.cpu_s / len(self.took_s)


Costs = dict[int, Cost]


def growth_sections() -> list[Section]:
    with contextlib.ExitStack() as stack:
        rigs = {size: stack.enter_context(_filled(size)) for size in SIZES}
        submits = uvloop.run(_submits(rigs))
        starting = start_section(rigs)
        for rig in rigs.values():
            rig.start(SITE)
        execs = uvloop.run(_execs(rigs))
    return [_costs(execs, *submits), starting]


@contextlib.contextmanager
def _filled(size: int) -> Iterator[Rig]:
    """A site that reaches nobody, with so many resources; not started yet."""
    with on_bed() as rig:
        if rig.wan:
            rig.wan.isolate(SITE)
        _store(rig).parent.mkdir()
        with contextlib.closing(SQLiteStore(_store(rig), SITE)) as store:
            fill(store, range(size), SITES)
        yield rig


def _store(rig: Rig) -> Path:
    return rig.folder(SITE) / "data" / "store.db"


# -- what operations cost --------------------------------------------------------------------------------


async def _in_turns(probes: dict[int, Probe]) -> Costs:
    """What each costs, for each size; turns count on over the rounds."""
    costs = {size: Cost() for size in probes}
    for probe in probes.values():
        await each_s(probe.action, range(_READY))
    for round_ in range(_ROUNDS):
        first = _READY + round_ * _PER_ROUND
        for size, probe in probes.items():
            used_s = probe.cpu_s()
            costs[size].took_s += await each_s(probe.action, range(first, first + _PER_ROUND))
            costs[size].cpu_s += probe.cpu_s() - used_s
    return costs


async def _execs(rigs: dict[int, Rig]) -> Costs:
    async with contextlib.AsyncExitStack() as stack:
        probes = {}
        for size, rig in rigs.items():
            (client,) = await stack.enter_async_context(connected(rig, SITE))
            probes[size] = Probe(partial(_exec, rig, client), partial(cpu_s, rig.processes[SITE].pid))
        return await _in_turns(probes)


async def _exec(rig: Rig, client: Client, turn: int) -> None:
    await client.exec(exec_request(rig, f"new-{turn}", sites=SITE), 1)


async def _submits(rigs: dict[int, Rig]) -> tuple[Costs, Costs]:
    """On copies of the stores: operations on new resources, and on such as must be read from the disk."""
    async with contextlib.AsyncExitStack() as stack:
        new, old = {}, {}
        for size, rig in rigs.items():
            copy = stack.enter_context(folder()) / "store.db"
            shutil.copyfile(_store(rig), copy)
            made = await stack.enter_async_context(desk(copy))
            new[size] = Probe(partial(_submit_new, made), time.process_time)
            if size:
                step = size // (_READY + _ROUNDS * _PER_ROUND)
                old[size] = Probe(partial(_submit_old, made, step), time.process_time)
        return await _in_turns(new), await _in_turns(old)


async def _submit_new(made: Desk, turn: int) -> None:
    await made.submit(f"new-{turn}", SITES)


async def _submit_old(made: Desk, step: int, turn: int) -> None:
    await made.submit(name_of(turn * step), SITES)


def _costs(execs: Costs, new: Costs, old: Costs) -> Section:
    rows = []
    for size in SIZES[1:]:
        figures = [_compared(execs[size].median_s, execs[_FEW].median_s)]
        figures += [_compared(costs[size].mean_cpu_s, costs[_FEW].mean_cpu_s) for costs in (execs, new, old)]
        rows.append((f"{size:,}", *figures, "flat"))
    columns = (
        "resources in the store",
        f"exec of `true` at one site, median (against {_FEW:,})",
        "its processor time",
        "submit, a new resource: processor time",
        "submit, one of those in the store: processor time",
        "target",
    )
    return Section("agent-growth", columns, tuple(rows))


def _compared(value_s: float, few_s: float) -> str:
    return f"{human(value_s)} ({value_s / few_s:.2f} x)"
