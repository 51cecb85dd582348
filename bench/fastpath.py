"""The fast path against a direct call, plain HAProxy and plain Envoy: throughput, added latency, processor time.

All are measured in one run, in turns, as medians; `section` turns the numbers into a table, a picture and a text
that says which targets they reach.
"""

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

import uvloop

from bench.charts import BarChart, Mark, Row
from bench.gateway import CONNECTIONS, Client, answers
from bench.measure import each_s, human, per_second, processes_in, temporary_folder
from bench.plain_proxies import plain_envoy, plain_haproxy, two_haproxies
from bench.report import Section
from bench.sites import cpu_s, gateway_sites
from tests.agent.rig import until
from tests.gateway.stage import Stage

DIRECT, HAPROXY, ENVOY = "direct", "plain HAProxy", "plain Envoy"
TWO, TWO_TLS = "two plain HAProxies in a row", "two plain HAProxies in a row, TLS"
OF_HAPROXY, OF_ENVOY = 0.95, 2.0  # the targets


class Kind(IntEnum):
    """The kind of a way to the service; the picture groups them by this."""

    REFERENCE = 0
    LOCAL = 1
    SHARED = 2
    AGENT = 3  # the agent handles each request


@dataclass(frozen=True)
class Measurement:
    """The medians of a way to the service."""

    name: str
    kind: Kind
    rate: float  # requests per second
    p50_s: float
    p99_s: float
    cpu_s: float | None  # of its proxies, per request; None where there are none


def section(ways: Sequence[Measurement], connections: int, how: str, *, is_secure: bool) -> Section:
    """`how` describes the measurement. The first way is the direct one."""
    rates = {way.name: way.rate for way in ways}
    columns = (
        "way to the service",
        f"requests/s, {connections} connections",
        "beside plain HAProxy",
        "beside plain Envoy",
        "added, p50",
        "added, p99",
        "processor time of the proxies, per request",
    )
    return Section(
        "fastpath-tls" if is_secure else "fastpath",
        columns,
        tuple(_row(way, ways[0], rates) for way in ways),
        about=" ".join((_between(is_secure=is_secure), how, targets(ways))),
        picture=_picture(ways, rates, connections, is_secure=is_secure),
    )


def _row(way: Measurement, direct: Measurement, rates: dict[str, float]) -> tuple[str, ...]:
    beside = [f"{way.rate / rates[other]:.2f} x" if other in rates else "not installed" for other in (HAPROXY, ENVOY)]
    added = ("", "")
    if way is not direct:
        added = (
            human(max(way.p50_s - direct.p50_s, 0.0)),
            human(max(way.p99_s - direct.p99_s, 0.0)),
        )
    cpu = "" if way.cpu_s is None else human(way.cpu_s)
    return way.name, f"{way.rate:,.0f}", *beside, *added, cpu


def _between(*, is_secure: bool) -> str:
    if is_secure:
        return (
            "**With mutual TLS 1.3 between the sites**, and in the same way between the two plain HAProxies "
            "in a row. Clients and services speak plain HTTP, so what stays at one site has no TLS."
        )
    return "**Without security**: all speak plain HTTP."


def _picture(ways: Sequence[Measurement], rates: dict[str, float], connections: int, *, is_secure: bool) -> BarChart:
    rows = (
        Row(
            way.name,
            ((way.rate, f"{way.rate:,.0f}"), None if way.cpu_s is None else (way.cpu_s, human(way.cpu_s))),
            way.kind,
        )
        for way in ways
    )
    return BarChart(
        f"The fast path, {'with mutual TLS' if is_secure else 'without TLS'} between sites",
        (f"requests per second, {connections} connections", "processor time of the proxies, per request"),
        tuple(rows),
        tuple(
            Mark(0, rates[other] * share, f"target: {share:g} times {other}")
            for other, share in ((ENVOY, OF_ENVOY), (HAPROXY, OF_HAPROXY))
            if other in rates
        ),
    )


# -- targets ----------------------------------------------------------------------------------------------


