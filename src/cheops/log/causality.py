"""Causality: version vectors (what is known, what came before what) and the hybrid logical clock.

A vector holds, per origin, the number up to which something is known. Vectors are never changed in place.

The clock takes physical time where it moves forward, and a counter where it does not. Law: a new stamp is
greater than all that the clock has seen, however the wall clock skews or jumps; so ordering by stamp extends
causality. A clock is a value; the time is an argument. When the counter is used up, the time advances by a millisecond:
no stamp that a site has seen can keep it from making the next one.
"""

from collections.abc import Iterable
from types import MappingProxyType
from typing import NamedTuple

from cheops.log.operation import MAX_COUNTER, Counter, Number, OpId, Origin, Stamp
from cheops.log.operation import Vector as Vector  # noqa: PLC0414 - declared there, because operations have one


class Clock(NamedTuple):
    """The greatest time seen so far."""

    time_ms: Number = 0
    counter: Counter = 0

    def tick(self, now_ms: int) -> "Clock":
        """The clock for the next stamp."""
        if now_ms > self.time_ms:
            return Clock(now_ms, 0)
        return Clock(self.time_ms, self.counter + 1) if self.counter < MAX_COUNTER else Clock(self.time_ms + 1, 0)

    def seen(self, stamp: Stamp) -> "Clock":
        """The clock after a stamp of another site was seen."""
        return max(self, Clock(stamp.time_ms, stamp.counter))

    def stamp(self, origin: Origin) -> Stamp:
        return Stamp(self.time_ms, self.counter, origin)


NOTHING: Vector = MappingProxyType({})


def covers(one: Vector, other: Vector) -> bool:
    """Whether the one vector includes everything in the other."""
    if one is other or one == other:  # mostly they are equal, and Python compares faster than this loop
        return True
    for origin, number in other.items():  # noqa: SIM110 - called most of all: a generator takes twice as long
        if one.get(origin, 0) < number:
            return False
    return True


def contains(vector: Vector, id_: OpId) -> bool:
    return vector.get(id_.origin, 0) >= id_.seq


def joined(one: Vector, other: Vector) -> dict[Origin, int]:
    """What is in either."""
    result = dict(one)
    for origin, number in other.items():
        if number > result.get(origin, 0):
            result[origin] = number
    return result


def common(vectors: Iterable[Vector]) -> dict[Origin, int]:
    """What is in all of them."""
    first, *rest = vectors
    # An origin that one of them does not name has 0 there, so the origins of the first are enough.
    result = {origin: min([number, *(other.get(origin, 0) for other in rest)]) for origin, number in first.items()}
    return {origin: number for origin, number in result.items() if number}
