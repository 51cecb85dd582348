"""How long an agent takes to start while nobody else can be reached, and how much memory it has then."""

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import uvloop

from bench.agents import rss_bytes
from bench.client import connected, exec_request
from bench.desk import SITE
from bench.measure import human
from bench.report import Section
from tests.agent.rig import Rig

_STARTS = 5


@dataclass
class Starts:
    """Of several starts: seconds until a request is answered, and until an operation is done; and bytes."""

    answered_s: list[float] = field(default_factory=list)
    done_s: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)


def start_section(rigs: Mapping[int, Rig]) -> Section:
    """For sites with so many resources each, which are not running and reach nobody. In turns."""
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
