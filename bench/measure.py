"""Timing: an action and its reference in turns, medians, clients under load, and directories on a real disk."""

import asyncio
import shutil
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

# What a client does, from its number and the turn.
ClientAction = Callable[[int, int], Awaitable[object]]

_WARM_UP = 5  # turns per client that are not measured


async def per_second(action: ClientAction, clients: int, seconds: float) -> float:
    """Actions per second of all clients together. Each client does one at a time."""
    warm = asyncio.Barrier(clients)
    spans = await asyncio.gather(*(_client(action, number, warm, seconds) for number in range(clients)))
    done = sum(span[2] for span in spans)
    return done / (max(span[1] for span in spans) - min(span[0] for span in spans))


async def _client(action: ClientAction, number: int, warm: asyncio.Barrier, seconds: float) -> tuple[float, float, int]:
    for turn in range(_WARM_UP):
        await action(number, turn)
    await warm.wait()
    start = now = time.perf_counter()
    turn = _WARM_UP
    while now - start < seconds:
        await action(number, turn)
        turn += 1
        now = time.perf_counter()
    return start, now, turn - _WARM_UP


async def each_s(action: Callable[[int], Awaitable[object]], turns: Iterable[int]) -> list[float]:
    """Seconds of each turn, one after the other."""
    took = []
    for turn in turns:
        start = time.perf_counter()
        await action(turn)
        took.append(time.perf_counter() - start)
    return took


Action = Callable[[], object]


def seconds(action: Action, calls: int) -> float:
    """Seconds per call, over a number of calls in a row."""
    start = time.perf_counter()
    for _ in range(calls):
        action()
    return (time.perf_counter() - start) / calls


def compare(action: Action, reference: Action, *, calls: int, rounds: int = 15) -> tuple[float, float]:
    """Median seconds per call of both, measured alternately so that a busy moment hits both."""
    seconds(action, 1), seconds(reference, 1)  # warm up
    pairs = [(seconds(action, calls), seconds(reference, calls)) for _ in range(rounds)]
    return statistics.median(pair[0] for pair in pairs), statistics.median(pair[1] for pair in pairs)


def median_of_single_calls(action: Action, *, rounds: int = 7) -> float:
    """Median seconds of single calls, for things that are called once."""
    return statistics.median(seconds(action, 1) for _ in range(rounds))


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values is."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def human(value_s: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value_s >= scale:
            return f"{value_s / scale:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns"


_BASE = Path(__file__).parents[1] / "build" / "bench"


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A new directory on a real disk: /tmp may be in memory, where a sync costs nothing."""
    _BASE.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=_BASE))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with suppress(OSError):  # others may be in use
            _BASE.rmdir()


def processes_in(place: Path) -> list[int]:
    """The processes whose working directory this is."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and (entry / "cwd").readlink() == place:
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids
