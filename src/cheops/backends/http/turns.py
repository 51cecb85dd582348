"""Who comes first, of requests that a site gets at the same time: a parent that is created, or what goes into it.

An operation waits elsewhere for what its origin had done before to what it touches (`order`). While a parent is being
created nobody knows yet whether it will be there, or which of the two the service gets first. So the later request
waits here until the service has decided about the earlier one.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import Struct

from cheops.backends.http.copies import Copies
from cheops.backends.http.payload import Request
from cheops.engine.replica import Replica
from cheops.errors import CheopsError

_MOST_S = 10.0
_LOOK_S = 0.02


class Turn(Struct, frozen=True, eq=False):
    """A request that is about what clients name."""

    service: str
    path: str
    meta_id: str
    before: int  # the number of the last operation on it that this site had accepted


class Turns:
    """The requests of this site that no service has decided about yet, in the order in which they came."""

    def __init__(self, copies: Copies, replica: Callable[[str], Replica | None]) -> None:
        self._copies = copies
        self._replica = replica
        self._turns: dict[Turn, None] = {}

    @contextmanager
    def taken(self, service: str, request: Request, replica: Replica) -> Iterator[Turn | None]:
        """`replica` is what the request is about. What a service names needs no turn: its parent is there, or the
        request is refused."""
        if not request.named:
            yield None
            return
        turn = Turn(service, request.item, replica.resource, _last(replica))
        self._turns[turn] = None
        try:
            yield turn
        finally:
            if not self._is_accepted(turn):
                self._turns.pop(turn, None)

    async def come(self, turn: Turn | None) -> None:
        """Wait for the turn of a request. Raises CheopsError."""
        end_s = asyncio.get_running_loop().time() + _MOST_S
        while turn is not None and (other := self._first_before(turn)) is not None:
            if asyncio.get_running_loop().time() >= end_s:
                raise CheopsError(
                    f"a change of {other.path} is under way, and {turn.path} depends on it; try again later",
                    status=503,
                    definite=False,
                )
            await asyncio.sleep(_LOOK_S)

    def _first_before(self, turn: Turn) -> Turn | None:
        for other in [*self._turns]:
            if other is turn:
                break
            if self._is_decided(other):
                del self._turns[other]
            elif other.service == turn.service and self._are_unclear(turn.path, other.path):
                return other
        return None

    def _are_unclear(self, one: str, other: str) -> bool:
        """Whether one of two paths is above the other, and not there yet."""
        upper, lower = sorted((one, other), key=len)
        is_above = lower.startswith(f"{upper.rstrip('/')}/") and upper != lower
        return is_above and any(
            turn.path == upper and turn.meta_id not in self._copies.index.copies for turn in self._turns
        )

    def _is_accepted(self, turn: Turn) -> bool:
        """Whether it is an operation now about which the service has not decided."""
        replica = self._replica(turn.meta_id)
        return replica is not None and any(draft.seq > turn.before for draft in replica.drafts)

    def _is_decided(self, turn: Turn) -> bool:
        replica = self._replica(turn.meta_id)
        return replica is not None and replica.history.known.get(replica.origin, 0) > turn.before


def _last(replica: Replica) -> int:
    return max([replica.history.known.get(replica.origin, 0), *(draft.seq for draft in replica.drafts)])
