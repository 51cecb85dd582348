"""Gives disk space of deleted resources back, and memory after a peak.

From time to time the engine hears which tombstones may be dropped (cheops.engine.tombstones). Backends forget resources
of which nothing is left in the store. Under load the store uses free pages again; at rest it gives them back, in steps
of some milliseconds: a commit that comes meanwhile waits for one step at most. The memory of resources that have left
it goes back then, too.
"""

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from cheops import heap
from cheops.backoff import jittered
from cheops.engine.events import Enumerated
from cheops.store.interface import StoreError

if TYPE_CHECKING:
    from cheops.node.node import Node

_LOOK_S = 2.0
_PAUSE_S = 0.02  # between two steps: half of the time, or more, is left for others
_log = logging.getLogger(__name__)


class SpaceRelease:
    """Belongs to the event loop of its node."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self._commits = -1  # at the last look
        self._given_back = (-1, -1)  # commits, and resources in memory, when memory was last given back

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(jittered(_LOOK_S, 0.1))
            try:
                await self._sweep()
                dropped = await self._node.backends.forget_dropped(self._node.store, self._node.in_store_thread)
                self._node.drifted.difference_update(dropped)
                if self._is_at_rest():
                    await self._shrink()
                    self._give_memory_back()
            except StoreError as error:
                _log.warning("cannot give space back: %s", error)
            except Exception:  # a backend may raise anything, and must not end the site
                _log.exception("backends cannot forget the resources of which nothing is left")
            self._commits = self._node.pump.commits

    async def _sweep(self) -> None:
        """Have the engine look at the tombstones that may be dropped by now."""
        now_ms, most = self._node.now_ms(), self._node.config.limits.wake
        if due := await self._node.in_store_thread(partial(self._node.store.due, now_ms, most)):
            self._node.pump.post(Enumerated("", due))

    def _is_at_rest(self) -> bool:
        pump = self._node.pump
        return pump.trouble is None and pump.backlog == 0 and pump.commits == self._commits

    async def _shrink(self) -> None:
        while self._is_at_rest() and await self._node.in_store_thread(self._node.store.shrink):
            await asyncio.sleep(_PAUSE_S)

    def _give_memory_back(self) -> None:
        """Once after each peak, and again when resources have left memory."""
        now = (self._node.pump.commits, len(self._node.pump.site.replicas))
        if now != self._given_back:
            heap.give_back()
            self._given_back = now
