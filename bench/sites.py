"""Sites to measure: agents as processes on loopback or on the WAN test bed, with or without gateways."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.measure import temporary_folder
from tests.agent.rig import Rig
from tests.agent.types import COUNTER_MATRIX
from tests.gateway.stage import Stage
from tests.security.clients import configure
from tests.wan import Wan, missing

SITES = ("site1", "site2", "site3")
# Commands without a shell, so that a program is all that is started.
TYPES: dict[str, Any] = {"bench": {"allow": ["true", "date +%s%N"], "matrix": COUNTER_MATRIX}}
_CPU_CLOCK = 2  # Linux derives the clock id of a process from this and its pid: clock_getcpuclockid(3)


@contextlib.contextmanager
def loopback(sites: tuple[str, ...] = SITES, *, secure: bool = False) -> Iterator[Rig]:
    """Sites that are not started yet; their agents end with the block."""
    with temporary_folder() as place:
        rig = Rig(place / "rig", TYPES, sites, secure=secure)
        raise_limits(rig)
        with contextlib.closing(rig):
            yield rig


def raise_limits(rig: Rig) -> None:
    """A benchmark sends more requests than clients may, and a site under load must not count as down."""
    limits = {"rate": 1_000_000, "burst": 1_000_000, "site_rate": 1_000_000}
    for name in rig.names:
        configure(rig, name, clients=limits, heartbeat={"every": "500ms", "down_after": "15s"})


@contextlib.contextmanager
def on_wan(delay_ms: float = 0.0) -> Iterator[Rig]:
    """The same on a test bed of network namespaces; on loopback where that is impossible."""
    if missing():
        with loopback() as rig:
            yield rig
        return
    with temporary_folder() as place, Wan(SITES, delay_ms=delay_ms) as wan:
        rig = Rig(place / "rig", TYPES, SITES, wan)
        raise_limits(rig)
        with contextlib.closing(rig):
            yield rig


def network_note(rig: Rig) -> str:
    """A note for numbers that were not measured on the test bed."""
    return "" if rig.wan else " (loopback: no WAN test bed here)"


def rss_bytes(pid: int) -> int:
    """The memory of a process that is in RAM."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kib = next(line.split()[1] for line in lines if line.startswith("VmRSS:"))
    return int(kib) * 1024


def cpu_s(pid: int) -> float:
    """The processor time that a process has used so far, all its threads together."""
    return time.clock_gettime(~pid << 3 | _CPU_CLOCK)


@contextmanager
def gateway_sites(plane: str, *, is_secure: bool = False, **gateway: Any) -> Iterator[Stage]:
    """All of it ends with the block. `gateway`: more of its settings."""
    with temporary_folder() as place, ExitStack() as stack:
        stage = Stage(place / "rig", ("site1", "site2"), ("image",), plane=plane, secure=is_secure, gateway=gateway)
        raise_limits(stage.rig)
        stack.callback(stage.rig.close)
        for site in stage.sites:
            stack.enter_context(_service(stage.own(site)))
        stage.rig.start()
        yield stage


@contextmanager
def _service(port: int) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-m", "bench.gateway_service", str(port)])
    try:
        yield
    finally:
        process.kill()
        process.wait()
