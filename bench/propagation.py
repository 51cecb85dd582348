"""How soon an operation runs at a peer, for several delays of the network.

The command prints the time when it runs; all hosts share one machine, so one clock, and each site's answer
brings what its command printed. The target allows one run: that of the origin, which comes first.
"""

import asyncio
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.agents import network, on_bed
from bench.client import Client, connected, exec_request
from bench.measure import percentile
from bench.plot import Chart, Point, Series
from bench.report import PAGE, Section
from tests.agent.rig import Rig
from tests.backends.command_rate import commands_per_second
from tests.wan.measure import round_trips

DELAYS_MS = (0.0, 25.0, 50.0)
PICTURE = "propagation.svg"
_COMMAND = "date +%s%N"
_SAMPLES, _WARM_UP = 25, 4
_PAUSE_S = 0.1  # and some round trips: by then all that sites had to tell is told
_SLACK_MS = 5.0


@dataclass(frozen=True)
class Seen:
    """Milliseconds until the commands of the two peers ran; of each operation, both."""

    delay_ms: float
    bed_ms: float  # how long a packet takes on the bed, by its own measurement
    from_client_ms: tuple[float, ...]  # since the client asked
    from_origin_ms: tuple[float, ...]  # since the command ran at the origin

    def target_ms(self, run_ms: float) -> float:
        return 1.1 * self.delay_ms + run_ms + _SLACK_MS


def propagation_section() -> Section:
    run_ms = 1000 / commands_per_second(parallel=1, count=300, line=_COMMAND)
    with on_bed() as rig:
        rig.start()
        delays = DELAYS_MS if rig.wan else (0.0,)
        apart, in_a_row = {}, {}
        for delay_ms in delays:
            if rig.wan:
                rig.wan.delay_all(delay_ms)
            bed_ms = _bed_ms(rig, delay_ms)
            apart[delay_ms] = _seen(rig, delay_ms, bed_ms, _PAUSE_S + 3 * delay_ms / 1000)
            in_a_row[delay_ms] = _seen(rig, delay_ms, bed_ms, 0.0)
        note = network(rig)
    if len(delays) > 1:
        _draw(PAGE.parent / PICTURE, list(apart.values()), list(in_a_row.values()), run_ms)
    rows = [
        _row(note, kind, seen[delay_ms], run_ms)
        for delay_ms in delays
        for kind, seen in (("apart", apart), ("one after the other", in_a_row))
    ]
    columns = (
        "one-way delay",
        "operations",
        "run at a peer since the client asked: median",
        "p90",
        "target: 1.1 x delay + run + 5 ms",
        "median against target",
        "since it ran at its origin: median",
        "a packet on this bed",
    )
    return Section("agent-propagation", columns, tuple(rows))


def _row(note: str, kind: str, seen: Seen, run_ms: float) -> tuple[str, ...]:
    median, target = statistics.median(seen.from_client_ms), seen.target_ms(run_ms)
    return (
        f"{seen.delay_ms:g} ms{note}",
        kind,
        f"{median:.1f} ms",
        f"{percentile(seen.from_client_ms, 0.9):.1f} ms",
        f"{target:.1f} ms (run: {run_ms:.1f})",
        f"{median / target:.2f} x",
        f"{statistics.median(seen.from_origin_ms):.1f} ms",
        f"{seen.bed_ms:.1f} ms",
    )


def _bed_ms(rig: Rig, delay_ms: float) -> float:
    if rig.wan is None:
        return 0.0
    trips = round_trips(rig.wan.hosts["site1"], rig.wan.hosts["site2"], delay_ms)
    return statistics.median(trips.rtts_ms) / 2


def _seen(rig: Rig, delay_ms: float, bed_ms: float, pause_s: float) -> Seen:
    samples = uvloop.run(_samples(rig, pause_s))[2 * _WARM_UP :]
    return Seen(delay_ms, bed_ms, *(tuple(column) for column in zip(*samples, strict=True)))


async def _samples(rig: Rig, pause_s: float) -> list[tuple[float, float]]:
    request = exec_request(rig, "clock", _COMMAND)
    async with connected(rig, "site1") as (client,):
        found = []
        for _ in range(_WARM_UP + _SAMPLES):
            found += await _sample(client, request)
            await asyncio.sleep(pause_s)
        return found


async def _sample(client: Client, request: bytes) -> list[tuple[float, float]]:
    asked_ns = time.time_ns()
    ran_ns = {}
    for line in await client.exec(request, 3):
        answer = json.loads(line.text)
        ran_ns[answer["Site"]] = int(answer["Output"])
    origin_ns = ran_ns.pop("site1")
    return [((ns - asked_ns) / 1e6, (ns - origin_ns) / 1e6) for ns in ran_ns.values()]


def _draw(path: Path, apart: list[Seen], in_a_row: list[Seen], run_ms: float) -> None:
    target = tuple(Point(seen.delay_ms, seen.target_ms(run_ms)) for seen in apart)
    chart = Chart(
        "one-way delay of the network, ms",
        "until it runs at a peer, ms (median, 10 to 90 %)",
        (
            Series("target", "#888888", target, dashed=True),
            Series("operations apart", "#0b6e4f", tuple(map(_point, apart))),
            Series("one after the other", "#c8553d", tuple(map(_point, in_a_row))),
        ),
    )
    path.write_text(chart.svg(), encoding="utf-8")


def _point(seen: Seen) -> Point:
    low, high = (percentile(seen.from_client_ms, share) for share in (0.1, 0.9))
    return Point(seen.delay_ms, statistics.median(seen.from_client_ms), low, high)
