"""Conditions of changes (`If-Match` and others): they are about the copy here, at the moment of the change."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from cheops.backends.http.reads import ReadHandler
from cheops.backends.http.request import DEFAULT_WAIT_S, Target, check_conditions, is_conditional
from cheops.errors import CheopsError
from cheops.gateway.headers import RequestHead, without
from cheops.gateway.interfaces import IncomingRequest, close_body
from cheops.node.node import Node

_LOOK_S = 0.02
NOT_FOR_READING = (
    *("If-Match", "If-None-Match", "If-Unmodified-Since", "If-Modified-Since", "Range", "If-Range"),
    *("Content-Type", "Content-Length"),
)


class ConditionGuard:
    """Checks conditions such as If-Match against the copy here, and has conditional changes of a resource wait for each
    other: between check and submission no other may come in."""

    def __init__(self, node: Node, reading: ReadHandler) -> None:
        self._node = node
        self._reads = reading
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def held(self, service: str, incoming: IncomingRequest, target: Target) -> AsyncIterator[None]:
        """Check the condition of a request, if it has one, and keep it true meanwhile. Raises ClientError."""
        if not is_conditional(incoming.head):
            yield
            return
        lock = self._locks.setdefault(target.meta_id, asyncio.Lock())
        async with lock:
            await self._until_done_here(target.meta_id)
            head = RequestHead("GET", target.path, without(incoming.head.headers, *NOT_FOR_READING))
            response = await self._reads.local(service, head, incoming, with_body=False)
            await close_body(response.body)
            check_conditions(incoming.head, response.status, response.headers)
            yield

    async def _until_done_here(self, meta_id: str) -> None:
        """Wait for the operations accepted here before: the condition is about the state after them."""
        end_s = asyncio.get_running_loop().time() + DEFAULT_WAIT_S
        while (await self._node.pump.replica(meta_id)).drafts:
            if asyncio.get_running_loop().time() >= end_s:
                here = self._node.name
                raise CheopsError(
                    f"a change of {meta_id} is under way at {here}; try again later", status=503, definite=False
                )
            await asyncio.sleep(_LOOK_S)
