"""The memory of a site: its agent, the helper processes of that, and HAProxy; when fresh, and after many resources.

Three agents in a mesh, each with HAProxy as data plane, started as users start them: each is a process of its own,
which shares nothing with another but the files of programs and libraries. PSS counts such a page in parts, one for
each process that has it.
"""

import asyncio
import contextlib
import http.client
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import uvloop

from bench.client import Client, connected, exec_request
from bench.measure import temporary_folder
from bench.report import Section
from bench.sites import SITES, TYPES, raise_limits
from tests.agent.rig import Rig, until
from tests.gateway.stage import Stage
from tests.security.clients import configure
from tests.security.sites import all_up

CLIENTS = 16
_SITE = SITES[0]
_FRESH_S, _REST_S = 8.0, 36.0  # until the workers have ended, and the agent has given back what it can
_STEPS = (1_000, 6_500)  # resources; their number from the start
TARGET_MB = 60
ROLES = AGENT, HELPERS, HAPROXY = "agent", "helpers", "HAProxy"
_AT_REST = "at rest"
_ABOUT = (
    f"Three agents, each with HAProxy as data plane, on loopback; `exec` of `true` at all three by {CLIENTS} clients,\n"
    f'each time on a new resource. "At rest" is {_REST_S:.0f} s after the last operation. PSS is from '
    "`/proc/PID/smaps_rollup`: pages\nthat several processes share, those of programs and libraries, count in parts, "
    "and more so the more agents there are;\nRSS counts them in full for each process."
)


@dataclass(frozen=True)
class Process:
    """What one process of a site has in RAM. `role`: one of ROLES."""

    role: str
    rss_bytes: int
    pss_bytes: int


def run() -> Iterator[Section]:
    rows = [row for secure in (False, True) for row in _rows(secure=secure)]
    columns = ("site1", "processes", "RSS of all", "PSS of all", *ROLES, "target")
    yield Section("memory", columns, tuple(rows), "Memory", _ABOUT)


def _rows(*, secure: bool) -> Iterator[tuple[str, ...]]:
    words = "with security" if secure else "without security"
    with _sites(secure=secure) as (rig, agent):
        time.sleep(_FRESH_S)
        yield row(f"{words}: fresh, {_AT_REST}", processes(agent))
        done = 0
        for count in _STEPS:
            uvloop.run(_exec(rig, range(done, count)))
            done = count
            yield row(f"{words}: right after {count:,} resources", processes(agent))
            time.sleep(_REST_S)
            yield row(f"{words}: {count:,} resources, {_AT_REST}", processes(agent))


@contextlib.contextmanager
def _sites(*, secure: bool) -> Iterator[tuple[Rig, int]]:
    """Running sites, and the process of the agent to measure."""
    with temporary_folder() as place:
        rig = Stage(place / "rig", SITES, ("image",), plane="haproxy", secure=secure).rig
        raise_limits(rig)
        with contextlib.closing(rig):
            agents = {}
            for site in rig.names:
                configure(rig, site, types=TYPES)
                # Not `rig.start`: a process of the fork server shares its pages with that.
                config = str(rig.folder(site) / "site.yaml")
                agents[site] = rig.start_beside(site, [sys.executable, "-m", "cheops", "agent", "--config", config])
            for site in rig.names:
                until(partial(_is_up, rig, site), f"for {site} to start")
            all_up(rig)
            yield rig, agents[_SITE].pid


def _is_up(rig: Rig, site: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        rig.request(site, "GET", "/healthz")
        return rig.haproxy(site) is not None
    return False


async def _exec(rig: Rig, numbers: range) -> None:
    """An operation on a new resource for each number, by all clients together."""
    left = iter(numbers)
    async with connected(rig, _SITE, CLIENTS) as clients:
        await asyncio.gather(*(_client(rig, client, left) for client in clients))


async def _client(rig: Rig, client: Client, left: Iterator[int]) -> None:
    for number in left:
        await client.exec(exec_request(rig, f"new-{number}"), len(rig.names))


# -- processes -------------------------------------------------------------------------------------------


def processes(agent: int) -> list[Process]:
    """Those of a site: its agent, and all that have come from it."""
    return [found for pid in _with_descendants(agent) if (found := _process(agent, pid))]


def _process(agent: int, pid: int) -> Process | None:
    try:
        name = Path(f"/proc/{pid}/comm").read_text().strip()
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None  # it has ended
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines[1:]}
    role = AGENT if pid == agent else HAPROXY if name == "haproxy" else HELPERS
    return Process(role, sizes["Rss"], sizes["Pss"])


def _with_descendants(pid: int) -> list[int]:
    found = [pid]
    with contextlib.suppress(OSError):  # a command may have ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _with_descendants(int(child))
    return found


def row(what: str, found: Sequence[Process]) -> tuple[str, ...]:
    """What all of a site take; the target is for a site at rest."""
    parts = [sum(one.pss_bytes for one in found if one.role == role) for role in ROLES]
    rss_bytes = sum(one.rss_bytes for one in found)
    target = f"≤ {TARGET_MB} MB" if what.endswith(_AT_REST) else ""
    return what, str(len(found)), _mb(rss_bytes), _mb(sum(parts)), *map(_mb, parts), target


def _mb(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
