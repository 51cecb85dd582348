"""The gateway's built-in proxy compared with a direct call and with HAProxy: requests per second, added latency."""

import asyncio
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import cast

import uvloop

from bench.gateway_service import BODY
from bench.measure import each_s, human, per_second, temporary_folder
from bench.plain_proxies import plain_haproxy
from bench.report import Section
from bench.sites import gateway_sites
from tests.agent.rig import until

CONNECTIONS = 32
_ROUNDS, _LOAD_S, _SAMPLES = 5, 1.5, 500


@dataclass(frozen=True)
class Way:
    """A way to the service, and the scope of its requests."""

    name: str
    address: tuple[str, int]
    scope: str = ""

    @property
    def request(self) -> bytes:
        scope = f"Scope: {self.scope}\r\n" if self.scope else ""
        return f"GET /things HTTP/1.1\r\nHost: service\r\nAccept: */*\r\n{scope}\r\n".encode()


def run() -> Iterator[Section]:
    with ExitStack() as stack:
        ways = list(stack.enter_context(_ways()))
        rates: dict[str, list[float]] = {way.name: [] for way in ways}
        times: dict[str, list[float]] = {way.name: [] for way in ways}
        for _ in range(_ROUNDS):  # in turns, so that a busy moment hits all
            for way in ways:
                rate, took = uvloop.run(measured(way))
                rates[way.name].append(rate)
                times[way.name].append(took)
    yield _section(ways, rates, times)


def _section(ways: list[Way], rates: dict[str, list[float]], times: dict[str, list[float]]) -> Section:
    rate = {name: statistics.median(samples) for name, samples in rates.items()}
    took = {name: statistics.median(samples) for name, samples in times.items()}
    direct, haproxy = "direct", "HAProxy"
    rows = []
    for way in ways:
        name = way.name
        beside = f"{rate[name] / rate[haproxy]:.2f} x" if haproxy in rate else "HAProxy is not installed"
        added = "" if name == direct else human(max(took[name] - took[direct], 0.0))
        rows.append(
            (
                name,
                f"{rate[name]:,.0f}",
                f"{rate[name] / rate[direct]:.2f} x",
                beside,
                human(took[name]),
                added,
            )
        )
    columns = (
        "way to the service",
        f"requests/s, {CONNECTIONS} connections",
        "beside direct",
        "beside HAProxy",
        "one at a time, median",
        "added",
    )
    return Section("gateway", columns, tuple(rows))


@contextmanager
def _ways() -> Iterator[Iterator[Way]]:
    with temporary_folder() as place, ExitStack() as stack:
        stage = stack.enter_context(gateway_sites("builtin"))
        direct = ("127.0.0.1", stage.own("site1"))
        ways = [Way("direct", direct)]
        if proxy := plain_haproxy(stack, place, direct, threads=1):
            ways.append(Way("HAProxy", proxy.address))
        ways += [
            Way("gateway, no scope", stage.address("site1")),
            Way("gateway, scope of this site", stage.address("site1"), "{image: site1}"),
            Way("two gateways, scope of another site", stage.address("site1"), "{image: site2}"),
        ]
        for way in ways:
            until(lambda w=way: uvloop.run(answers(w.address, w.request)), f"for {way.name}")  # type: ignore[misc]
        yield iter(ways)


async def answers(address: tuple[str, int], request: bytes) -> bool:
    try:
        async with asyncio.timeout(5):
            client = await Client.connected(address)
            await client.send(request)
            client.close()
    except (OSError, TimeoutError, AssertionError):
        return False
    return True


async def measured(way: Way) -> tuple[float, float]:
    clients = [await Client.connected(way.address) for _ in range(CONNECTIONS)]

    async def send(number: int, _turn: int) -> None:
        await clients[number].send(way.request)

    async def send_one(_turn: int) -> None:
        await clients[0].send(way.request)

    rate = await per_second(send, CONNECTIONS, _LOAD_S)
    took = statistics.median(await each_s(send_one, range(_SAMPLES)))
    for client in clients:
        client.close()
    return rate, took


class Client(asyncio.Protocol):
    """A connection that sends one request after the other, with as little overhead as possible."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._answered: asyncio.Future[None] | None = None

    @classmethod
    async def connected(cls, address: tuple[str, int]) -> "Client":
        loop = asyncio.get_running_loop()
        _, client = await loop.create_connection(cls, *address)
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head = self._received.find(b"\r\n\r\n")
        is_whole = len(self._received) >= head + 4 + len(BODY) or not self._received.startswith(b"HTTP/1.1 200")
        if head >= 0 and is_whole and self._answered and not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._answered and not self._answered.done():
            self._answered.set_exception(error or ConnectionResetError())

    async def send(self, request: bytes) -> None:
        self._received.clear()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        await self._answered
        assert self._received.startswith(b"HTTP/1.1 200")  # noqa: S101 - a refusal is no measurement

    def close(self) -> None:
        self._answered = None
        self._transport.close()
