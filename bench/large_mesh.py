"""Whether an operation costs more in a mesh of 1,000 sites than in one of 3.

Three agents whose stored site list has 997 more sites that do not respond, compared with three that have only each
other. In process, with virtual time: a mesh that receives heartbeats from all of its 1,000 peers.
"""

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import cycle, islice, pairwise
from random import Random

import uvloop

from bench.client import Client, connected, exec_request
from bench.measure import each_s, human
from bench.report import Section
from bench.sites import SITES, cpu_s, loopback
from cheops.peers.heartbeat import Coordinate, Heartbeat, Pair, SavedMesh, SiteRecord, decode, encode
from cheops.peers.mesh import Mesh
from cheops.peers.settings import MeshSettings, Now
from cheops.scope.parser import parse
from cheops.scope.route import resolve
from cheops.store.codec import decode_plain
from cheops.store.sqlite import SQLiteStore
from tests.agent.rig import Rig

_WALL_MS = 1_700_000_000_000.0
_SCOPE = "site1 & site2 & site3"


class SimulatedMesh:
    """The mesh of site1, and the heartbeats of all other sites."""

    def __init__(self, sites: int) -> None:
        self._random = Random(1)
        self._settings = MeshSettings()
        entries = [
            SiteRecord(f"site{number}", "1", f"http://10.0.0.1:{1_000 + number}", 1, "1.0")
            for number in range(1, sites + 1)
        ]
        self._now_ms = 0.0
        self._own, *self._others = entries
        self._mesh = Mesh(self._own, {}, self._now(), self._settings, SavedMesh(self._own, tuple(self._others)))
        self._mesh.interest(("site2", "site3"))
        self._turns = cycle(self._others)
        self._beat = 0

    def period(self) -> float:
        """Seconds for one period of the mesh: choose sites, create the probes, and process the responses."""
        self._now_ms += 1.2 * self._settings.period_ms
        start = time.perf_counter()
        probes, _ = self._mesh.tick(self._now(), self._random.randrange)
        spent_s = time.perf_counter() - start
        self._now_ms += 20
        for probe in probes:
            response = self._heartbeat_of(probe.to_site)
            start = time.perf_counter()
            encode(probe.payload)
            self._mesh.probe_answered(probe.id, decode(response), self._now())
            spent_s += time.perf_counter() - start
        return spent_s

    def answer(self) -> float:
        """Seconds to respond to the probe of a peer."""
        probe = self._heartbeat_of(next(self._turns).name)
        start = time.perf_counter()
        answer, _ = self._mesh.received_probe(decode(probe), self._now())
        encode(answer)
        return time.perf_counter() - start

    def look(self) -> float:
        """Seconds to list the sites, which the agent does at most once a second."""
        start = time.perf_counter()
        self._snapshot = self._mesh.snapshot(self._now())
        return time.perf_counter() - start

    def resolve(self) -> float:
        """Seconds to find the sites that a request names, as the agent does for each."""
        start = time.perf_counter()
        resolve(parse(_SCOPE), None, self._snapshot)
        return time.perf_counter() - start

    def _now(self) -> Now:
        return Now(self._now_ms, _WALL_MS + self._now_ms)

    def _heartbeat_of(self, site: str) -> bytes:
        settings = self._settings
        beat = self._beat = max(self._beat + 1, int(self._now().wall_ms))
        peers = list(islice(self._turns, settings.beats_per_message))
        near = peers[: settings.pairs_per_message]
        heartbeat = Heartbeat(
            site,
            "1",
            1,
            beat,
            self._now().wall_ms,
            seen=(self._mesh.own.revision, 1),
            coordinate=self._place(),
            beats=tuple({entry.name: (entry.name, beat) for entry in peers}.values()),
            pairs=tuple(self._pair(one, other, beat) for one, other in pairwise(near)),
            places=tuple((entry.name, beat, self._place()) for entry in peers[: settings.places_per_message]),
        )
        return encode(heartbeat)

    def _pair(self, one: SiteRecord, other: SiteRecord, beat: int) -> Pair:
        return one.name, other.name, 5 + 50 * self._random.random(), beat

    def _place(self) -> Coordinate:
        x, y, z = (100 * self._random.random() for _ in range(3))
        return Coordinate(x, y, z, 1.0, 0.2)


