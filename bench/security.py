"""The cost of security: the same operations with and without it, measured in turns in one run, as medians.

Without: `security: none`, plain HTTP on loopback, nothing signed. With: mutual TLS between agents and between
gateways, TLS and a token for clients, every operation and reply signed by its site and checked by the others.

    git worktree add --detach ../base fa15d90
    CHEOPS_BENCH_BASE=../base python -m bench security     also compares with the version before stricter checks
"""

import os
import re
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.client import connected, exec_request
from bench.gateway import CONNECTIONS, Way, answers, measured
from bench.local_site import running_site
from bench.measure import human, per_second, temporary_folder
from bench.plain_proxies import two_haproxies
from bench.report import Section
from bench.sites import gateway_sites, loopback
from cheops.security.certificates import make_signing_key
from cheops.security.signatures import Sign, Signer
from tests.agent.rig import Rig, until
from tests.security.sites import all_up

CLIENTS = 32
TARGET = "< 10 %"
_PLANES = {"haproxy": "the fast path", "builtin": "the agent's own proxy"}
_REQUESTS_TO_CACHE = 50  # after these, a scope is in HAProxy's map
_ROUNDS, _ROUND_S = 9, 2.0
_TURNS = 15
_COUNTED = (3, 13)  # submits of each client in bench/work.py; their difference leaves out start and end
ROOT = Path(__file__).parents[1]
Rate = Callable[[], float]  # operations per second, measured for a moment


def run() -> Iterator[Section]:
    yield _work()
    if valgrind := shutil.which("valgrind"):
        yield _instructions(valgrind)
    yield _submits()
    yield _gateways()


# -- processor time, compared with an earlier version --------------------------------------------------------


_WORK = {
    "submit": (("durable submit: engine, pump, store, signature", "< 1.05"),),
    "submit-parts": (
        ("of the submit: engine", ""),
        ("of the submit: encode, check, sign", ""),
        ("of the submit: write, with SQLite", ""),
        ("of the submit: pump, event loop, clients", ""),
    ),
    "channel": (("channel, from the messages of one engine to what another wants saved", "< 1.05"),),
    "parts": (
        ("of the channel: pack", ""),
        ("of the channel: unpack, with all checks of form", ""),
        ("of the channel: verify names, numbers, signatures", ""),
        ("of the channel: engine", ""),
        ("of the channel: encode for the store", ""),
    ),
}


def _trees() -> tuple[Path, ...]:
    """This checkout, and the earlier one if there is one."""
    base = os.environ.get("CHEOPS_BENCH_BASE", "")
    return (ROOT, *([Path(base).resolve()] if base else []))


def _work() -> Section:
    trees = _trees()
    rows = []
    for name, lines in _WORK.items():
        turns = [[_processor_us(tree, name) for tree in trees] for _ in range(_TURNS)]
        for place, (what, target) in enumerate(lines):
            here, *before = ([turn[tree][place] for turn in turns] for tree in range(len(trees)))
            rows.append((what, *_compared(here, before[0] if before else None), target))
    columns = (
        *("processor time of one signed operation", "this version", "before"),
        *("ratio", "medians", "their ratio", "target of the ratio"),
    )
    about = (
        f"Both versions in turns, each in a process of its own; the least of {_TURNS} turns, since other programs on "
        "the machine can only add to it, and the medians beside it. *Before* is the checkout in `CHEOPS_BENCH_BASE`: "
        "the version before what another site sends was checked as strictly as now (`fa15d90`). The channel is "
        "measured with eight operations to a message, one signature for all eight, and their matrix. The parts of the "
        "submit are measured with commits in the thread of the engine, so that they add up."
    )
    return Section("security-work", columns, tuple(rows), "What stricter checks cost", about)


def _compared(here: list[float], before: list[float] | None) -> tuple[str, ...]:
    """Of two versions: the least of each, their ratio, the medians, their ratio."""
    least, median = min(here), statistics.median(here)
    if before is None:
        return f"{least:,.1f} µs", "-", "-", f"{median:,.1f} µs", "-"
    least_before, median_before = min(before), statistics.median(before)
    return (
        *(f"{least:,.1f} µs", f"{least_before:,.1f} µs", f"{least / least_before:.3f}"),
        *(f"{median:,.1f}, {median_before:,.1f} µs", f"{median / median_before:.3f}"),
    )


