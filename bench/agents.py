"""Agents to be measured: processes on loopback, or on the WAN test bed where that can be made."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.place import folder
from tests.agent.rig import Rig
from tests.agent.types import COUNTER_MATRIX
from tests.security.askers import configure
from tests.wan import Wan, missing

SITES = ("site1", "site2", "site3")
# Commands without a shell, so that a program is all that is started.
TYPES: dict[str, Any] = {"bench": {"allow": ["true", "date +%s%N"], "matrix": COUNTER_MATRIX}}
_CPU_CLOCK = 2  # Linux makes the number of a process's clock from this and its id: clock_getcpuclockid(3)


@contextlib.contextmanager
def loopback(sites: tuple[str, ...] = SITES, *, secure: bool = False) -> Iterator[Rig]:
    """Sites that are not started yet; their agents end with the block."""
    with folder() as place:
        rig = Rig(place / "rig", TYPES, sites, secure=secure)
        unhurried(rig)
        with contextlib.closing(rig):
            yield rig


def unhurried(rig: Rig) -> None:
    """Who measures asks more often than anybody else may, and a site under load is not down."""
    limits = {"rate": 1_000_000, "burst": 1_000_000, "site_rate": 1_000_000}
    for name in rig.names:
        configure(rig, name, clients=limits, heartbeat={"every": "500ms", "down_after": "15s"})


@contextlib.contextmanager
def on_bed(delay_ms: float = 0.0) -> Iterator[Rig]:
    """The same on a bed of network namespaces; on loopback if there can be none here."""
    if missing():
        with loopback() as rig:
            yield rig
        return
    with folder() as place, Wan(SITES, delay_ms=delay_ms) as wan:
        rig = Rig(place / "rig", TYPES, SITES, wan)
        unhurried(rig)
        with contextlib.closing(rig):
            yield rig


def network(rig: Rig) -> str:
    """A note for what was not measured on the bed."""
    return "" if rig.wan else " (loopback: no WAN test bed here)"


def rss_bytes(pid: int) -> int:
    """The memory of a process that is in RAM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kib) * 1024


def cpu_s(pid: int) -> float:
    """The processor time that a process has used so far, all its threads together."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)
