"""The fast path beside a direct call, plain HAProxy and plain Envoy: requests per second, what is added, and
how much processor time a request costs the proxies. One run, in turns, medians.
"""

import asyncio
import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.agents import cpu_s
from bench.fastpath_section import DIRECT, ENVOY, HAPROXY, TWO, TWO_TLS, Kind, Taken, section
from bench.gateway import CONNECTIONS, Client, answers
from bench.load import each_s, per_second
from bench.place import folder
from bench.plain_proxies import plain_envoy, plain_haproxy, two_haproxies
from bench.processes import in_folder
from bench.report import Section
from bench.stages import started
from tests.agent.rig import until
from tests.gateway.stage import Stage

_ROUNDS, _LOAD_S, _SAMPLES = 7, 0.8, 500
SCOPES = (1, 100, 10_000)
_LEARNERS = 16
_FIRST_SEEN = 200  # samples of scopes that nobody has seen


@dataclass
class Lane:
    """A way to the service: what requests say on it, and the processes that it costs."""

    name: str
    address: tuple[str, int]
    kind: Kind = Kind.REFERENCE
    scopes: tuple[str, ...] = ("",)
    folders: tuple[Path, ...] = ()  # in which its HAProxies run
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
        """Processor time that its proxies have taken."""
        return sum(map(_cpu_s, {*self.pids, *(pid for one in self.folders for pid in in_folder(one))}))

    def taken(self) -> Taken:
        rate, p50_s, p99_s = (statistics.median(found) for found in (self.rates, self.p50, self.p99))
        cpu_s = statistics.median(self.cpu) if self.folders or self.pids else None
        return Taken(self.name, self.kind, rate, p50_s, p99_s, cpu_s)


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
        yield section([way.taken() for way in ways], CONNECTIONS, _how(), is_secure=is_secure)


def _how() -> str:
    return (
        f"Medians of {_ROUNDS} rounds, in each of which all ways are taken in turn: {_SAMPLES} requests one "
        f"after the other ({_FIRST_SEEN} where each has a scope that nobody has seen), then {_LOAD_S:g} s on "
        f"{CONNECTIONS} open connections, each with one request at a time."
    )


async def _measured(way: Lane) -> None:
    clients = [await Client.connected(way.address) for _ in range(CONNECTIONS)]
    done = 0

    async def ask(number: int, turn: int) -> None:
        nonlocal done
        request = way.request(turn * CONNECTIONS + number)
        try:
            await clients[number].ask(request)
        except (OSError, RuntimeError):  # it was closed, as any may be between two requests
            clients[number] = await Client.connected(way.address)
            await clients[number].ask(request)
        done += 1

    async def ask_one(turn: int) -> None:
        await ask(0, turn)

    took = sorted(await each_s(ask_one, range(_FIRST_SEEN if way.is_first_seen else _SAMPLES)))
    way.p50.append(took[len(took) // 2])
    way.p99.append(took[len(took) * 99 // 100])
    # Once on each connection: the time of handshakes is not that of requests.
    await asyncio.gather(*(ask(number, turn=0) for number in range(CONNECTIONS)))
    before, done = way.cpu_s(), 0
    way.rates.append(await per_second(ask, CONNECTIONS, _LOAD_S))
    way.cpu.append((way.cpu_s() - before) / max(done, 1))
    for client in clients:
        client.close()


@contextmanager
def _ways(*, is_secure: bool) -> Iterator[list[Lane]]:
    with folder() as place, ExitStack() as stack:
        fast = stack.enter_context(started("haproxy", is_secure=is_secure, flows=50_000))
        own = stack.enter_context(started("builtin", is_secure=is_secure))
        direct = ("127.0.0.1", fast.own("site1"))
        ways = [
            Lane(DIRECT, direct),
            *_plain(stack, place, direct, is_secure=is_secure),
            *_fast(fast),
            *_by_agents(own),
        ]
        for way in ways:
            until(lambda w=way: uvloop.run(answers(w.address, w.request(0))), f"for {way.name}")  # type: ignore[misc]
            if way.folders and way.scopes != ("",):
                uvloop.run(_learned(way))
        yield ways


def _plain(stack: ExitStack, place: Path, service: tuple[str, int], *, is_secure: bool) -> Iterator[Lane]:
    for name, proxy in (
        (HAPROXY, plain_haproxy(stack, place, service)),
        (TWO_TLS if is_secure else TWO, two_haproxies(stack, place, service, is_secure=is_secure)),
        (ENVOY, plain_envoy(stack, place, service)),
    ):
        if proxy:
            yield Lane(name, proxy.address, pids=proxy.pids)


def _fast(stage: Stage) -> Iterator[Lane]:
    here = stage.address("site1")
    one, other = (stage.rig.folder(site) / "data" / "gateway" for site in stage.sites)
    yield Lane("Cheops, local, no scope", here, Kind.LOCAL, folders=(one,))
    for kind, site, places in (
        (Kind.LOCAL, "site1", (one,)),
        (Kind.SHARED, "site2", (one, other)),
    ):
        for count in SCOPES:
            name = f"Cheops, {kind.name.lower()}, {count:,} scope{'s' if count > 1 else ''}"
            scopes = tuple(_spelled(site, number) for number in range(count))
            yield Lane(name, here, kind, scopes, folders=places)
    yield Lane(
        "Cheops, first-seen scopes",
        here,
        Kind.AGENT,
        folders=(one,),
        pids=(stage.pid("site1"),),
        is_first_seen=True,
    )


def _by_agents(stage: Stage) -> Iterator[Lane]:
    here, agents = stage.address("site1"), tuple(stage.pid(site) for site in stage.sites)
    yield Lane("Cheops builtin, local", here, Kind.AGENT, ("{image: site1}",), pids=agents[:1])
    yield Lane("Cheops builtin, shared", here, Kind.AGENT, ("{image: site2}",), pids=agents)


def _spelled(site: str, number: int) -> str:
    """A scope that means the same and is another text."""
    return f"{{image:{' ' * (number % 100)} {site}{' ' * (number // 100)} }}"


async def _learned(way: Lane) -> None:
    """All its scopes asked until HAProxy knows them."""

    async def asked(first: int) -> None:
        client = await Client.connected(way.address)
        for number in range(first, len(way.scopes), _LEARNERS):
            await client.ask(way.request(number))
        client.close()

    for _ in range(2):
        await asyncio.gather(*(asked(first) for first in range(min(_LEARNERS, len(way.scopes)))))
        await asyncio.sleep(2.0)
