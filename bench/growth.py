"""Whether a site with many resources is slower than one with few: latency, throughput, start-up time and memory.

Agents and stores of all sizes exist at the same time and are measured in turns, so that a busy moment affects all
of them.
"""

import contextlib
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop

from bench.client import Client, connected, exec_request
from bench.local_site import SITE, LocalSite, fill_store, name_of, running_site
from bench.measure import each_s, human, temporary_folder
from bench.report import Section
from bench.sites import SITES, cpu_s, on_wan, rss_bytes
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig

_STARTS = 5


@dataclass
class Starts:
    """Of several starts: seconds to the first response and to the first finished operation, and bytes of memory."""

    answered_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def start_section(rigs: Mapping[int, Rig]) -> Section:
    """Starts of sites by their number of resources. They are not running, have no peers, and start in turns."""
    starts = {size: Starts() for size in rigs}
    imports_s = []
    for turn in range(_STARTS):
        imports_s.append(_import_s())
        for size, rig in rigs.items():
            _start(rig, turn, starts[size])
    rows = [_row(size, starts, statistics.median(imports_s)) for size in rigs]
    columns = (
        "resources in the store",
        "start to first answer, median",
        "target",
        "reference: `import cheops.agent`, ratio",
        "start to first operation done",
        "memory (RSS)",
        "against an empty store",
    )
    return Section("agent-start", columns, tuple(rows))


def _start(rig: Rig, turn: int, starts: Starts) -> None:
    began = time.perf_counter()
    rig.start(SITE)
    starts.answered_s.append(time.perf_counter() - began)
    starts.memory.append(rss_bytes(rig.processes[SITE].pid))
    uvloop.run(_one(rig, turn))
    starts.done_s.append(time.perf_counter() - began)
    rig.stop(SITE)


async def _one(rig: Rig, turn: int) -> None:
    async with connected(rig, SITE) as (client,):
        await client.exec(exec_request(rig, f"first-{turn}", sites=SITE), 1)


def _import_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import cheops.agent"], check=True)
    return time.perf_counter() - began


def _row(size: int, starts: Mapping[int, Starts], import_s: float) -> tuple[str, ...]:
    answered_s, done_s = (statistics.median(took) for took in (starts[size].answered_s, starts[size].done_s))
    memory, empty = (statistics.median(starts[which].memory) for which in (size, min(starts)))
    return (
        f"{size:,}",
        human(answered_s),
        "< 1 s",
        f"{human(import_s)}, {answered_s / import_s:.2f} x",
        human(done_s),
        f"{memory / 1e6:.0f} MB",
        f"{(memory - empty) / 1e6:+.1f} MB",
    )


SIZES = (0, 1_000, 10_000, 100_000)
_FEW = 1_000
_ROUNDS, _PER_ROUND = 10, 15
_WARM_UP = 50  # operations that are not measured


@dataclass(frozen=True)
class Probe:
    """An action to repeat, and the processor time that its process has used so far."""

    action: Callable[[int], Awaitable[object]]
    cpu_s: Callable[[], float]


@dataclass
class Cost:
    """The cost of an action: seconds of each repetition, and processor time of all."""

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
    """A site without peers, with this number of resources; not started yet."""
    with on_wan() as rig:
        if rig.wan:
            rig.wan.isolate(SITE)
        _store(rig).parent.mkdir()
        with contextlib.closing(SQLiteStore(_store(rig), SITE)) as store:
            fill_store(store, range(size), SITES)
        yield rig


def _store(rig: Rig) -> Path:
    return rig.folder(SITE) / "data" / "store.db"


# -- what operations cost --------------------------------------------------------------------------------


async def _in_turns(probes: dict[int, Probe]) -> Costs:
    """The cost of each probe, by size; turns are numbered through all rounds."""
    costs = {size: Cost() for size in probes}
    for probe in probes.values():
        await each_s(probe.action, range(_WARM_UP))
    for round_ in range(_ROUNDS):
        first = _WARM_UP + round_ * _PER_ROUND
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
    """On copies of the stores: operations on new resources, and on those that must be read from the disk."""
    async with contextlib.AsyncExitStack() as stack:
        new, old = {}, {}
        for size, rig in rigs.items():
            copy = stack.enter_context(temporary_folder()) / "store.db"
            shutil.copyfile(_store(rig), copy)
            site = await stack.enter_async_context(running_site(copy))
            new[size] = Probe(partial(_submit_new, site), time.process_time)
            if size:
                step = size // (_WARM_UP + _ROUNDS * _PER_ROUND)
                old[size] = Probe(partial(_submit_old, site, step), time.process_time)
        return await _in_turns(new), await _in_turns(old)


async def _submit_new(site: LocalSite, turn: int) -> None:
    await site.submit(f"new-{turn}", SITES)


async def _submit_old(site: LocalSite, step: int, turn: int) -> None:
    await site.submit(name_of(turn * step), SITES)


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
