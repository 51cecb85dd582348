"""The time that most sites agree on, as one of them knows it.

The clock of a site can be wrong for a long time: a battery is empty, NTP is not reached. Its stamps would be refused by
the other sites, or it would refuse theirs. So a site compares its clock with those of the sites that are up, its own
counted: if most of them differ from it in one direction, it takes the time of the one in the middle. Two sites that
differ do not know which of them is wrong, and each keeps its own. No single site can change the time of another whose
clock is right.

Between two comparisons the time runs on the monotonic clock, so it does not jump with the wall clock of the machine.
"""

from collections.abc import Iterable

from cheops.peers.settings import Now

_LEAST_CLOCKS = 3  # with the own one
_JUMP_MS = 500  # a wall clock that moves so much between two ticks was set


def majority_offset_ms(offsets_ms: Iterable[float]) -> float | None:
    """How much the time of most sites is ahead of ours; None if there are too few of them to know.

    `offsets_ms` are those of the other sites. Of an even number of clocks, the one of the two in the middle that is
    nearer to ours counts: half of the sites are not most of them."""
    clocks = sorted((0.0, *offsets_ms))
    if len(clocks) < _LEAST_CLOCKS:
        return None
    low, high = clocks[(len(clocks) - 1) // 2], clocks[len(clocks) // 2]
    return min(low, high, key=abs) if low * high > 0 else 0.0


class CommonClock:
    """`tolerance_ms` is how far the own clock may be off before it is corrected."""

    def __init__(self, now: Now, tolerance_ms: float) -> None:
        self._tolerance_ms = tolerance_ms
        self._basis_ms = now.wall_ms - now.mono_ms
        self.offset_ms: float | None = None  # of most sites, by the last comparison

    @property
    def is_corrected(self) -> bool:
        return self.correction_ms != 0

    @property
    def correction_ms(self) -> float:
        """What is added to the own clock."""
        offset_ms = self.offset_ms or 0.0
        return offset_ms if abs(offset_ms) > self._tolerance_ms else 0.0

    def jumped_ms(self, now: Now) -> float:
        """How far the wall clock was set since the last comparison; 0 if it only drifts."""
        jump_ms = now.wall_ms - now.mono_ms - self._basis_ms
        return jump_ms if abs(jump_ms) > _JUMP_MS else 0.0

    @staticmethod
    def was_set_between(before: Now, now: Now) -> bool:
        return abs(now.wall_ms - now.mono_ms - before.wall_ms + before.mono_ms) > _JUMP_MS

    def compare(self, now: Now, offsets_ms: Iterable[float]) -> None:
        """Compare the own clock with those of the other sites that are up."""
        self._basis_ms = now.wall_ms - now.mono_ms
        self.offset_ms = majority_offset_ms(offsets_ms)

    def time_ms(self, now: Now) -> float:
        return self.time_at_ms(now.mono_ms)

    def time_at_ms(self, mono_ms: float) -> float:
        """The time at a moment of the clock that never jumps."""
        return mono_ms + self._basis_ms + (self.correction_ms if self.offset_ms else 0.0)
