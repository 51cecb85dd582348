"""The fast path beside a direct call, plain HAProxy and plain Envoy: requests per second, what is added, and
how much processor time a request costs the proxies. One run, in turns, medians.
"""

import asyncio
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.fastpath_proxies import envoy_program, plain_envoy, plain_haproxy
from bench.gateway import CONNECTIONS, Client, answers, process
from bench.load import each_s, per_second
from bench.measure import human
from bench.place import folder
from bench.report import Section
from tests.agent.rig import until
from tests.gateway.stage import Stage
from tests.support.ports import free_ports

_ROUNDS, _LOAD_S, _SAMPLES = 3, 0.8, 500
SCOPES = (1, 100, 10_000)
_TICKS = os.sysconf("SC_CLK_TCK")
_LEARNERS = 16
_FIRST_SEEN = 200  # at a time, for scopes that nobody has seen


@dataclass
class Lane:
    """A way to the service: what requests say on it, and the processes that it costs."""

    name: str
    address: tuple[str, int]
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
        return sum(map(_cpu_s, {*self.pids, *(pid for one in self.folders for pid in _in(one))}))


def _in(place: Path) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == place:
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _cpu_s(pid: int) -> float:
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(words[11]) + int(words[12])) / _TICKS


def run() -> Iterator[Section]:
    for is_secure in (False, True):
        with ExitStack() as stack:
            ways = stack.enter_context(_ways(is_secure=is_secure))
            for _ in range(_ROUNDS):  # in turns, so that a busy moment hits all
                for way in ways:
                    uvloop.run(_measured(way))
        yield _section(ways, is_secure=is_secure)


def _section(ways: list[Lane], *, is_secure: bool) -> Section:
    rate = {way.name: statistics.median(way.rates) for way in ways}
    p50 = {way.name: statistics.median(way.p50) for way in ways}
    p99 = {way.name: statistics.median(way.p99) for way in ways}
    rows = []
    for way in ways:
        beside = [
            f"{rate[way.name] / rate[other]:.2f} x" if other in rate else "not installed"
            for other in ("plain HAProxy", "plain Envoy")
        ]
        added = (
            ("", "")
            if way.name == "direct"
            else tuple(human(max(times[way.name] - times["direct"], 0.0)) for times in (p50, p99))
        )
        cpu = human(statistics.median(way.cpu)) if way.folders or way.pids else ""
        rows.append((way.name, f"{rate[way.name]:,.0f}", *beside, *added, cpu))
    columns = (
        "way to the service",
        f"requests/s, {CONNECTIONS} connections",
        "beside plain HAProxy",
        "beside plain Envoy",
        "added, p50",
        "added, p99",
        "processor time of the proxies, per request",
    )
    return Section("fastpath-tls" if is_secure else "fastpath", columns, tuple(rows))


async def _measured(way: Lane) -> None:
    clients = [await Client.connected(way.address) for _ in range(CONNECTIONS)]
    done = 0

    async def ask(number: int, turn: int) -> None:
        nonlocal done
        try:
            await clients[number].ask(way.request(turn * CONNECTIONS + number))
            done += 1
        except (OSError, RuntimeError):  # it was closed, as any may be between two requests
            clients[number] = await Client.connected(way.address)

    async def ask_one(turn: int) -> None:
        await ask(0, turn)

    took = sorted(await each_s(ask_one, range(_FIRST_SEEN if way.is_first_seen else _SAMPLES)))
    way.p50.append(took[len(took) // 2])
    way.p99.append(took[len(took) * 99 // 100])
    before, done = way.cpu_s(), 0
    way.rates.append(await per_second(ask, CONNECTIONS, _LOAD_S))
    way.cpu.append((way.cpu_s() - before) / max(done, 1))
    for client in clients:
        client.close()


@contextmanager
def _ways(*, is_secure: bool) -> Iterator[list[Lane]]:
    with folder() as place, ExitStack() as stack:
        stages = {
            plane: Stage(
                Path(tempfile.mkdtemp(dir=place)) / "rig",
                ("site1", "site2"),
                ("image",),
                plane=plane,
                secure=is_secure,
                gateway={"flows": 50_000},
            )
            for plane in ("haproxy", "builtin")
        }
        fast, own = stages["haproxy"], stages["builtin"]
        for stage in stages.values():
            stack.callback(stage.rig.close)
            for site in stage.sites:
                stack.enter_context(
                    process([sys.executable, "-m", "bench.gateway_service", str(stage.own(site))])
                )
            stage.rig.start()
        direct = ("127.0.0.1", fast.own("site1"))
        ways = [Lane("direct", direct), *_plain(stack, place, direct)]
        places = {site: fast.rig.folder(site) / "data" / "gateway" for site in fast.sites}
        ways.append(Lane("Cheops, local, no scope", fast.address("site1"), folders=(places["site1"],)))
        for count in SCOPES:
            told = f"{count:,} scope{'s' if count > 1 else ''}"
            local = tuple(_spelled("site1", number) for number in range(count))
            shared = tuple(_spelled("site2", number) for number in range(count))
            both = (places["site1"], places["site2"])
            ways.append(
                Lane(f"Cheops, local, {told}", fast.address("site1"), local, folders=(places["site1"],))
            )
            ways.append(Lane(f"Cheops, shared, {told}", fast.address("site1"), shared, folders=both))
        agents = tuple(own.pid(site) for site in own.sites)
        ways += [
            Lane(
                "Cheops, first-seen scopes",
                fast.address("site1"),
                pids=(fast.pid("site1"),),
                is_first_seen=True,
            ),
            Lane("Cheops builtin, local", own.address("site1"), ("{image: site1}",), pids=agents[:1]),
            Lane("Cheops builtin, shared", own.address("site1"), ("{image: site2}",), pids=agents),
        ]
        for way in ways:
            until(lambda w=way: uvloop.run(answers(w.address, w.request(0))), f"for {way.name}")  # type: ignore[misc]
            if way.folders and way.scopes != ("",):
                uvloop.run(_learned(way))
        yield ways


def _plain(stack: ExitStack, place: Path, service: tuple[str, int]) -> Iterator[Lane]:
    first, second, third, admin = free_ports(4)
    if program := shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin"):
        one = plain_haproxy(stack, program, place / "one", first, service[1])
        yield Lane("plain HAProxy", ("127.0.0.1", first), pids=(one,))
        two = plain_haproxy(stack, program, place / "two", second, first)
        yield Lane("two plain HAProxies in a row", ("127.0.0.1", second), pids=(one, two))
    if program := envoy_program():
        pid = plain_envoy(stack, program, place / "envoy", (third, service[1], admin))
        yield Lane("plain Envoy", ("127.0.0.1", third), pids=(pid,))


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
