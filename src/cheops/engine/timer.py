"""When something may be tried again: delays that double up to a limit, in the time that the engine is given.

The engine does not use `cheops.backoff`: it must not draw random numbers, or the simulator could not play a history
again from its seed. Jitter is not missed here, because the agents' ticks are not aligned.
"""


class RetryTimer:
    """Not due before a time, which moves further away with each attempt that failed."""

    __slots__ = ("_at_ms", "_delay_ms", "_first_ms", "_longest_ms")

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._at_ms = 0  # due from this time on
        self._delay_ms = 0  # the last delay; 0: no attempt has failed since the last success

    def is_due(self, now_ms: int) -> bool:
        # A time further away than any delay means that the wall clock was set back: do not wait for it to catch up.
        return not 0 < self._at_ms - now_ms <= self._longest_ms

    @property
    def is_backing_off(self) -> bool:
        return self._delay_ms > 0

    def back_off(self, now_ms: int) -> None:
        """An attempt begins, or failed: the next one is due after twice the last delay."""
        self._delay_ms = min(max(self._first_ms, self._delay_ms * 2), self._longest_ms)
        self._at_ms = now_ms + self._delay_ms

    def wait_first(self, now_ms: int) -> None:
        """Not due before the first delay has passed; a longer wait that is under way stays."""
        self._at_ms = max(self._at_ms, now_ms + self._first_ms)

    def wait_longest(self, now_ms: int) -> None:
        self._at_ms = now_ms + self._longest_ms

    def reset_delay(self) -> None:
        """Something succeeded: the next delay is the first one again. A wait that is under way stays."""
        self._delay_ms = 0

    def expire(self) -> None:
        """Due at once."""
        self._at_ms = 0
