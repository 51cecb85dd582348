"""Time small things fairly: the thing and its reference in turns, many times, medians."""

import statistics
import time
from collections.abc import Callable, Sequence

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
    """The value below which that share of them lies."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def human(value_s: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value_s >= scale:
            return f"{value_s / scale:.3g} {unit}"
    return f"{value_s / 1e-9:.3g} ns"
