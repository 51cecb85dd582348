"""The links between the hosts and what is under way on them, without any device or clock.

A link leads from one host to one other. It is cut or not, takes `delay_s`, loses a share of what is sent, and may be
narrow (`rate_kbit`, `mtu_bytes`) or lead through a firewall (firewall.py).
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

from tests.wan.firewall import Connections, flow_of

_MOST_QUEUED_S = 1.0  # what a narrow link keeps waiting; more is lost, as at a real router


@dataclass(frozen=True, slots=True)
class Change:
    """What to change of a link; None leaves it as it is."""

    cut: bool | None = None
    delay_ms: float | None = None
    loss: float | None = None
    seed: int = 0
    rate_kbit: float | None = None
    mtu_bytes: int | None = None
    opens: bool | None = None
    idle_s: float | None = None


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
    rate_kbit: float = 0.0  # per second; 0 for no limit
    mtu_bytes: int = 0  # the largest packet; 0 for no limit
    opens: bool = True  # connections may be opened along this link, not only used
    idle_s: float = 0.0  # after which a connection without a packet is forgotten; 0 for never
    connections: Connections = field(default_factory=Connections)  # of both directions
    free_s: float = 0.0  # when a narrow link has sent all that waits

    def carries_next(self, packet: bytes, now: float) -> bool:
        """Whether the next packet gets through; counts it if not."""
        is_lost = self.cut or (self.loss and self.dice.random() < self.loss) or not self._lets_through(packet, now)
        self.dropped += bool(is_lost)
        return not is_lost

    def _lets_through(self, packet: bytes, now: float) -> bool:
        return not self.connections.is_watched or self.connections.let_through(
            flow_of(packet), now, may_open=self.opens, idle_s=self.idle_s
        )

    def arrives_s(self, packet: bytes, now: float) -> float | None:
        """When a packet arrives that is sent now; None if too many wait for their turn."""
        if not self.rate_kbit:
            return now + self.delay_s
        begins_s = max(now, self.free_s)
        if begins_s - now > _MOST_QUEUED_S:
            self.dropped += 1
            return None
        self.free_s = begins_s + len(packet) * 8 / (self.rate_kbit * 1000)
        return self.free_s + self.delay_s

    def change(self, change: Change) -> None:
        if change.cut is not None:
            self.cut = change.cut
        if change.delay_ms is not None:
            self.delay_s = change.delay_ms / 1000
        if change.loss is not None:
            self.loss = change.loss
            self.dice = Random(f"{change.seed} {self.source} {self.target}")  # noqa: S311  repeatable, no secret
        if change.rate_kbit is not None:
            self.rate_kbit = change.rate_kbit
        if change.mtu_bytes is not None:
            self.mtu_bytes = change.mtu_bytes
        if change.opens is not None:
            self.opens = change.opens
        if change.idle_s is not None:
            self.idle_s = change.idle_s


class Wire:
    """All links of a bed, and the packets that wait for their time, earliest first."""

    def __init__(self, names: tuple[str, ...], delay_ms: float = 0.0) -> None:
        self.links = {
            (source, target): Link(source, target, delay_ms / 1000)
            for source in names
            for target in names
            if source != target
        }
        for (source, target), link in self.links.items():
            link.connections = self.links[min(source, target), max(source, target)].connections
        self._under_way: list[tuple[float, int, Link, bytes]] = []
        self._sent = 0

    def hold(self, link: Link, packet: bytes, due_s: float) -> None:
        """Keep a packet until its time has come; those of the same time leave as they came."""
        self._sent += 1
        heapq.heappush(self._under_way, (due_s, self._sent, link, packet))

    def due(self, now: float) -> Iterator[tuple[Link, bytes]]:
        while self._under_way and self._under_way[0][0] <= now:
            _, _, link, packet = heapq.heappop(self._under_way)
            yield link, packet

    def next_due(self) -> float | None:
        return self._under_way[0][0] if self._under_way else None

    def change(self, link: Link, change: Change) -> None:
        link.change(change)
        both = (link, self.links[link.target, link.source])
        link.connections.is_watched = any(one.idle_s or not one.opens for one in both)
        if link.cut:
            self._lose_what_is_under_way(link)

    def _lose_what_is_under_way(self, link: Link) -> None:
        kept = [entry for entry in self._under_way if entry[2] is not link]
        link.dropped += len(self._under_way) - len(kept)
        heapq.heapify(kept)
        self._under_way = kept
