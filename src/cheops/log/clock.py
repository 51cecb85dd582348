"""A hybrid logical clock: physical time where it moves forward, a counter where it does not.

Law: a stamp given after others were seen is greater than all of them, however the wall clock skews or
jumps. So ordering by stamp extends causality. Pure: a clock is a value, the time is an argument.
"""

from typing import NamedTuple

from cheops.log.operation import Origin, Stamp


class Clock(NamedTuple):
    """The greatest time seen so far."""

    time_ms: int = 0
    counter: int = 0

    def tick(self, now_ms: int) -> "Clock":
        """The clock for the next stamp."""
        return Clock(now_ms, 0) if now_ms > self.time_ms else Clock(self.time_ms, self.counter + 1)

    def seen(self, stamp: Stamp) -> "Clock":
        """The clock after somebody else's stamp was seen."""
        return max(self, Clock(stamp.time_ms, stamp.counter))

    def stamp(self, origin: Origin) -> Stamp:
        return Stamp(self.time_ms, self.counter, origin)
