"""Load: clients that do one thing after the other, side by side, for some time; and what they got done."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable

# What client number so-and-so does as its so-manieth thing.
Action = Callable[[int, int], Awaitable[object]]

_WARM_UP = 5  # things per client that do not count


async def per_second(action: Action, clients: int, seconds: float) -> float:
    """How many were done per second by all clients together. Each waits for one before it does the next."""
    warm = asyncio.Barrier(clients)
    spans = await asyncio.gather(*(_client(action, number, warm, seconds) for number in range(clients)))
    done = sum(span[2] for span in spans)
    return done / (max(span[1] for span in spans) - min(span[0] for span in spans))


async def _client(
    action: Action, number: int, warm: asyncio.Barrier, seconds: float
) -> tuple[float, float, int]:
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
