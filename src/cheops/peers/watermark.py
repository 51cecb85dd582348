"""Watermarks: how a site learns from its peers that its store is an old copy.

With each heartbeat a site announces how far its store has come: a number that grows with every document, and the start
of the agent that it was announced under. It signs this, and its peers keep the last one and give it back. The site
itself remembers its starts, in the store. An old copy does not know the starts that came after it was made, nor how far
a start went on after that: so a mark that the site has signed, and that does not fit its own list, is proof.

A peer need not understand or check a mark, and cannot make one up.
"""

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from cheops.log.causality import Clock
from cheops.log.operation import Incarnation, Name, Number

_MOST_STARTS = 1_000  # remembered; a mark of an earlier one says nothing


class Watermark(Struct, frozen=True, array_like=True):
    """How far a store had come, at one moment of one start."""

    incarnation: Incarnation
    start: Number  # the number of the start of the agent on this store
    tag: Name  # a random text, which distinguishes two starts of one number
    n: Number  # the last number in the store's feed
    clock: Clock  # the site's clock at that moment
    signature: bytes = b""


class Start(Struct, frozen=True, array_like=True):
    tag: Name
    n: Number  # the last number in the store's feed when the agent started


class StoreStarts(Struct, frozen=True):
    """The starts of the agent on one store, the last ones of them. The last is the present one."""

    first: Number = 1  # the number of the first in the list
    starts: Annotated[tuple[Start, ...], Meta(max_length=_MOST_STARTS)] = ()

    def with_start(self, tag: str, n: int) -> "StoreStarts":
        starts = (*self.starts, Start(tag, n))
        dropped = max(0, len(starts) - _MOST_STARTS)
        return StoreStarts(self.first + dropped, starts[dropped:])

    def mark(self, incarnation: str, n: int, clock: Clock) -> Watermark:
        """The mark of the present start."""
        return Watermark(incarnation, self.first + len(self.starts) - 1, self.starts[-1].tag, n, clock)

    def is_later(self, mark: Watermark, n: int) -> bool:
        """Whether a mark that this site has signed shows more than the store has come to. `n` is its last number."""
        place = mark.start - self.first
        if place < 0:
            return False
        if place >= len(self.starts) or self.starts[place].tag != mark.tag:
            return True
        ends: Iterable[int] = (*(start.n for start in self.starts[place + 1 : place + 2]), n)
        return mark.n > next(iter(ends))
