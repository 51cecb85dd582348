"""What an operation costs at 3 to 50 sites.

Messages and bytes are counted in a simulated world without faults. Processor time is that of real agents, up to 20, all
on this machine.
"""

import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.charts import LineChart, Point, Series
from bench.report import Section
from cheops.sim.traffic import BYTES_PER_SITE, MESSAGES_PER_SITE, Traffic, measure

_SITES = (3, 10, 20, 50)
_OPERATIONS = 3
_OUTPUT_LINES = 8
# Bytes, with outputs, and signed; counted at 8fcd3ab in the same way.
_BEFORE = {
    3: (2_989, 5_015, 4_114),
    10: (18_694, 48_140, 33_744),
    20: (58_586, 184_018, 119_569),
    50: (319_932, 1_142_703, 726_997),
}
_EXEC_COST = Path(__file__).with_name("exec_cost.py")
_TURN = (4, 10)  # clients, and operations of each
_MOST_AGENTS = 20  # 50 on two cores do not answer each other in time
_MOST_PROCESSOR_MS = {20: 60}


def run() -> Iterator[Section]:
    columns = ("sites", "messages", "budget", "bytes", "budget", "before", "with outputs", "before", "signed", "before")
    about = (
        "One operation at a resource of so many sites, submitted at one of them, with links of 1 to 5 ms.\n"
        "It is counted in the simulator with the limits of an agent, so it depends on no machine. Bytes are those\n"
        "of the messages as agents send them, without TLS; origins and times are as long as those of agents. With\n"
        "outputs, each site prints 520 characters that hardly compress. Signed, each site gets two signatures of\n"
        "each other one, and each is made by itself; agents sign reports together with the documents of a commit,\n"
        "of which the bytes were not counted. Before, each site got the reports, replies and outputs of all others\n"
        "in full ([ADR 0030](adr/0030-short-messages.md))."
    )
    rows, counted = [], {}
    for sites in _SITES:
        bare = counted[sites] = measure(sites, _OPERATIONS)
        printing = measure(sites, _OPERATIONS, output_lines=_OUTPUT_LINES)
        signed = measure(sites, _OPERATIONS, signed=True)
        counts = [one.bytes for one in (bare, printing, signed)]
        before = _BEFORE[sites]
        row = [f"{sites}", f"{bare.messages:.0f}", f"{MESSAGES_PER_SITE * sites}", f"{counts[0]:,.0f}"]
        row += [f"{BYTES_PER_SITE * sites:,}", f"{before[0]:,}", f"{counts[1]:,.0f}", f"{before[1]:,}"]
        rows.append((*row, f"{counts[2]:,.0f}", f"{before[2]:,}"))
    latest_ms = measure(_SITES[-1], 1).converged_ms
    about += f" At {_SITES[-1]} sites, all know the outcome after {latest_ms:.0f} ms of virtual time."
    yield Section("scale", columns, tuple(rows), title="Many sites", about=about)
    yield _processor(counted)


def _processor(counted: dict[int, Traffic]) -> Section:
    """`exec` of `true` at resources of so many sites, each with an agent of its own."""
    spent = {sites: _processor_ms(sites) for sites in _SITES if sites <= _MOST_AGENTS}
    rows = [
        (
            f"{sites}",
            f"{agents + commands:.0f} ms",
            f"≤ {_MOST_PROCESSOR_MS[sites]} ms" if sites in _MOST_PROCESSOR_MS else "",
            f"{agents:.0f} ms",
            f"{commands:.1f} ms",
            f"{agents / sites:.1f} ms",
        )
        for sites, (agents, commands) in spent.items()
    ]
    costs = {
        "messages": {sites: one.messages for sites, one in counted.items()},
        "bytes": {sites: one.bytes for sites, one in counted.items()},
        "processor time": {sites: agents for sites, (agents, _) in spent.items()},
    }
    growth = ", ".join(f"{what} {_exponent(cost):.2f}" for what, cost in costs.items())
    about = (
        f"`exec` of `true` at real agents on one machine, by {_TURN[0]} clients of one of them, without\n"
        "security; less what the agents use in such a time without operations.\n"
        f"Exponents of the growth with the number of sites, fitted (1 is linear): {growth}."
    )
    columns = ("sites", "processor time", "target", "of it agents", "helpers and commands", "each agent")
    return Section("scale-processor", columns, tuple(rows), title="Many sites", about=about, picture=_chart(costs))


def _processor_ms(sites: int) -> tuple[float, float]:
    """Of one operation: all agents, less what they use at rest; and their helpers and commands."""
    argv = [sys.executable, str(_EXEC_COST), "plain", str(sites)]
    turn = " ".join(map(str, _TURN)) + " own\n"
    done = subprocess.run(argv, input=turn * 2, capture_output=True, text=True, check=True, cwd=_EXEC_COST.parents[1])
    result = json.loads(done.stdout.splitlines()[-1])  # the first turn made the resources
    helpers = sum(float(parts["helpers and commands"]) for parts in result["sites"].values())
    everything = sum(float(sum(parts.values())) for parts in result["sites"].values())
    return everything - helpers - float(result["rest_ms"]), helpers


def _exponent(cost: dict[int, float]) -> float:
    """The slope of the straight line nearest to the logarithms."""
    points = [(math.log(sites), math.log(value)) for sites, value in cost.items()]
    x_mean, y_mean = (sum(values) / len(points) for values in zip(*points, strict=True))
    slope: float = sum((x - x_mean) * (y - y_mean) for x, y in points) / sum((x - x_mean) ** 2 for x, _ in points)
    return slope


def _chart(costs: dict[str, dict[int, float]]) -> LineChart:
    fewest = _SITES[0]
    series = [
        Series(what, colour, tuple(Point(n, value / n / (cost[fewest] / fewest)) for n, value in cost.items()))
        for (what, cost), colour in zip(costs.items(), ("#0969da", "#1a7f37", "#8250df"), strict=True)
    ]
    title = "What an operation costs for each site of its resource"
    return LineChart("sites of the resource", f"cost per site, against {fewest} sites", series, title)
