"""The agent suite: latency and throughput of operations, durable submits, propagation, growth and large meshes."""

import asyncio
import json
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench.charts import LineChart, Point, Series
from bench.client import Client, Line, connected, exec_request
from bench.growth import growth_sections
from bench.large_mesh import large_mesh_section
from bench.local_site import LocalSite, running_site
from bench.measure import human, per_second, percentile, temporary_folder
from bench.report import PAGE, Section
from bench.sites import loopback, network_note, on_wan
from tests.agent.rig import Rig
from tests.backends.command_rate import commands_per_second
from tests.wan.measure import round_trips

_ROW_BYTES = 500  # about what a document has


class BareSqlite:
    """A file with one table."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._row = (b"x" * _ROW_BYTES,)

    def commit(self, rows: int) -> None:
        """Insert this number of rows durably."""
        self._connection.execute("BEGIN IMMEDIATE")
        for _ in range(rows):
            self._connection.execute("INSERT INTO bare (body) VALUES (?)", self._row)
        self._connection.execute("COMMIT")

    def seconds(self, commits: Iterable[int]) -> float:
        """Seconds for commits with these numbers of rows, one after the other."""
        start = time.perf_counter()
        for rows in commits:
            self.commit(rows)
        return time.perf_counter() - start


@contextmanager
def bare_sqlite() -> Iterator[BareSqlite]:
    with temporary_folder() as place, closing(_connected(place / "bare.db")) as connection:
        yield BareSqlite(connection)


def _connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("CREATE TABLE bare (number INTEGER PRIMARY KEY, body BLOB)")
    return connection


CLIENTS = (1, 8, 32)
_SAMPLES, _WARM_UP = 300, 20
_LOAD_S = 4.0
_COMMANDS, _COMMITS = 2, 5  # that an operation waits for, one after the other


def exec_latency_section() -> Section:
    with on_wan() as rig:
        rig.start()
        note = network_note(rig)
        executions = {
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
    rows = tuple(_latency_row(name + note, lines, floor_s) for name, lines in executions.items())
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
        requests = [exec_request(rig, "one" if same else f"new-{turn}") for turn in range(_WARM_UP + _SAMPLES)]
        done = [await client.exec(request, len(rig.names)) for request in requests]
        return done[_WARM_UP:]


def _commit_s() -> float:
    with bare_sqlite() as reference:
        return statistics.median(reference.seconds([1]) for _ in range(300))


# -- many at once ----------------------------------------------------------------------------------------


def exec_throughput_section() -> Section:
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


DELAYS_MS = (0.0, 25.0, 50.0)
PICTURE = "propagation.svg"
_COMMAND = "date +%s%N"
_PROPAGATION_SAMPLES, _PROPAGATION_WARM_UP = 25, 4
_PAUSE_S = 0.1  # plus some round trips: by then the sites have exchanged everything
_SLACK_MS = 5.0


@dataclass(frozen=True)
class Propagation:
    """Milliseconds until the commands of the two peers ran; of each operation, both."""

    delay_ms: float
    bed_ms: float  # how long a packet takes on the bed, by its own measurement
    from_client_ms: tuple[float, ...]  # since the client's request
    from_origin_ms: tuple[float, ...]  # since the command ran at the origin

    def target_ms(self, run_ms: float) -> float:
        return 1.1 * self.delay_ms + run_ms + _SLACK_MS


def propagation_section() -> Section:
    run_ms = 1000 / commands_per_second(parallel=1, count=300, line=_COMMAND)
    with on_wan() as rig:
        rig.start()
        delays = DELAYS_MS if rig.wan else (0.0,)
        apart, in_a_row = {}, {}
        for delay_ms in delays:
            if rig.wan:
                rig.wan.delay_all(delay_ms)
            bed_ms = _bed_ms(rig, delay_ms)
            apart[delay_ms] = _seen(rig, delay_ms, bed_ms, _PAUSE_S + 3 * delay_ms / 1000)
            in_a_row[delay_ms] = _seen(rig, delay_ms, bed_ms, 0.0)
        note = network_note(rig)
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
        "run at a peer since the client's request: median",
        "p90",
        "target: 1.1 x delay + run + 5 ms",
        "median against target",
        "since it ran at its origin: median",
        "a packet on this bed",
    )
    return Section("agent-propagation", columns, tuple(rows))


def _row(note: str, kind: str, seen: Propagation, run_ms: float) -> tuple[str, ...]:
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


def _seen(rig: Rig, delay_ms: float, bed_ms: float, pause_s: float) -> Propagation:
    samples = uvloop.run(_samples(rig, pause_s))[2 * _PROPAGATION_WARM_UP :]
    return Propagation(delay_ms, bed_ms, *(tuple(column) for column in zip(*samples, strict=True)))


async def _samples(rig: Rig, pause_s: float) -> list[tuple[float, float]]:
    request = exec_request(rig, "clock", _COMMAND)
    async with connected(rig, "site1") as (client,):
        samples = []
        for _ in range(_PROPAGATION_WARM_UP + _PROPAGATION_SAMPLES):
            samples += await _sample(client, request)
            await asyncio.sleep(pause_s)
        return samples


async def _sample(client: Client, request: bytes) -> list[tuple[float, float]]:
    request_ns = time.time_ns()
    ran_ns = {}
    for line in await client.exec(request, 3):
        answer = json.loads(line.text)
        ran_ns[answer["Site"]] = int(answer["Output"])
    origin_ns = ran_ns.pop("site1")
    return [((ns - request_ns) / 1e6, (ns - origin_ns) / 1e6) for ns in ran_ns.values()]


def _draw(path: Path, apart: list[Propagation], in_a_row: list[Propagation], run_ms: float) -> None:
    target = tuple(Point(seen.delay_ms, seen.target_ms(run_ms)) for seen in apart)
    chart = LineChart(
        "one-way delay of the network, ms",
        "until it runs at a peer, ms (median, 10 to 90 %)",
        (
            Series("target", "#888888", target, dashed=True),
            Series("operations apart", "#0b6e4f", tuple(map(_point, apart))),
            Series("one after the other", "#c8553d", tuple(map(_point, in_a_row))),
        ),
    )
    path.write_text(chart.svg(), encoding="utf-8")


def _point(seen: Propagation) -> Point:
    low, high = (percentile(seen.from_client_ms, share) for share in (0.1, 0.9))
    return Point(seen.delay_ms, statistics.median(seen.from_client_ms), low, high)


SUBMITTERS = (1, 8, 32)
TARGET, TARGET_OF_ONE = 3_000, 1_500  # operations/s: on distinct resources, on one
ONE_RESOURCE = "all the same"
_ROUNDS, _ROUND_S = 3, 1.0
_MAX_COMMITS = 300  # that the reference repeats

# The resource of an operation, from the number of its submitter and the turn.
Resource = Callable[[int, int], str]
KINDS: dict[str, Resource] = {
    "each submitter its own": lambda client, _turn: f"own-{client}",
    "a new one each time": lambda client, turn: f"new-{client}-{turn}",
    ONE_RESOURCE: lambda _client, _turn: "same",
}


@dataclass(frozen=True)
class Measured:
    per_s: float
    cpu_s: float  # per operation
    commits_per_operation: float
    commits: tuple[int, ...]  # documents in each


def submit_section() -> Section:
    with bare_sqlite() as reference:
        reference.seconds([1] * 50)
        synced_per_s = 300 / reference.seconds([1] * 300)
        rows = [("reference: one bare INSERT per commit", "1", f"{synced_per_s:,.0f}", *[""] * 5)]
        for kind, resource in KINDS.items():
            for submitters in SUBMITTERS:
                measured = uvloop.run(_measured(resource, submitters))
                bare_s = reference.seconds(measured.commits) / len(measured.commits)
                target = TARGET_OF_ONE if kind == ONE_RESOURCE else TARGET
                rows.append((kind, str(submitters), *_figures(measured, bare_s, target)))
    columns = (
        "resource",
        "submitters",
        "operations/s",
        "target",
        "processor time per operation",
        "commits per operation",
        "the same commits bare: operations/s",
        "ratio",
    )
    return Section("agent-submit", columns, tuple(rows))


def _figures(measured: Measured, bare_s: float, target: int) -> tuple[str, ...]:
    bare_per_s = 1 / (bare_s * measured.commits_per_operation)
    return (
        f"{measured.per_s:,.0f}",
        f"≥ {target:,}",
        human(measured.cpu_s),
        f"{measured.commits_per_operation:.2f}",
        f"{bare_per_s:,.0f}",
        f"{measured.per_s / bare_per_s:.2f} x",
    )


async def _measured(resource: Resource, submitters: int) -> Measured:
    """The median of some rounds, each on a store of its own."""
    rounds = []
    for _ in range(_ROUNDS):
        with temporary_folder() as place:
            async with running_site(place / "store.db") as site:
                rounds.append(await _round(site, resource, submitters))
    middle = statistics.median(round_.per_s for round_ in rounds)
    return next(round_ for round_ in rounds if round_.per_s == middle)


async def _round(site: LocalSite, resource: Resource, submitters: int) -> Measured:
    done = 0

    async def action(client: int, turn: int) -> None:
        nonlocal done
        await site.submit(resource(client, turn))
        done += 1

    used_s = time.process_time()
    per_s = await per_second(action, submitters, _ROUND_S)
    used_s, commits = time.process_time() - used_s, site.commits
    return Measured(per_s, used_s / done, len(commits) / done, tuple(commits[-_MAX_COMMITS:]))


def run() -> Iterator[Section]:
    """One section after the other, so that each is written as soon as it is measured."""
    yield exec_latency_section()
    yield submit_section()
    yield exec_throughput_section()
    yield propagation_section()
    yield from growth_sections()
    yield large_mesh_section()
