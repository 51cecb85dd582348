"""`exec` over HTTP at three sites: how long one takes, and how many there are per second."""

import statistics

import uvloop

from bench.agents import loopback, network, on_bed
from bench.bare import bare
from bench.client import Line, connected, exec_request
from bench.load import per_second
from bench.measure import human, percentile
from bench.report import Section
from tests.agent.rig import Rig
from tests.backends.command_rate import commands_per_second

CLIENTS = (1, 8, 32)
_SAMPLES, _WARM_UP = 300, 20
_LOAD_S = 4.0
_COMMANDS, _COMMITS = 2, 5  # that an operation waits for, one after the other


def latency_section() -> Section:
    with on_bed() as rig:
        rig.start()
        note = network(rig)
        found = {
            "one resource": uvloop.run(_executions(rig, same=True)),
            "a new resource each time": uvloop.run(_executions(rig, same=False)),
        }
    floor_s = _COMMANDS / commands_per_second(parallel=1, count=300) + _COMMITS * _commit_s()
    columns = (
        "exec of `true` at three sites",
        "its own site answers, median",
        "all three, median",
        "all three, p99",
        "2 commands and 5 commits in a row",
        "ratio of the medians",
    )
    rows = tuple(_latency_row(name + note, lines, floor_s) for name, lines in found.items())
    return Section("agent-latency", columns, rows)


def _latency_row(name: str, executions: list[list[Line]], floor_s: float) -> tuple[str, ...]:
    first = statistics.median(lines[0].after_s for lines in executions)
    last = [lines[-1].after_s for lines in executions]
    median = statistics.median(last)
    late = percentile(last, 0.99)
    ratio = f"{median / floor_s:.2f} x"
    return name, human(first), human(median), human(late), human(floor_s), ratio


async def _executions(rig: Rig, *, same: bool) -> list[list[Line]]:
    async with connected(rig, "site1") as (client,):
        requests = [
            exec_request(rig, "one" if same else f"new-{turn}") for turn in range(_WARM_UP + _SAMPLES)
        ]
        done = [await client.exec(request, len(rig.names)) for request in requests]
        return done[_WARM_UP:]


def _commit_s() -> float:
    with bare() as reference:
        return statistics.median(reference.seconds([1]) for _ in range(300))


# -- many at once ----------------------------------------------------------------------------------------


def throughput_section() -> Section:
    rows = []
    with loopback() as rig:
        rig.start()
        for clients in CLIENTS:
            own, same = (uvloop.run(_per_s(rig, clients, same=same)) for same in (False, True))
            commands = commands_per_second(parallel=clients, count=1_000)
            share = f"{3 * own / commands:.2f}"
            rows.append((str(clients), f"{own:,.0f}", f"{same:,.0f}", f"{commands:,.0f}", share))
    columns = (
        "clients",
        "operations/s, each client its own resource",
        "operations/s, one resource",
        "commands/s of the backend alone, as many at a time",
        "commands run per command that the backend could have run",
    )
    return Section("agent-http", columns, tuple(rows))


async def _per_s(rig: Rig, count: int, *, same: bool) -> float:
    async with connected(rig, "site1", count) as clients:
        names = ["same" if same else f"own-{number}" for number in range(count)]
        requests = [exec_request(rig, name) for name in names]
        return await per_second(
            lambda number, _turn: clients[number].exec(requests[number], len(rig.names)), count, _LOAD_S
        )
