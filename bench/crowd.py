"""Whether an operation costs more where 1,000 sites are known than where 3 are.

Three agents whose catalogue, as kept on the disk, names 997 more sites that do not answer; beside three that
know only each other. In process, for what others would say: a mesh that hears from all of its 1,000.
"""

import contextlib
import statistics
import time
from collections.abc import Iterable, Iterator

import uvloop

from bench.agents import SITES, cpu_s, loopback
from bench.client import Client, connected, exec_request
from bench.crowd_mesh import Heard
from bench.load import each_s
from bench.measure import human
from bench.report import Section
from cheops.store.codec import decode_plain
from cheops.store.sqlite import SQLiteStore
from cheops.sync.heartbeat import Entry, Saved, encode
from tests.agent.rig import Rig

FEW, MANY = 3, 1_000
_ROUNDS, _PER_ROUND, _READY = 10, 15, 40
_IDLE_S = 5.0
_PERIODS = 200
_MESH_NOTE = "mesh"  # under which an agent keeps its catalogue


def crowd_section() -> Section:
    with _knowing(FEW) as few, _knowing(MANY) as many:
        latencies, cpus = uvloop.run(_execs((few, many)))
        idle = [_idle_share(rig) for rig in (few, many)]
    costs = [_mesh_costs(sites) for sites in (FEW, MANY)]
    look, resolve, probe, answer = zip(*costs, strict=True)
    rows = (
        ("exec of `true` at three sites, median", *_compared(latencies), "as with 3"),
        ("processor time of the agent that was asked, per operation", *_compared(cpus), "as with 3"),
        ("in process, all sites alive: find the sites of a scope", *_compared(resolve), "as with 3"),
        ("in process, all sites alive: look who there is, at most once a second", *_compared(look), ""),
        ("processor time of an idle agent, per second", *_compared(idle), ""),
        ("in process, all sites alive: one period of heartbeats", *_compared(probe), ""),
        ("in process, all sites alive: answer a heartbeat", *_compared(answer), ""),
    )
    return Section("agent-crowd", ("what", "3 sites known", "1,000 sites known", "ratio", "target"), rows)


def _compared(values: Iterable[float]) -> tuple[str, str, str]:
    few, many = values
    return human(few), human(many), f"{many / few:.2f} x"


# -- agents ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _knowing(sites: int) -> Iterator[Rig]:
    """Three agents at work, whose catalogue has so many sites."""
    with loopback() as rig:
        for name in SITES:
            _keep_catalogue(rig, name, sites - len(SITES))
        rig.start()
        yield rig


def _keep_catalogue(rig: Rig, name: str, others: int) -> None:
    entries = tuple(
        Entry(f"far{number}", "1", f"http://127.1.{number // 250}.{number % 250 + 1}:9", 1, "1.0")
        for number in range(others)
    )
    path = rig.folder(name) / "data" / "store.db"
    path.parent.mkdir()
    with contextlib.closing(SQLiteStore(path, name)) as store:
        store.put_local(_MESH_NOTE, decode_plain(encode(Saved(entries=entries))))


async def _execs(rigs: tuple[Rig, ...]) -> tuple[list[float], list[float]]:
    """Median seconds, and seconds of the processor; the rigs in turns."""
    took: list[list[float]] = [[] for _ in rigs]
    used = [0.0 for _ in rigs]
    async with contextlib.AsyncExitStack() as stack:
        clients = [(await stack.enter_async_context(connected(rig, "site1")))[0] for rig in rigs]
        for rig, client in zip(rigs, clients, strict=True):
            await _batch(rig, client, _READY)
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
    """Medians: look who there is, find the sites of a scope, go through a period, answer a probe."""
    heard = Heard(sites)
    for _ in range(_PERIODS):  # until it has heard of everybody
        heard.period()
    looks, resolves, periods, answers = [], [], [], []
    for _ in range(_PERIODS):
        periods.append(heard.period())
        looks.append(heard.look())
        resolves.append(heard.resolve())
        answers.append(heard.answer())
    return tuple(map(statistics.median, (looks, resolves, periods, answers)))
