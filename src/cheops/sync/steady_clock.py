"""Time as the mesh counts it: without the moments in which this site itself stood still.

A process that was stopped, swapped out or starved sees all its probes time out at once and all its news
grow old. That is no evidence against others, so such a gap does not count as time.
"""

from cheops.sync.mesh_settings import Now


class SteadyClock:
    """`pauses` tells whether an interval had one in it."""

    def __init__(self, longest_gap_ms: float) -> None:
        self._longest_gap_ms = longest_gap_ms
        self._paused_ms = 0.0
        self._ticked_ms: float | None = None
        self.pauses = 0

    def tick(self, now: Now) -> float:
        """The time at a tick; ticks come regularly unless we stood still."""
        if self._ticked_ms is not None and now.mono_ms - self._ticked_ms > self._longest_gap_ms:
            self._paused_ms += now.mono_ms - self._ticked_ms
            self.pauses += 1
        self._ticked_ms = now.mono_ms
        return self.time_ms(now)

    def time_ms(self, now: Now) -> float:
        return now.mono_ms - self._paused_ms
