"""Ways to the gateways of sites that nobody can connect to: through the channels that they have opened.

A site behind NAT has a channel to this one, and an address that leads nowhere. This agent looks whether a connection to
the gateway of such a site can be made: as soon as it has another channel to the site, when a request has failed, and
now and then. If not, the gateway here sends its requests for that site to an address of this machine, which leads there
through the channel (cheops/peers/tunnels.py). Nothing else changes: both gateways verify each other's certificates as
ever, and HAProxy takes the address as any other.
"""

import asyncio
import logging
from collections.abc import Iterator

from cheops.config.address import AddressError
from cheops.gateway.connection import upstream_address
from cheops.node.node import Node
from cheops.peers.channel import Channel
from cheops.peers.tunnels import TunnelListener

_TICK_S = 1.0
_AGAIN_S = 30.0  # until an address is tried again
_CONNECT_S = 3.5  # in which TCP sends three packets: one or two may be lost
_MOST = 64  # sites
_log = logging.getLogger(__name__)


class GatewayTunnels:
    """Belongs to one event loop. Only with security on: without it all sites are on one machine."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._listeners: dict[str, TunnelListener] = {}  # by site
        self._looked_s: dict[str, float] = {}
        self._channels: dict[str, Channel] = {}  # when this agent last looked
        self._doubted: set[str] = set()  # sites that a request did not reach

    def port_to(self, site: str) -> int | None:
        """The port of this machine that leads to the gateway of a site; None if it is reached at its own address."""
        listener = self._listeners.get(site)
        return listener.port if listener else None

    def doubt(self, site: str) -> None:
        """A request to a site has failed: look soon whether its gateway is reached."""
        self._doubted.add(site)

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await asyncio.sleep(_TICK_S)
                self._end_unknown()
                await asyncio.gather(*(self._look(site, url) for site, url in list(self._due())))
        finally:
            for listener in self._listeners.values():
                listener.close()

    def _end_unknown(self) -> None:
        """End the listeners for sites that were removed: each takes one of few places."""
        for site in [site for site in self._listeners if self._node.mesh.is_site_forgotten(site)]:
            self._listeners.pop(site).close()

    def _due(self) -> Iterator[tuple[str, str]]:
        """The sites that may be out of reach, or in reach again, with the addresses of their gateways."""
        now_s = asyncio.get_running_loop().time()
        for site in self._node.mesh.up:
            channel, entry = self._node.channels.get(site), self._node.mesh.entry_of(site)
            if channel is None or entry is None:
                continue
            # A site to which this one has connected itself is in reach, unless a request shows otherwise.
            is_in_reach = channel.is_opener and not channel.via and site not in self._listeners
            is_new = self._channels.get(site) is not channel
            is_time = is_new or now_s - self._looked_s.get(site, -_AGAIN_S) >= _AGAIN_S
            url = next((address for _, address in entry.services if address.startswith("https://")), "")
            if url and (site in self._doubted or (is_time and not is_in_reach)):
                self._looked_s[site], self._channels[site] = now_s, channel
                self._doubted.discard(site)
                yield site, url

    async def _look(self, site: str, url: str) -> None:
        is_reached = await _can_connect(url)
        if is_reached and site in self._listeners:
            self._listeners.pop(site).close()
            _log.info("the gateway of %s is reached at its own address again", site)
        elif not is_reached and site not in self._listeners and len(self._listeners) < _MOST:
            listener = TunnelListener(site, self._node.channels)
            try:
                await listener.start()
            except OSError as error:  # too many open files, say; it is tried again
                _log.warning("no way to the gateway of %s through its channel: %s", site, error)
                return
            self._listeners[site] = listener
            _log.info("the gateway of %s is reached through its channel: nobody answers at %s", site, url)


async def _can_connect(url: str) -> bool:
    try:
        address = upstream_address(url)
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(address.host, address.port)
    except (OSError, AddressError):
        return False
    writer.close()
    return True
