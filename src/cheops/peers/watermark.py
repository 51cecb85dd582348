"""Watermarks: how a site learns from its peers that its store is an old copy.

With each heartbeat a site announces how far its store has come: a number that grows with every document, and the start
of the agent that it was announced under. Its peers keep the last mark, and give it back. The site itself remembers its
starts, in the store. An old copy does not know the starts that came after it was made, nor how far a start went on
after that. So a mark of this store that does not fit its own list is proof.

A mark carries a code that only the store can make, with a key that never leaves it: a peer cannot make a mark up, and
need not understand one. A new, empty store has another key, and takes no notice of the marks of the one before it.
"""

import hmac
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from cheops.bounded import BoundedMap
from cheops.log.causality import Clock
from cheops.log.operation import MAX_NAME_CHARACTERS, Name, Number
from cheops.peers.heartbeat import Heartbeat, Watermark

NOTE, KEPT_NOTE = "starts", "watermarks"
_MOST_STARTS = 1_000  # remembered; a mark of an earlier one says nothing
_MOST_KEPT = 4_096  # marks of other sites


class Start(Struct, frozen=True, array_like=True):
    tag: Name
    n: Number  # the last number in the store's feed when the agent started


class StoreStarts(Struct, frozen=True):
    """The starts of the agent on one store, the last ones of them. The last is the present one."""

    key: bytes = b""
    incarnation: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] = ""  # of the present start
    closed: tuple[str, ...] = ()  # earlier incarnations, whose marks prove nothing any more
    first: Number = 1  # the number of the first in the list
    starts: Annotated[tuple[Start, ...], Meta(max_length=_MOST_STARTS)] = ()

    def with_start(self, tag: str, n: int, incarnation: str, closed: Iterable[str] = ()) -> "StoreStarts":
        starts = (*self.starts, Start(tag, n))
        dropped = max(0, len(starts) - _MOST_STARTS)
        return StoreStarts(self.key, incarnation, tuple(closed), self.first + dropped, starts[dropped:])

    def mark(self, n: int, clock: Clock) -> Watermark:
        """The mark of the present start."""
        start = self.first + len(self.starts) - 1
        return self._coded(Watermark(self.incarnation, start, self.starts[-1].tag, n, clock))

    def is_later(self, mark: Watermark, n: int) -> bool:
        """Whether a mark is of this store, and shows more than it has come to; `n` is its last number."""
        place = mark.start - self.first
        if place < 0 or mark.incarnation in self.closed:
            return False
        if not hmac.compare_digest(self._coded(mark).code, mark.code):
            return False
        if place >= len(self.starts) or self.starts[place].tag != mark.tag:
            return True
        end = self.starts[place + 1].n if place + 1 < len(self.starts) else n
        return mark.n > end

    def _coded(self, mark: Watermark) -> Watermark:
        content = msgspec.json.encode((mark.incarnation, mark.start, mark.tag, mark.n, mark.clock))
        return msgspec.structs.replace(mark, code=hmac.digest(self.key, content, sha256))


class Watermarks:
    """The marks in the heartbeats of one site. `report` is called with proof that the own store is an old copy."""

    def __init__(
        self,
        starts: StoreStarts,
        position: Callable[[], tuple[int, Clock]],
        report: Callable[[str, Watermark], None],
        kept: dict[str, Watermark] | None = None,
    ) -> None:
        self._starts = starts
        self._position = position
        self._report = report
        self._kept: BoundedMap[str, Watermark] = BoundedMap(_MOST_KEPT)
        for site, mark in (kept or {}).items():
            self._kept[site] = mark
        self._seen: dict[str, str] = {}  # per peer, the tag of the last mark that it gave back

    @property
    def kept(self) -> dict[str, Watermark]:
        """The last mark of each other site, to be saved."""
        return dict(self._kept)

    def add_to(self, payload: Heartbeat, receiver: str) -> Heartbeat:
        mark = self._starts.mark(*self._position())
        return msgspec.structs.replace(
            payload, mark=mark, returned=self._kept.get(receiver), mark_seen=self._seen.get(receiver, "")
        )

    def take(self, payload: Heartbeat) -> None:
        """Keep the mark of a peer, and look at the one that it gives back. A mark of another start is kept until the
        peer has seen it: it may be what shows the peer that its store is an old copy."""
        sender, mark, kept = payload.sender, payload.mark, self._kept.get(payload.sender)
        if mark is not None and (kept is None or kept.tag in (mark.tag, payload.mark_seen)):
            self._kept[sender] = mark
        if (returned := payload.returned) is not None:
            self._seen[sender] = returned.tag
            if self._starts.is_later(returned, self._position()[0]):
                self._report(sender, returned)
