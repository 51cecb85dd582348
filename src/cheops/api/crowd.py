"""All connections of the agent's address: how many there are, and which of them only hold a place.

A connection is closed that takes too long to tell its request's headers, whose body trickles, or whose answer
is not read. Nobody else waits for such a one, but there is a limit to their number.
"""

import asyncio
from collections import Counter
from typing import Protocol

from cheops.api.acts import turned_away
from cheops.config.clients import ClientsConfig
from cheops.node.node import Node
from cheops.security.accepting import TOO_MANY, TOO_MANY_OF_ONE

LEAST_BYTES = 1024  # that a body must bring within the time in which it may stall
_LOOKS = 4  # within the shortest time that somebody is given
_LEAST_LOOK_S = 0.05


class Kept(Protocol):
    """A connection, as far as it is watched."""

    def overdue(self, now_s: float) -> str:
        """Why it is to be closed; empty: it is not."""

    def turn_out(self, status: int, reason: str) -> None:
        """Close it, with this answer if none has begun."""


class Crowd:
    """Belongs to one event loop."""

    def __init__(self, node: Node) -> None:
        self.limits: ClientsConfig = node.config.clients
        self._node = node
        self._inside: set[Kept] = set()
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._inside)

    def enter(self, one: Kept, address: str) -> str:
        """Why there is no place for one more; empty: it has one. Without an address it comes by the Unix
        socket: whoever administrates the agent always gets in."""
        if address and len(self._inside) >= self.limits.connections:
            return TOO_MANY
        if address and self._by_address[address] >= self.limits.connections_each:
            return TOO_MANY_OF_ONE
        self._inside.add(one)
        if address:
            self._by_address[address] += 1
        return ""

    def leave(self, one: Kept, address: str) -> None:
        if one not in self._inside:
            return
        self._inside.discard(one)
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def refused(self, reason: str, address: str, status: int) -> None:
        turned_away(self._node, reason, "", address or "unix", status=status)

    async def watch(self) -> None:
        """Until cancelled."""
        loop = asyncio.get_running_loop()
        shortest_s = min(self.limits.head_timeout_s, self.limits.stall_timeout_s)
        while True:
            await asyncio.sleep(max(_LEAST_LOOK_S, min(1.0, shortest_s / _LOOKS)))
            now_s = loop.time()
            for one in list(self._inside):
                if reason := one.overdue(now_s):
                    one.turn_out(408, reason)