def targets(ways: Sequence[Measurement]) -> str:
    """Which targets local and shared requests reach, in words."""
    rates = {way.name: way.rate for way in ways}
    two = next((name for name in (TWO, TWO_TLS) if name in rates), None)
    sentences = []
    for kind in (Kind.LOCAL, Kind.SHARED):
        measured = [way.rate for way in ways if way.kind is kind]
        if not measured:
            continue
        parts = [
            f"{_range(measured, rates[other])} times {other} ({_reached(measured, rates[other], target)})"
            for other, target in ((HAPROXY, OF_HAPROXY), (ENVOY, OF_ENVOY))
            if other in rates
        ]
        if kind is Kind.SHARED and two:
            parts.append(f"{_range(measured, rates[two])} times two plain HAProxies in a row")
        sentences.append(f"{kind.name.capitalize()} requests per second: {', '.join(parts)}.")
    return " ".join(sentences)


def _range(rates: Sequence[float], reference: float) -> str:
    low, high = (f"{rate / reference:.2f}" for rate in (min(rates), max(rates)))
    return low if low == high else f"{low} to {high}"


def _reached(rates: Sequence[float], reference: float, target: float) -> str:
    least = reference * target
    result = "reached" if min(rates) >= least else "reached by some" if max(rates) >= least else "not reached"
    return f"target {target:g}: {result}"


_ROUNDS, _LOAD_S, _SAMPLES = 7, 0.8, 500
SCOPES = (1, 100, 10_000)
_WARM_UP_CLIENTS = 16
_FIRST_SEEN = 200  # samples with scopes that were never used before


@dataclass
class MeasuredWay:
    """A way to the service: its requests, its processes, and its measurements."""

    name: str
    address: tuple[str, int]
    kind: Kind = Kind.REFERENCE
    scopes: tuple[str, ...] = ("",)
    folders: tuple[Path, ...] = ()  # working directories of its HAProxies
    pids: tuple[int, ...] = ()
    is_first_seen: bool = False
    used: int = 0
    rates: list[float] = field(default_factory=list)
    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def request(self, number: int) -> bytes:
        if self.is_first_seen:
            self.used += 1
            scope = f"{{image:{' ' * (self.used % 90)} site1 ;{' ' * (self.used // 90)} site1}}"
        else:
            scope = self.scopes[number % len(self.scopes)]
        line = f"Scope: {scope}\r\n" if scope else ""
        return f"GET /things HTTP/1.1\r\nHost: service\r\nAccept: */*\r\n{line}\r\n".encode()

    def cpu_s(self) -> float:
        """Processor time that its proxies have used so far."""
        return sum(map(_cpu_s, {*self.pids, *(pid for one in self.folders for pid in processes_in(one))}))

    def medians(self) -> Measurement:
        rate, p50_s, p99_s = (statistics.median(samples) for samples in (self.rates, self.p50, self.p99))
        cpu_s = statistics.median(self.cpu) if self.folders or self.pids else None
        return Measurement(self.name, self.kind, rate, p50_s, p99_s, cpu_s)


def _cpu_s(pid: int) -> float:
    with suppress(OSError):  # it has ended
        return cpu_s(pid)
    return 0.0


def run() -> Iterator[Section]:
    for is_secure in (False, True):
        with _ways(is_secure=is_secure) as ways:
            for _ in range(_ROUNDS):  # in turns, so that a busy moment hits all
                for way in ways:
                    uvloop.run(_measured(way))
        yield section([way.medians() for way in ways], CONNECTIONS, _how(), is_secure=is_secure)


def _how() -> str:
    return (
        f"Medians of {_ROUNDS} rounds, in each of which all ways are taken in turn: {_SAMPLES} requests one "
        f"after the other ({_FIRST_SEEN} where each has a scope that was never used before), then {_LOAD_S:g} s on "
        f"{CONNECTIONS} open connections, each with one request at a time."
    )


