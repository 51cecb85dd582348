"""Which requests come from the gateway of another site, and how to reach that.

This is the one place that decides whom to believe. Until gateways show each other certificates, a request is
believed to come from a site if it says so (`Cheops-Hop`) and comes from an address of that site. With mutual
TLS the certificate of the connection takes the place of the address, here and nowhere else.
"""

import asyncio
import logging
import socket
from ipaddress import ip_address

from cheops.config.address import place_of
from cheops.errors import CheopsError, Fault
from cheops.gateway.headers import HOP, site_named
from cheops.gateway.pool import Place, place_of_url
from cheops.gateway.seam import Head, first
from cheops.node.node import Node
from cheops.sync.heart import now
from cheops.text import printable, shortened

_KNOWN_FOR_S = 30.0
_log = logging.getLogger(__name__)


class SiteDownError(CheopsError):
    """A site cannot be asked now. Nothing was sent there, so nothing can have happened."""

    fault = Fault.PEER
    definite = False
    status = 503


class NoGatewayError(CheopsError):
    """A site has the service, but nothing there takes requests for it."""

    fault = Fault.PEER
    status = 502


class PeerGateways:
    """The gateways of other sites."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._addresses: dict[str, tuple[float, frozenset[str]]] = {}
        self._doubted: set[str] = set()

    async def sender(self, peer: str, head: Head) -> str | None:
        """The site whose gateway sent a request; None for a client, whatever it says."""
        hop = first(head, HOP)
        if hop is None:
            return None
        site = site_named(hop)
        if site != self._node.name and self._node.mesh.entry_of(site) is not None:
            known = await self._addresses_of(site)
            if peer in known or (_is_loopback(peer) and any(map(_is_loopback, known))):
                return site
        self._doubt(site, peer)
        return None

    def place(self, site: str, service: str) -> Place:
        """Where the gateway of a site takes requests for a service."""
        entry = self._node.mesh.entry_of(site)
        if entry is None:
            raise self.down(site)  # nobody knows yet what it has
        address = dict(entry.services).get(service) if entry else None
        if not address:
            raise NoGatewayError(
                f"{site} has no address for requests to '{service}': set services.{service}.listen there"
            )
        return place_of_url(address)

    def is_up(self, site: str) -> bool:
        info = self._node.snapshot().sites.get(site)
        return info is not None and info.up

    def down(self, site: str) -> SiteDownError:
        """That a site is down, and since when."""
        view = next((one for one in self._node.mesh.sites(now()) if one.name == site), None)
        heard_ms = view.contact_ms if view else None
        since = "it was never heard of" if heard_ms is None else f"last heard of {heard_ms / 1000:,.0f} s ago"
        if heard_ms is None and view and view.heard:
            since = "it has not answered since this agent's start"
        return SiteDownError(
            f"{site} is down: {since}; see 'cheops describe site {site}' at {self._node.name}"
        )

    def hurry(self, site: str) -> None:
        """It did not answer: have a look at it."""
        self._node.mesh.hurry(site)

    async def _addresses_of(self, site: str) -> frozenset[str]:
        """From which addresses a site speaks: those at which it is reached."""
        at_s = asyncio.get_running_loop().time()
        kept = self._addresses.get(site)
        if kept is None or at_s - kept[0] > _KNOWN_FOR_S:
            kept = self._addresses[site] = (at_s, await self._looked_up(site))
        return kept[1]

    async def _looked_up(self, site: str) -> frozenset[str]:
        entry = self._node.mesh.entry_of(site)
        urls = [entry.url, *(address for _, address in entry.services if address)] if entry else []
        found: set[str] = set()
        for host in {place_of(url).host for url in urls}:
            try:
                infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                _log.warning("the address of %s cannot be looked up: %s: %s", site, host, error)
                continue
            found.update(str(info[4][0]) for info in infos)
        return frozenset(found)

    def _doubt(self, site: str, peer: str) -> None:
        """Once per pair: who tries to pass for another should not fill the log."""
        said = printable(shortened(f"{site} from {peer}"))
        if said not in self._doubted and len(self._doubted) < 1_000:
            self._doubted.add(said)
            _log.warning(
                "%s says that it is the gateway of %s, which has no such address: taken for a client",
                peer,
                site,
            )


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
