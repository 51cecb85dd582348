"""How often somebody may ask: a bucket of so many requests, which fills again at a steady rate.

Pure but for the clock that is handed in. There is a bucket for each who asks. Their number is bounded: the
one that was not used for longest goes, and would be full again anyway.
"""

from collections import OrderedDict
from collections.abc import Callable

MOST_BUCKETS = 10_000


class RateLimiter:
    def __init__(self, rate: float, burst: float, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._now_s = now_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what was in it, and when

    def take(self, who: str) -> float:
        """One request; 0 if it may be made, else the seconds until the next may."""
        now_s = self._now_s()
        left, at_s = self._left.get(who, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._rate)
        wait_s = 0.0 if left >= 1 else (1 - left) / self._rate
        self._left[who] = (left if wait_s else left - 1, now_s)
        self._left.move_to_end(who)
        if len(self._left) > MOST_BUCKETS:
            self._left.popitem(last=False)
        return wait_s

    def __len__(self) -> int:
        return len(self._left)
