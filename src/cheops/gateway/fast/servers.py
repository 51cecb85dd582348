"""Whether HAProxy may send anything to the gateways of other sites, as the agent sees them."""

import asyncio
import logging

from cheops.gateway.fast import naming
from cheops.gateway.fast.runtime import Runtime, RuntimeSocketError
from cheops.gateway.peers import PeerGateways

_log = logging.getLogger(__name__)


class Servers:
    """Belongs to one event loop."""

    def __init__(self, runtime: Runtime, peers: PeerGateways) -> None:
        self._runtime = runtime
        self._peers = peers
        self._lock = asyncio.Lock()

    async def tell(self, service: str, site: str) -> None:
        """To a site that is down nothing is sent, and what is under way to it is given up. One at a time, so
        that what is told last is what is true."""
        async with self._lock:
            is_up = self._peers.is_up(site)
            try:
                for name in (naming.peer_of(service, site), naming.peer_or_of(service, site)):
                    state = "ready" if is_up else "maint"
                    await self._runtime.everywhere(f"set server {name}/first state {state}")
                    if not is_up:
                        await self._runtime.everywhere(f"shutdown sessions server {name}/first")
            except RuntimeSocketError as error:
                _log.warning("HAProxy was not told that %s is %s: %s", site, "up" if is_up else "down", error)
