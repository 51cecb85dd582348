"""The links between the hosts and what is under way on them, without any device or clock.

A link leads from one host to one other. It is cut or not, takes `delay_s`, and loses a share of what is sent.
Three things hold, so that tests can rely on the bed:

- nothing arrives earlier than the delay of its link at the time it was sent;
- a cut takes what is under way with it: what was sent before a cut never arrives after it, nor after it healed;
- what a lossy link loses follows from the seed and the number of packets it was asked to carry since the loss
  was set, whatever the other links do.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random


@dataclass(frozen=True, slots=True)
class Change:
    """What to change of a link; None leaves it as it is."""

    cut: bool | None = None
    delay_ms: float | None = None
    loss: float | None = None
    seed: int = 0


@dataclass(slots=True, eq=False)
class Link:
    """One direction between two hosts, and how many packets it passed on and dropped."""

    source: str
    target: str
    delay_s: float = 0.0
    loss: float = 0.0
    cut: bool = False
    passed: int = 0
    dropped: int = 0
    dice: Random = field(default_factory=Random)

    def carries_next(self) -> bool:
        """Whether the next packet gets through; counts it if not."""
        if self.cut or (self.loss and self.dice.random() < self.loss):
            self.dropped += 1
            return False
        return True

    def change(self, change: Change) -> None:
        if change.cut is not None:
            self.cut = change.cut
        if change.delay_ms is not None:
            self.delay_s = change.delay_ms / 1000
        if change.loss is not None:
            self.loss = change.loss
            self.dice = Random(f"{change.seed} {self.source} {self.target}")  # noqa: S311  repeatable, no secret


class Wire:
    """All links of a bed, and the packets that wait for their time, earliest first."""

    def __init__(self, names: tuple[str, ...], delay_ms: float = 0.0) -> None:
        self.links = {
            (source, target): Link(source, target, delay_ms / 1000)
            for source in names
            for target in names
            if source != target
        }
        self._under_way: list[tuple[float, int, Link, bytes]] = []
        self._sent = 0

    def hold(self, link: Link, packet: bytes, now: float) -> None:
        """Keep a packet until its time has come; those of the same time leave as they came."""
        self._sent += 1
        heapq.heappush(self._under_way, (now + link.delay_s, self._sent, link, packet))

    def due(self, now: float) -> Iterator[tuple[Link, bytes]]:
        while self._under_way and self._under_way[0][0] <= now:
            _, _, link, packet = heapq.heappop(self._under_way)
            yield link, packet

    def next_due(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None

    def change(self, link: Link, change: Change) -> None:
        link.change(change)
        if link.cut:
            self._lose_what_is_under_way(link)

    def _lose_what_is_under_way(self, link: Link) -> None:
        kept = [entry for entry in self._under_way if entry[2] is not link]
        link.dropped += len(self._under_way) - len(kept)
        heapq.heapify(kept)
        self._under_way = kept
