"""How fast flows are installed in HAProxy, and how much memory they take, compared with a plain HAProxy."""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import uvloop

from bench.measure import human, processes_in, temporary_folder
from bench.plain_proxies import plain_haproxy
from bench.report import Section
from bench.sites import gateway_sites
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.runtime import RuntimeSocket

MANY = (0, 1_000, 10_000, 20_000)
_ROUNDS, _TRIES = 5, 5  # in the beginning, the agent may change the same map at the same time
_MB = 1_000_000


def run() -> Iterator[Section]:
    with gateway_sites("haproxy") as stage, temporary_folder() as place, ExitStack() as stack:
        gateway = stage.rig.folder("site1") / "data" / "gateway"
        plain = plain_haproxy(stack, place, ("127.0.0.1", stage.own("site1")))
        beside = sum(map(memory_b, plain.pids)) if plain else 0
        rows = tuple(_row(RuntimeSocket(gateway), gateway, many, beside) for many in MANY)
    yield Section("flows", _COLUMNS, rows, "Flows in HAProxy", _ABOUT)


_COLUMNS = ("flows", "installed in", "target", "memory of HAProxy", "more than a plain one", "target")
_ABOUT = (
    f"All flows of a service are installed in a running HAProxy as a whole, as after a reload; medians of {_ROUNDS} "
    "rounds. The memory is that of its master and worker (what they share counts once), beside that of a "
    "plain HAProxy that forwards to the same service."
)


def _row(runtime: RuntimeSocket, gateway: Path, many: int, beside: int) -> tuple[str, ...]:
    scopes = (f"{{image: site1 ; site{number}}}" for number in range(many))
    entries = [(haproxy_names.key_of(scope), haproxy_names.own_or_of("image")) for scope in scopes]
    took = statistics.median(uvloop.run(_installed_s(runtime, entries)) for _ in range(_ROUNDS))
    memory = sum(map(memory_b, processes_in(gateway)))
    more = f"{(memory - beside) / _MB:.1f} MB" if beside else "?"
    return f"{many:,}", human(took), "< 1 s", f"{memory / _MB:.1f} MB", more, "< 40 MB"


async def _installed_s(runtime: RuntimeSocket, entries: list[tuple[str, str]]) -> float:
    name = haproxy_names.map_of("image")
    for _ in range(_TRIES):
        begin_s = time.perf_counter()
        await runtime.replace_map(name, entries)
        took_s = time.perf_counter() - begin_s
        (worker,) = [one for one in await runtime.workers() if not one.is_old]
        known = (await runtime.command_worker(worker, f"show map {name}")).count(haproxy_names.own_or_of("image"))
        if known == len(entries):
            return took_s
    raise RuntimeError(f"HAProxy has {known:,} of {len(entries):,} flows")


def memory_b(pid: int) -> int:
    """The memory of a process, with its part of what it shares with others (PSS)."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