FEW, MANY = 3, 1_000
_ROUNDS, _PER_ROUND, _WARM_UP = 10, 15, 40
_IDLE_S = 5.0
_PERIODS = 200
_MESH_NOTE = "mesh"  # the note in which an agent stores its site list


def large_mesh_section() -> Section:
    with _agents_with(FEW) as few, _agents_with(MANY) as many:
        latencies, cpus = uvloop.run(_execs((few, many)))
        idle = [_idle_share(rig) for rig in (few, many)]
    costs = [_mesh_costs(sites) for sites in (FEW, MANY)]
    look, resolve, probe, answer = zip(*costs, strict=True)
    rows = (
        ("exec of `true` at three sites, median", *_compared(latencies), "as with 3"),
        ("processor time of the agent that gets the request, per operation", *_compared(cpus), "as with 3"),
        ("in process, all sites alive: find the sites of a scope", *_compared(resolve), "as with 3"),
        ("in process, all sites alive: list the sites, at most once a second", *_compared(look), ""),
        ("processor time of an idle agent, per second", *_compared(idle), ""),
        ("in process, all sites alive: one period of heartbeats", *_compared(probe), ""),
        ("in process, all sites alive: answer a heartbeat", *_compared(answer), ""),
    )
    return Section("agent-large-mesh", ("what", "3 sites known", "1,000 sites known", "ratio", "target"), rows)


def _compared(values: Iterable[float]) -> tuple[str, str, str]:
    few, many = values
    return human(few), human(many), f"{many / few:.2f} x"


# -- agents ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _agents_with(sites: int) -> Iterator[Rig]:
    """Three running agents, whose site list has this many sites."""
    with loopback() as rig:
        for name in SITES:
            _store_site_list(rig, name, sites - len(SITES))
        rig.start()
        yield rig


def _store_site_list(rig: Rig, name: str, others: int) -> None:
    entries = tuple(
        SiteRecord(f"far{number}", "1", f"http://127.1.{number // 250}.{number % 250 + 1}:9", 1, "1.0")
        for number in range(others)
    )
    path = rig.folder(name) / "data" / "store.db"
    path.parent.mkdir()
    with contextlib.closing(SQLiteStore(path, name)) as store:
        store.put_note(_MESH_NOTE, decode_plain(encode(SavedMesh(entries=entries))))


async def _execs(rigs: tuple[Rig, ...]) -> tuple[list[float], list[float]]:
    """Median seconds, and seconds of the processor; the rigs in turns."""
    took: list[list[float]] = [[] for _ in rigs]
    used = [0.0 for _ in rigs]
    async with contextlib.AsyncExitStack() as stack:
        clients = [(await stack.enter_async_context(connected(rig, "site1")))[0] for rig in rigs]
        for rig, client in zip(rigs, clients, strict=True):
            await _batch(rig, client, _WARM_UP)
        for _ in range(_ROUNDS):
            for place, (rig, client) in enumerate(zip(rigs, clients, strict=True)):
                before_s = cpu_s(rig.processes["site1"].pid)
                took[place] += await _batch(rig, client, _PER_ROUND)
                used[place] += cpu_s(rig.processes["site1"].pid) - before_s
    count = _ROUNDS * _PER_ROUND
    return [statistics.median(each) for each in took], [each / count for each in used]


async def _batch(rig: Rig, client: Client, count: int) -> list[float]:
    request = exec_request(rig, "one")
    return await each_s(lambda _turn: client.exec(request, len(SITES)), range(count))


def _idle_share(rig: Rig) -> float:
    pid = rig.processes["site1"].pid
    before_s = cpu_s(pid)
    time.sleep(_IDLE_S)
    return (cpu_s(pid) - before_s) / _IDLE_S


# -- in process ------------------------------------------------------------------------------------------


def _mesh_costs(sites: int) -> tuple[float, ...]:
    """Medians: list the sites, find the sites of a scope, run one period, respond to a probe."""
    mesh = SimulatedMesh(sites)
    for _ in range(_PERIODS):  # until every site has sent a heartbeat
        mesh.period()
    looks, resolves, periods, answers = [], [], [], []
    for _ in range(_PERIODS):
        periods.append(mesh.period())
        looks.append(mesh.look())
        resolves.append(mesh.resolve())
        answers.append(mesh.answer())
    return tuple(map(statistics.median, (looks, resolves, periods, answers)))
