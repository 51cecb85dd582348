"""The processor time of `exec` at real agents, by thread and process.

    python bench/exec_cost.py plain|secure [SITES]     in any checkout, with that checkout's own code

Starts agents on loopback, then reads lines "CLIENTS OPERATIONS KIND" from its input (KIND: own, new or same), submits
that many operations of each client, and prints one line of JSON: milliseconds per operation at each site, of the main
thread, of the other threads together (the store's, mostly), and of helper processes with the commands that they run;
and what all agents use in such a time without any operation (`rest_ms`).

`python -m bench operation` uses it to compare this checkout with an earlier one, in turns, so that whatever else the
machine does hits both.
"""

import asyncio
import json
import os
import sys
import time
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path.cwd()))
if Path(sys.path[1]).name == "bench":
    del sys.path[1]  # this file's folder, with modules of the same names

import uvloop

from bench.client import Client, connected, exec_request
from bench.sites import loopback
from tests.agent.rig import Rig
from tests.security.sites import all_up

MAIN, OTHERS, HELPERS = "main thread", "other threads", "helpers and commands"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_REST_S = 3.0
_WARM_UP = 4  # operations of each client that do not count
_SETTLE_S = 0.3  # what follows the last answers belongs to the operations
_turns = count()


def used_ms(agent: int) -> dict[str, float]:
    """The processor time that an agent has used so far: by its threads, and by its helper processes."""
    used = {MAIN: 0.0, OTHERS: 0.0, HELPERS: 0.0}
    for task in Path(f"/proc/{agent}/task").iterdir():
        used[MAIN if task.name == str(agent) else OTHERS] += _on_cpu_ms(task)
    for helper in _descendants(agent):
        try:
            own_ms = _on_cpu_ms(Path(f"/proc/{helper}"))
            fields = Path(f"/proc/{helper}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended, and its parent has its time
        used[HELPERS] += own_ms + sum(map(int, fields[13:15])) * 1000 / _TICKS_PER_S
    return used


def _on_cpu_ms(process: Path) -> float:
    return int((process / "schedstat").read_text().split()[0]) / 1e6


def _descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            found += [child, *_descendants(child)]
    return found


def resting_ms_per_s(rig: Rig) -> float:
    """What all agents use together in a second without operations: heartbeats, ticks."""
    time.sleep(_REST_S)  # what follows their start
    before = [used_ms(process.pid) for process in rig.processes.values()]
    time.sleep(_REST_S)
    after = [used_ms(process.pid) for process in rig.processes.values()]
    return (
        sum(new[part] - old[part] for old, new in zip(before, after, strict=True) for part in (MAIN, OTHERS)) / _REST_S
    )


async def measured(rig: Rig, rest_ms_per_s: float, clients: int, operations: int, kind: str) -> dict[str, object]:
    turn = next(_turns)

    def resource(client: int, number: int) -> str:
        return {"own": f"own-{client}", "new": f"new-{turn}-{client}-{number}", "same": "same"}[kind]

    async with connected(rig, "site1", clients) as connections:

        async def client(number: int, connection: Client, first: int, times: int) -> None:
            for place in range(first, first + times):
                await connection.exec(exec_request(rig, resource(number, place)), len(rig.names))

        async def all_clients(first: int, times: int) -> None:
            await asyncio.gather(*(client(number, one, first, times) for number, one in enumerate(connections)))

        await all_clients(0, _WARM_UP)
        before = {name: used_ms(process.pid) for name, process in rig.processes.items()}
        began_s = time.perf_counter()
        await all_clients(_WARM_UP, operations)
        took_s = time.perf_counter() - began_s
        await asyncio.sleep(_SETTLE_S)
        after = {name: used_ms(process.pid) for name, process in rig.processes.items()}
    done = clients * operations
    used = {
        site: {part: round((ms - before[site][part]) / done, 4) for part, ms in parts.items()}
        for site, parts in after.items()
    }
    return {"per_s": done / took_s, "sites": used, "rest_ms": rest_ms_per_s * (took_s + _SETTLE_S) / done}


def main(security: str, sites: int) -> None:
    names = tuple(f"site{number}" for number in range(1, sites + 1))
    with loopback(names, secure=security == "secure") as rig:
        rig.start()
        all_up(rig)
        rest_ms_per_s = resting_ms_per_s(rig)
        print("ready", flush=True)
        for line in sys.stdin:
            clients, operations, kind = line.split()
            print(json.dumps(uvloop.run(measured(rig, rest_ms_per_s, int(clients), int(operations), kind))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3)