async def _measured(way: MeasuredWay) -> None:
    clients = [await Client.connected(way.address) for _ in range(CONNECTIONS)]
    done = 0

    async def send(number: int, turn: int) -> None:
        nonlocal done
        request = way.request(turn * CONNECTIONS + number)
        try:
            await clients[number].send(request)
        except (OSError, RuntimeError):  # a server may close a connection between two requests
            clients[number] = await Client.connected(way.address)
            await clients[number].send(request)
        done += 1

    async def send_one(turn: int) -> None:
        await send(0, turn)

    took = sorted(await each_s(send_one, range(_FIRST_SEEN if way.is_first_seen else _SAMPLES)))
    way.p50.append(took[len(took) // 2])
    way.p99.append(took[len(took) * 99 // 100])
    # Once on each connection: the time of handshakes is not that of requests.
    await asyncio.gather(*(send(number, turn=0) for number in range(CONNECTIONS)))
    before, done = way.cpu_s(), 0
    way.rates.append(await per_second(send, CONNECTIONS, _LOAD_S))
    way.cpu.append((way.cpu_s() - before) / max(done, 1))
    for client in clients:
        client.close()


@contextmanager
def _ways(*, is_secure: bool) -> Iterator[list[MeasuredWay]]:
    with temporary_folder() as place, ExitStack() as stack:
        fast = stack.enter_context(gateway_sites("haproxy", is_secure=is_secure, flows=50_000))
        own = stack.enter_context(gateway_sites("builtin", is_secure=is_secure))
        direct = ("127.0.0.1", fast.own("site1"))
        ways = [
            MeasuredWay(DIRECT, direct),
            *_plain(stack, place, direct, is_secure=is_secure),
            *_fast(fast),
            *_by_agents(own),
        ]
        for way in ways:
            until(lambda w=way: uvloop.run(answers(w.address, w.request(0))), f"for {way.name}")  # type: ignore[misc]
            if way.folders and way.scopes != ("",):
                uvloop.run(_fill_cache(way))
        yield ways


def _plain(stack: ExitStack, place: Path, service: tuple[str, int], *, is_secure: bool) -> Iterator[MeasuredWay]:
    for name, proxy in (
        (HAPROXY, plain_haproxy(stack, place, service)),
        (TWO_TLS if is_secure else TWO, two_haproxies(stack, place, service, is_secure=is_secure)),
        (ENVOY, plain_envoy(stack, place, service)),
    ):
        if proxy:
            yield MeasuredWay(name, proxy.address, pids=proxy.pids)


def _fast(stage: Stage) -> Iterator[MeasuredWay]:
    here = stage.address("site1")
    one, other = (stage.rig.folder(site) / "data" / "gateway" for site in stage.sites)
    yield MeasuredWay("Cheops, local, no scope", here, Kind.LOCAL, folders=(one,))
    for kind, site, places in (
        (Kind.LOCAL, "site1", (one,)),
        (Kind.SHARED, "site2", (one, other)),
    ):
        for count in SCOPES:
            name = f"Cheops, {kind.name.lower()}, {count:,} scope{'s' if count > 1 else ''}"
            scopes = tuple(_spelling(site, number) for number in range(count))
            yield MeasuredWay(name, here, kind, scopes, folders=places)
    yield MeasuredWay(
        "Cheops, first-seen scopes",
        here,
        Kind.AGENT,
        folders=(one,),
        pids=(stage.pid("site1"),),
        is_first_seen=True,
    )


def _by_agents(stage: Stage) -> Iterator[MeasuredWay]:
    here, agents = stage.address("site1"), tuple(stage.pid(site) for site in stage.sites)
    yield MeasuredWay("Cheops builtin, local", here, Kind.AGENT, ("{image: site1}",), pids=agents[:1])
    yield MeasuredWay("Cheops builtin, shared", here, Kind.AGENT, ("{image: site2}",), pids=agents)


def _spelling(site: str, number: int) -> str:
    """Another text for the same scope."""
    return f"{{image:{' ' * (number % 100)} {site}{' ' * (number // 100)} }}"


async def _fill_cache(way: MeasuredWay) -> None:
    """Send requests with all scopes until they are cached in HAProxy."""

    async def send_from(first: int) -> None:
        client = await Client.connected(way.address)
        for number in range(first, len(way.scopes), _WARM_UP_CLIENTS):
            await client.send(way.request(number))
        client.close()

    for _ in range(2):
        await asyncio.gather(*(send_from(first) for first in range(min(_WARM_UP_CLIENTS, len(way.scopes)))))
        await asyncio.sleep(2.0)
