"""The replies of all sites to the operations of one resource."""

from collections.abc import Callable, Iterable, Iterator

from cheops.log.causality import Vector, joined
from cheops.log.operation import OpId, Origin, Reply, Status


class Replies:
    """Replies by their origin and by their operation. Each origin numbers its own: 1, 2, 3 …"""

    def __init__(self) -> None:
        # What is kept. Of the numbers up to `known`, those that are missing here were dropped on purpose.
        self._by_origin: dict[Origin, dict[int, Reply]] = {}
        # The reply that says most about an operation at a site: its own before that of a replay.
        self._by_op: dict[tuple[OpId, str], Reply] = {}
        # Up to here every reply was taken. There are no gaps: `take` is given them in order.
        self.known: dict[Origin, int] = {}

    def __iter__(self) -> Iterator[Reply]:
        return (reply for replies in self._by_origin.values() for reply in replies.values())

    def get(self, id_: OpId, site: str) -> Reply | None:
        """The last word of a site about an operation."""
        return self._by_op.get((id_, site))

    def __getitem__(self, key: tuple[OpId, str]) -> Reply:
        return self._by_op[key]

    def by_operation(self) -> Iterable[tuple[tuple[OpId, str], Reply]]:
        """The last word about each operation and site."""
        return self._by_op.items()

    def of_origin(self, origin: Origin) -> list[Reply]:
        """In the order of their numbers."""
        replies = self._by_origin.get(origin, {})
        return [replies[n] for n in sorted(replies)]

    def next_n(self, origin: Origin) -> int:
        return self.known.get(origin, 0) + 1

    def beyond(self, known: Vector) -> Iterator[Reply]:
        """What a site lacks that knows so much, in the order in which it must get it."""
        for origin, last in self.known.items():
            first = known.get(origin, 0)
            yield from (reply for reply in self.of_origin(origin) if first < reply.n <= last)

    def take(self, reply: Reply) -> list[Reply]:
        """Take a reply; gives those that it makes pointless, which are dropped: a replay says all that is applied."""
        of_origin = self._by_origin.setdefault(reply.origin, {})
        stale = [old for old in of_origin.values() if old.replay] if reply.replay else []
        for old in stale:
            del of_origin[old.n]
        of_origin[reply.n] = reply
        self.known[reply.origin] = max(reply.n, self.known.get(reply.origin, 0))
        site = reply.origin.site
        if reply.op is not None:
            self._by_op[reply.op, site] = reply
        for applied in reply.applied:
            before = self._by_op.get((applied.id, site))
            if before is None or before.status is not Status.OK or before.replay:
                self._by_op[applied.id, site] = reply
        return stale

    def skip_to(self, floor: Vector) -> None:
        """Others have dropped the replies up to here: they will not come."""
        self.known = joined(self.known, floor)

    def forget_operations(self, ids: set[OpId]) -> None:
        self._by_op = {key: reply for key, reply in self._by_op.items() if key[0] not in ids}

    def drop(self, is_pointless: Callable[[Reply], bool]) -> list[Reply]:
        """Drop replies; gives them. What is known stays as it is."""
        dropped = [reply for reply in self if is_pointless(reply)]
        for reply in dropped:
            del self._by_origin[reply.origin][reply.n]
        return dropped
