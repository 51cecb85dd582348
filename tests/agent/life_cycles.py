"""Many short lives: `python -m tests.agent.life_cycles --cycles N [--minutes M]`.

Three real sites in one process (stores, journals, engines and links as an agent has them) create, change and delete
resources, each under a new id. What is deleted must not cost anything for ever: the run fails if the stores, the
journals or the memory at its end are larger than 1.5 times what they were after its first tenth, or if the sites use
more processor time at rest than at their start.

The backend keeps its state in memory, so that no time goes into processes of commands. Operations go through
`cheops.api.submission`, without HTTP; what sites send each other goes over loopback.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import resource
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, fields
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import uvloop
import yaml

from cheops.api.app import application
from cheops.api.guard import ConnectionGuard
from cheops.api.peers import peer_endpoint
from cheops.api.server import Servers
from cheops.api.submission import OperationRequest, execute
from cheops.backends.protocol import Backend
from cheops.config.site import read_site
from cheops.engine.events import Outcome, Result, Run, Stage, Step
from cheops.log.operation import Kind, Status, Timing
from cheops.node.node import Node
from cheops.plugins import BACKENDS, BUILTIN_BACKENDS
from cheops.ui.server import WebInterface

SITES = ("site1", "site2", "site3")
_MOST_GROWTH = 1.5
_TOMBSTONE_S = 3  # how long the sites keep what is left of a deleted resource
_IDLE_S = 2  # after which a resource leaves memory
_PATIENCE_S = 120.0
_LOOKS = 3  # at the sizes, without a difference
_KEPT_BY_TIME = 20_000  # events, if the number of cycles is not known
_REST_S = 5.0  # over which the processor time at rest is measured
_LEAST_IDLE_CPU = 0.10  # of a core, for three sites: below this a difference is noise
_TYPE: dict[str, Any] = {
    "backend": "in-memory",
    "reset": "delete",
    "matrix": [
        {"before": "set", "after": "set", "result": "take-one"},
        {"before": "set", "after": "add", "result": "take-both-keep-order"},
    ],
}


class MemoryBackend(Backend):
    """Texts by id: `set TEXT` replaces, `add TEXT` appends, `delete` removes."""

    async def start(self) -> None:
        self.texts: dict[str, str] = {}

    async def run_step(self, run: Run, step: Step) -> Outcome:
        verb, _, text = step.payload.line.partition(" ")
        if verb == "delete":
            self.texts.pop(run.resource, None)
        else:
            self.texts[run.resource] = (self.texts.get(run.resource, "") if verb == "add" else "") + text
        return Outcome(Result.OK, self.texts.get(run.resource, ""), Timing(time.time_ns() // 1_000_000, 0))

    async def read(self, rtype: str, resource: str, request: str) -> Outcome:
        del rtype, request
        return Outcome(Result.OK, self.texts.get(resource, ""))


@dataclass(frozen=True)
class Sizes:
    """What three sites take, in bytes."""

    store: int = 0
    wal: int = 0
    journal: int = 0
    replicas: int = 0
    memory: int = 0

    def __str__(self) -> str:
        return ", ".join(f"{one.name} {getattr(self, one.name) / 1e6:.1f} MB" for one in fields(self))

    def excess(self, before: "Sizes") -> list[str]:
        """What has grown too much since then."""
        pairs = {
            "store": (before.store + before.wal, self.store + self.wal),
            "journal": (before.journal, self.journal),
            "replicas": (before.replicas, self.replicas),
            "memory": (before.memory, self.memory),
        }
        return [
            f"{name} grew from {earlier / 1e6:.1f} to {now / 1e6:.1f} MB"
            for name, (earlier, now) in pairs.items()
            if now > _MOST_GROWTH * earlier
        ]


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _file_bytes(*paths: Path) -> int:
    return sum(path.stat().st_size for path in paths if path.exists())


def _memory_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


class LifeCycles:
    def __init__(self, base: Path, nodes: list[Node], workers: int) -> None:
        self._base, self.nodes = base, nodes
        self._workers = workers
        self._numbers = itertools.count(1)
        self.done = 0
        self.first: Sizes | None = None  # after the first tenth

    # -- life cycles -----------------------------------------------------------------------------------------

    async def run(self, cycles: int, end_s: float | None) -> None:
        """Until so many cycles are done, or until a time of the event loop's clock."""
        began_s = asyncio.get_running_loop().time()
        tenth_s = None if end_s is None else began_s + (end_s - began_s) / 10
        async with asyncio.TaskGroup() as group:
            workers = [group.create_task(self._worker(n, cycles, end_s)) for n in range(self._workers)]
            group.create_task(self._report(workers, cycles, tenth_s))

    async def _worker(self, number: int, cycles: int, end_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        while (n := next(self._numbers)) <= cycles and (end_s is None or loop.time() < end_s):
            await self._cycle(self.nodes[(number + n) % len(self.nodes)], f"life-{n}")
            self.done += 1

    async def _cycle(self, node: Node, id_: str) -> None:
        await _execute(node, OperationRequest(id_, "set", "set " + "x" * 200, " & ".join(SITES), "text"))
        await _execute(node, OperationRequest(id_, "add", "add " + "y" * 50))
        await _execute(node, OperationRequest(id_, "delete", "delete", kind=Kind.DELETE), everywhere=True)

    # -- numbers ---------------------------------------------------------------------------------------------

    async def _report(self, workers: list[asyncio.Task[None]], cycles: int, tenth_s: float | None) -> None:
        loop = asyncio.get_running_loop()
        shown, shown_s = 0, loop.time()
        every = 1_000 if cycles >= 5_000 else max(1, cycles // 10)
        while not all(worker.done() for worker in workers):
            await asyncio.sleep(0.1)
            if self.first is None and (self.done >= cycles // 10 if tenth_s is None else loop.time() >= tenth_s):
                self.first = self.sizes()
                _say(f"{self.done:8,} cycles: {self.first}  (the first tenth)")
            if self.done >= shown + every:
                rate, shown_now = (self.done - shown) / (loop.time() - shown_s), self.done
                _say(f"{shown_now:8,} cycles: {rate:.0f} cycles/s, {self.sizes()}, {self.counts()}")
                shown, shown_s = shown_now, loop.time()

    def sizes(self) -> Sizes:
        def size(*names: str) -> int:
            return sum(_file_bytes(*(self._base / site / "data" / name for name in names)) for site in SITES)

        return Sizes(
            size("store.db"),
            size("store.db-wal"),
            size("notify.db", "notify.db-wal"),
            size("replicas.db", "replicas.db-wal"),
            _memory_bytes(),
        )

    def counts(self) -> str:
        node = self.nodes[0]
        states = ", ".join(f"{n:,} {state}" for state, n in sorted(node.store.states().items()) if n)
        in_memory = sum(len(one.pump.site.replicas) for one in self.nodes)
        return f"in the store of {node.name}: {states or 'no resource'}; {in_memory:,} replicas in memory"

    async def at_rest(self) -> None:
        """Wait until the stores have forgotten what can be forgotten, and until nothing becomes less."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + _PATIENCE_S
        while self.resources() and loop.time() < end_s:
            await asyncio.sleep(0.5)
        before, same = None, 0
        while loop.time() < end_s and same < _LOOKS:
            await asyncio.sleep(2.0)
            now = (self.counts(), self.sizes().store, self.sizes().wal)
            same = same + 1 if now == before else 0
            before = now

    def resources(self) -> int:
        """How many resources the stores have, tombstones included."""
        return sum(sum(node.store.states().values()) for node in self.nodes)

    async def idle_cpu(self) -> float:
        """The share of a core that all sites use at rest."""
        began, began_s = _cpu_s(), time.monotonic()
        await asyncio.sleep(_REST_S)
        return (_cpu_s() - began) / (time.monotonic() - began_s)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def _execute(node: Node, wanted: OperationRequest, *, everywhere: bool = False) -> None:
    """Submit an operation, and wait until it is decided, or until all sites have run it."""
    _, sites, answers = await execute(node, wanted, _PATIENCE_S)
    missing = set(sites) if everywhere else {node.name}
    async with contextlib.aclosing(answers):
        async for answer in answers:
            if answer.stage in (Stage.DECIDED, Stage.SITE):
                if answer.status is not Status.OK:
                    raise AssertionError(f"{wanted.type} of {wanted.resource} at {answer.site}: {answer}")
                missing.discard(answer.site or node.name)
            if not missing:
                return
    raise AssertionError(f"{wanted.type} of {wanted.resource}: no answer of {missing}")


# -- the sites -----------------------------------------------------------------------------------------------


def configure(base: Path, name: str, ports: dict[str, int]) -> Path:
    folder = base / name
    folder.mkdir(parents=True)
    # Three sites share one thread here: without a longer `resend` they would send much of what is on its way again.
    limits = {"idle": f"{_IDLE_S}s", "resend": "3s", "tombstone": f"{_TOMBSTONE_S}s"}
    config = {
        "site": name,
        "listen": f"127.0.0.1:{ports[name]}",
        "data": "data",
        "security": "none",
        "peers": {other: f"http://127.0.0.1:{port}" for other, port in ports.items()},
        "types": {"text": _TYPE},
        "limits": limits,
        "clients": {"rate": 1_000_000, "burst": 1_000_000, "site_rate": 1_000_000},
        "heartbeat": {"every": "500ms", "down_after": "15s"},
    }
    path = folder / "site.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(config))))
    return path


@contextlib.asynccontextmanager
async def running_sites(base: Path) -> AsyncIterator[list[Node]]:
    BUILTIN_BACKENDS["in-memory"] = EntryPoint("in-memory", f"{MemoryBackend.__module__}:MemoryBackend", BACKENDS)
    listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in SITES}
    ports = {name: listener.getsockname()[1] for name, listener in listeners.items()}
    async with contextlib.AsyncExitStack() as stack:
        nodes = []
        for name, listener in listeners.items():
            listener.setblocking(False)
            node = Node(read_site(configure(base, name, ports)))
            await node.start()
            stack.push_async_callback(node.stop)
            app = WebInterface(application(node, None))
            servers = Servers(node, peer_endpoint(node, ConnectionGuard(node, app)), listener)
            await servers.start()
            stack.push_async_callback(servers.stop)
            stack.callback(node.databases.close)
            stack.callback(node.notifier.feed.close)
            nodes.append(node)
        async with asyncio.timeout(_PATIENCE_S):
            while any(set(node.mesh.up) != set(SITES) - {node.name} for node in nodes):
                await asyncio.sleep(0.1)
        yield nodes


def keep_events(nodes: list[Node], most: int) -> None:
    """All events that are kept anyway should be there after the first tenth. Each cycle makes more than ten."""
    for node in nodes:
        node.notifier.journal.kept = min(node.notifier.journal.kept, most)


async def _main(base: Path, cycles: int, minutes: float | None, workers: int) -> list[str]:
    async with running_sites(base) as nodes:
        lives = LifeCycles(base, nodes, workers)
        keep_events(nodes, cycles if minutes is None else _KEPT_BY_TIME)
        idle_before = await lives.idle_cpu()
        _say(f"at the start: {lives.sizes()}, {idle_before:.1%} of a core at rest")
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await lives.run(cycles, None if minutes is None else began_s + minutes * 60)
        took_s = loop.time() - began_s
        _say(f"{lives.done:,} cycles in {took_s:.0f} s: {lives.done / took_s:.0f} cycles/s")
        await lives.at_rest()
        idle_after = await lives.idle_cpu()
        end, left = lives.sizes(), lives.resources()
        _say(f"at rest: {end}, {lives.counts()}, {idle_after:.1%} of a core")
    problems = end.excess(lives.first or end)
    if left:
        problems.append(f"the stores still have {left:,} deleted resources")
    if idle_after > max(_LEAST_IDLE_CPU, _MOST_GROWTH * idle_before):
        problems.append(f"the sites use {idle_after:.1%} of a core at rest, and used {idle_before:.1%} at their start")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=1_000_000_000, metavar="N")
    parser.add_argument("--minutes", type=float, metavar="M", help="ends earlier than N cycles")
    parser.add_argument("--workers", type=int, default=12, metavar="N", help="cycles at the same time (12)")
    arguments = parser.parse_args()
    base = Path(tempfile.mkdtemp(prefix="cheops-lives-"))
    try:
        problems = uvloop.run(_main(base, arguments.cycles, arguments.minutes, arguments.workers))
    finally:
        shutil.rmtree(base, ignore_errors=True)
    for problem in problems:
        _say(f"FAILED: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
