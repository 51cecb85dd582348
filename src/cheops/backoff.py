"""Delays between attempts that double up to a limit, with jitter.

    backoff = Backoff(first_s=0.5, longest_s=60)
    while not await attempt():
        await asyncio.sleep(backoff.next_s())

Jitter spreads the attempts of many sites over time: sites that lose a peer at the same moment must not all come back
at the same moment.
"""

from collections.abc import Callable
from random import Random

_random = Random()  # noqa: S311 - it spreads load; nothing secret depends on it


def jittered(delay_s: float, share: float = 0.2, uniform: Callable[[float, float], float] = _random.uniform) -> float:
    """The delay, up to `share` of it shorter or longer."""
    return delay_s * uniform(1 - share, 1 + share)


class Backoff:
    """The delays of one series of attempts."""

    def __init__(
        self,
        first_s: float,
        longest_s: float,
        *,
        share: float = 0.2,
        uniform: Callable[[float, float], float] = _random.uniform,
    ) -> None:
        """`uniform` is replaced where a test, or a simulation, must know the delays."""
        self.first_s = first_s
        self.longest_s = longest_s
        self.attempts = 0  # since the last success
        self._share = share
        self._uniform = uniform

    def next_s(self) -> float:
        """How long to wait before the next attempt; counts one attempt that failed."""
        # The exponent is bounded as well: 2.0 ** 1100 is an OverflowError, after some weeks of attempts.
        delay_s = min(self.first_s * 2.0 ** min(self.attempts, 64), self.longest_s)
        self.attempts += 1
        return jittered(delay_s, self._share, self._uniform)

    def reset(self) -> None:
        """An attempt succeeded: the next series begins with the shortest delay."""
        self.attempts = 0