def _processor_us(tree: Path, name: str) -> list[float]:
    return [float(text) for text in _run_work(tree, [], name).stdout.split()]


def _run_work(tree: Path, tool: list[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run bench/work.py with the code of a checkout, under a tool or by itself."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "PYTHONHASHSEED": "0"}
    argv = [*tool, sys.executable, str(ROOT / "bench" / "work.py"), *arguments]
    return subprocess.run(argv, cwd=tree, env=environment, capture_output=True, text=True, check=True)


def _instructions(valgrind: str) -> Section:
    counts = [_instructions_of_submit(valgrind, tree) for tree in _trees()]
    here, before = counts[0], counts[1] if len(counts) > 1 else None
    row = (
        *("durable submit: engine, pump, store, signature", f"{here:,.0f}"),
        *(("-", "-") if before is None else (f"{before:,.0f}", f"{here / before:.3f}")),
        "< 1.05",
    )
    columns = ("instructions of one signed operation", "this version", "before", "ratio", "target of the ratio")
    about = (
        "The same submit, counted with valgrind, so that it does not depend on what else the machine does. With "
        f"commits in the thread of the engine and without ticks; {_COUNTED[1]} operations of each client, "
        f"less {_COUNTED[0]}."
    )
    return Section("security-instructions", columns, (row,), about=about)


def _instructions_of_submit(valgrind: str, tree: Path) -> float:
    tool = [valgrind, "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    (few, less), (many, more) = (_counted(_run_work(tree, tool, "count", str(times))) for times in _COUNTED)
    return (more - less) / (many - few)


def _counted(done: subprocess.CompletedProcess[str]) -> tuple[float, int]:
    """How many operations there were, and how many instructions they took with start and end."""
    found = re.search(r"Collected : (\d+)", done.stderr)
    if found is None:
        raise ValueError(f"valgrind does not say how many instructions it counted: {done.stderr[-300:]}")
    return float(done.stdout), int(found[1])


# -- operations ------------------------------------------------------------------------------------------


def _submits() -> Section:
    rows = [_submit_row("submit: engine, pump and store", _submit_rate(None), _submit_rate(_sign()))]
    for sites in (("site1",), ("site1", "site2", "site3")):
        with loopback(sites) as plain, loopback(sites, secure=True) as secure:
            for rig in (plain, secure):
                rig.start()
                all_up(rig)
            where = "one site" if len(sites) == 1 else "three sites, all answer"
            rows.append(_submit_row(f"`exec` of `true` over HTTP: {where}", _exec_rate(plain), _exec_rate(secure)))
    columns = (f"operations/s, {CLIENTS} clients", "without", "with", "costs", "target")
    about = (
        "The same with `security: none` and with certificates, tokens and signatures, in turns in one run; "
        f"medians of {_ROUNDS} rounds. The first line is what signing adds to a durable submit. The others "
        "have TLS and a token as well, and with three sites mutual TLS between them and a check of every "
        "signature."
    )
    return Section("security-submit", columns, tuple(rows), "What security costs: operations", about)


def _submit_row(name: str, without: Rate, with_: Rate) -> tuple[str, ...]:
    plain, secure = _in_turns(without, with_)
    return name, f"{plain:,.0f}", f"{secure:,.0f}", _cost(plain, secure), TARGET


def _in_turns(without: Rate, with_: Rate) -> tuple[float, float]:
    pairs = [(without(), with_()) for _ in range(_ROUNDS)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def _cost(plain: float, secure: float) -> str:
    return f"{(1 - secure / plain) * 100:.1f} %"


def _sign() -> Sign:
    return Signer(make_signing_key()).sign


def _submit_rate(sign: Sign | None) -> Rate:
    async def measured_once() -> float:
        with temporary_folder() as place:
            async with running_site(place / "store.db", sign) as site:
                return await per_second(lambda client, _turn: site.submit(f"own-{client}"), CLIENTS, _ROUND_S)

    return lambda: uvloop.run(measured_once())


def _exec_rate(rig: Rig) -> Rate:
    async def measured_once() -> float:
        async with connected(rig, "site1", CLIENTS) as clients:
            requests = [exec_request(rig, f"own-{number}") for number in range(CLIENTS)]
            return await per_second(
                lambda number, _turn: clients[number].exec(requests[number], len(rig.names)),
                CLIENTS,
                _ROUND_S,
            )

    return lambda: uvloop.run(measured_once())


# -- the gateway -----------------------------------------------------------------------------------------


def _gateways() -> Section:
    rows = [row for plane in _PLANES for row in _plane_rows(plane)]
    columns = (
        f"way to the service, {CONNECTIONS} connections",
        *("requests/s without", "with", "costs", "target", "one at a time without", "with"),
    )
    about = (
        "The fast path and the agent's own proxy, clients over plain HTTP as services have it. With security "
        "the request to another site goes over mutual TLS between the gateways; a local one has no TLS "
        "either way. Two plain HAProxies in a row, without TLS and with the same mutual TLS between them, "
        "show what of the cost of two gateways is that of TLS, and what is that of Cheops. Medians of "
        f"{_ROUNDS} rounds; the ways of a data plane are measured in turns."
    )
    return Section("security-gateway", columns, tuple(rows), "What security costs: the gateway", about)


@dataclass
class _Pair:
    """A way to the service without security and with it, and the measurements of both."""

    ways: tuple[Way, Way]
    target: str = TARGET
    rounds: list[tuple[tuple[float, float], ...]] = field(default_factory=list)

    def measure(self) -> None:
        self.rounds.append(tuple(uvloop.run(measured(way)) for way in self.ways))

    def row(self) -> tuple[str, ...]:
        plain, secure = (statistics.median(both[side][0] for both in self.rounds) for side in (0, 1))
        took = (human(statistics.median(both[side][1] for both in self.rounds)) for side in (0, 1))
        return (
            self.ways[0].name,
            f"{plain:,.0f}",
            f"{secure:,.0f}",
            _cost(plain, secure),
            self.target,
            *took,
        )


def _plane_rows(plane: str) -> list[tuple[str, ...]]:
    with ExitStack() as stack:
        pairs = list(_pairs(stack, plane))
        for way in (way for pair in pairs for way in pair.ways):
            until(lambda w=way: _is_ready(w), f"for {way.name}")  # type: ignore[misc]
        for _ in range(_ROUNDS):
            for pair in pairs:
                pair.measure()
        return [pair.row() for pair in pairs]


def _pairs(stack: ExitStack, plane: str) -> Iterator[_Pair]:
    plain, secure = (stack.enter_context(gateway_sites(plane, is_secure=is_secure)) for is_secure in (False, True))
    for what, scope in (
        ("scope of this site", "{image: site1}"),
        ("two gateways, scope of another site", "{image: site2}"),
    ):
        name = f"{_PLANES[plane]}: {what}"
        yield _Pair((Way(name, plain.address("site1"), scope), Way(name, secure.address("site1"), scope)))
    if plane == "haproxy":
        yield from _reference(stack, ("127.0.0.1", plain.own("site2")))


def _reference(stack: ExitStack, service: tuple[str, int]) -> Iterator[_Pair]:
    """What TLS alone costs."""
    place = stack.enter_context(temporary_folder())
    without, with_ = (two_haproxies(stack, place, service, is_secure=secure) for secure in (False, True))
    if without and with_:
        name = "for comparison: two plain HAProxies in a row"
        yield _Pair((Way(name, without.address), Way(name, with_.address)), target="")


def _is_ready(way: Way) -> bool:
    """Whether the way works, after enough requests that its scope is cached in HAProxy."""
    return all(uvloop.run(answers(way.address, way.request)) for _ in range(_REQUESTS_TO_CACHE))
