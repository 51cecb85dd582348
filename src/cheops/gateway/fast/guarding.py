"""What of a service's requests may go to its instance here without being looked at.

All of them, until something of the service is replicated here; then none. Before that happens HAProxy is
told, and what it has sent there is answered.
"""

import asyncio
import time
from collections.abc import Iterable

from cheops.gateway.fast import naming
from cheops.gateway.fast.applying import Applying
from cheops.gateway.fast.process import Haproxy
from cheops.gateway.fast.runtime import RuntimeSocketError
from cheops.gateway.fast.table import FlowTable
from cheops.node.replicants import Replicants

_ANSWERED_S = 3.0
_LOOK_S = 0.01


class Guarding:
    """See node.replicants.Guard. `flags` has, for each service, what its flows here must not have; None:
    there are no flows here."""

    def __init__(
        self, replicants: Replicants, haproxy: Haproxy, applying: Applying, table: FlowTable
    ) -> None:
        self._replicants = replicants
        self._haproxy = haproxy
        self._applying = applying
        self._table = table
        self._runs: dict[str, int] = {}
        self._started = asyncio.Event()
        self.flags: dict[str, str | None] = {}
        replicants.guard = self

    def begin(self, services: Iterable[str]) -> None:
        """Before HAProxy takes requests; `started` is to follow."""
        for service in services:
            self.flags[service] = self._flags_now(service)

    def started(self) -> None:
        self._started.set()

    def end(self) -> None:
        """There is no HAProxy any more."""
        self._replicants.guard = None
        self.flags = {}
        self._started.set()

    @property
    def has_doubts(self) -> bool:
        """Whether something is replicated here, so that not everything may go to the instances."""
        return any(flags != "" for flags in self.flags.values())

    def look(self) -> None:
        """Have HAProxy know what may go to the instances here now."""
        for service, before in self.flags.items():
            now = self._flags_now(service)
            if now != before:
                self.flags[service] = now
                self._table.generation += 1
                self._applying.put_whole(naming.map_of(service), naming.SERVICES)

    def _flags_now(self, service: str) -> str | None:
        index = self._replicants.runner.copies.index
        if index.has_service(service) or self._runs.get(service):
            return None
        return naming.NO_BODIES if len(index) or any(self._runs.values()) else ""

    # -- before and after --------------------------------------------------------------------------------

    async def before_run(self, service: str) -> None:
        """Something of a service is about to be replicated here: from now on its requests are looked at."""
        self._runs[service] = self._runs.get(service, 0) + 1
        await self._started.wait()
        before = dict(self.flags)
        self.look()
        if self.flags != before:
            await self._settled_or_ended()
            await self._until_answered(service)

    def after_run(self, service: str) -> None:
        self._runs[service] -= 1

    async def _settled_or_ended(self) -> None:
        """An HAProxy that has ended forwards nothing, and the next one is told before it does."""
        settled = asyncio.ensure_future(self._applying.settled())
        ended = asyncio.ensure_future(self._haproxy.ended.wait())
        await asyncio.wait({settled, ended}, return_when=asyncio.FIRST_COMPLETED)
        settled.cancel()
        ended.cancel()

    async def _until_answered(self, service: str) -> None:
        """What went to the instance here before, and was not looked at, is answered before that changes. For
        a while: what takes longer is no list."""
        names = {naming.own_of(service), naming.own_or_of(service), naming.sent_of(service)}
        end_s = time.monotonic() + _ANSWERED_S
        while time.monotonic() < end_s:
            try:
                if not await self._haproxy.runtime.at_servers(names):
                    return
            except RuntimeSocketError:
                return  # it has ended, and what it did with it
            await asyncio.sleep(_LOOK_S)
