"""Conditional changes: the replica of this site says whether the condition holds, and nobody else decides
until the change is taken.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from cheops.gateway.replicas.conditions import check_conditions, is_conditional
from cheops.gateway.replicas.errors import UnderWayError
from cheops.gateway.replicas.preferences import DEFAULT_WAIT_S
from cheops.gateway.replicas.reading import Reading
from cheops.gateway.replicas.streams import closed
from cheops.gateway.replicas.targets import Target
from cheops.gateway.seam import Head, Incoming, without
from cheops.node.node import Node

_LOOK_S = 0.02
_NOT_FOR_READING = (
    *("If-Match", "If-None-Match", "If-Unmodified-Since", "If-Modified-Since", "Range", "If-Range"),
    *("Content-Type", "Content-Length"),
)


class Guarding:
    def __init__(self, node: Node, reading: Reading) -> None:
        self._node = node
        self._reading = reading
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, service: str, incoming: Incoming, target: Target) -> AsyncIterator[None]:
        """While the condition of a request holds, if it has one. Raises NotMetError or UnderWayError."""
        if not is_conditional(incoming.head):
            yield
            return
        lock = self._locks.setdefault(target.meta_id, asyncio.Lock())
        async with lock:
            await self._until_done_here(target.meta_id)
            head = Head("GET", target.path, without(incoming.head.headers, *_NOT_FOR_READING))
            answer = await self._reading.local(service, head, incoming, with_body=False)
            await closed(answer.body)
            check_conditions(incoming.head, answer.status, answer.headers)
            yield

    async def _until_done_here(self, meta_id: str) -> None:
        """Wait for what was taken here before, whether its client does so or not: the replica is to be asked
        for its state after that."""
        end_s = asyncio.get_running_loop().time() + DEFAULT_WAIT_S
        while (await self._node.pump.replica(meta_id)).drafts:
            if asyncio.get_running_loop().time() >= end_s:
                here = self._node.name
                raise UnderWayError(f"a change of {meta_id} is under way at {here}; try again later")
            await asyncio.sleep(_LOOK_S)
