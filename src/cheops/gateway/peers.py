"""The gateways of other sites: which requests come from them, and how to reach them.

Only this module decides whether a request comes from a gateway: by the certificate of its connection, at an address
that is for gateways only. With `security: none`, where all sites are on one machine without certificates, a request
counts as a site's if its header `Cheops-Hop` names the site and it comes from an address of that site.
"""

import asyncio
import logging
import socket
import time
from base64 import b64decode
from collections.abc import Callable
from ipaddress import ip_address
from typing import TYPE_CHECKING, TypeAlias

from msgspec.structs import replace

from cheops.config.address import AddressError, address_of_url
from cheops.errors import CheopsError, Fault
from cheops.gateway.client_connection import ClientConnection
from cheops.gateway.connection import UpstreamAddress, upstream_address
from cheops.gateway.headers import HOP, PEER_CERTIFICATE, RequestHead, decode_name, first
from cheops.gateway.host_names import HostNames
from cheops.gateway.interfaces import NoGatewayError, SiteDownError
from cheops.gateway.tunnels import GatewayTunnels
from cheops.node.node import Node
from cheops.peers.client import Credentials
from cheops.peers.enrollment import FORGED_SENDER, NO_SITE, rejection_of
from cheops.peers.prober import now
from cheops.security.tls import certificate_at, identity_in
from cheops.text import printable, shortened

if TYPE_CHECKING:
    from cheops.security.certificates import Identity  # it loads cryptography, which is slow

OnVerified: TypeAlias = "Callable[[bytes, Identity], None]"  # a verified certificate, and its site

_ADDRESSES_FOR_S = 30.0  # before a site's name is looked up again
_MAX_LOGGED_CLAIMS = 1_000
_log = logging.getLogger(__name__)


class PeerGateways:
    """The gateways of other sites."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._addresses: dict[str, tuple[float, frozenset[str]]] = {}
        self._logged_claims: set[str] = set()
        self.on_verified: OnVerified | None = None
        self.tunnels = GatewayTunnels(node)
        self.host_names = HostNames()

    @property
    def credentials(self) -> Credentials | None:
        """The certificate and key that this site presents to other gateways."""
        return self._node.keyring

    async def sender(self, client: ClientConnection, head: RequestHead, *, is_mesh: bool) -> str | None:
        """The site whose gateway sent a request; None for a client, whatever it claims. Raises CheopsError
        at the address that is for gateways only."""
        if is_mesh:
            return self._verified_sender(client, head)
        peer, hop = client.peer, first(head, HOP)
        if hop is None:
            return None
        if self._node.keyring is not None:  # with certificates, gateways use the other address
            self._log_false_claim(decode_name(hop), peer)
            return None
        site = decode_name(hop)
        if site != self._node.name and self._node.mesh.entry_of(site) is not None:
            known = await self.addresses_of(site)
            if peer in known or (_is_loopback(peer) and any(map(_is_loopback, known))):
                return site
        self._log_false_claim(site, peer)
        return None

    def _verified_sender(self, client: ClientConnection, head: RequestHead) -> str:
        """The site that the certificate names, if it is a member; it may send requests in its own name only."""
        try:
            der = self._certificate(client, head)
            identity = identity_in(der) if der else None
        except CheopsError as error:
            raise self._refuse(NO_SITE, client.peer, str(error)) from None
        if identity is None:
            raise self._refuse(NO_SITE, client.peer, "this address is only for the gateways of other sites")
        if rejection := rejection_of(self._node.mesh, identity, time.time()):
            raise self._refuse(rejection.reason, identity.site, rejection.detail)
        claimed = decode_name(first(head, HOP) or "")
        if claimed != identity.site:
            detail = f"'{identity.site}' cannot send requests as '{printable(shortened(claimed))}'"
            raise self._refuse(FORGED_SENDER, identity.site, detail)
        if der and self.on_verified:
            self.on_verified(der, identity)
        return identity.site

    @staticmethod
    def _certificate(client: ClientConnection, head: RequestHead) -> bytes | None:
        """The certificate of the connection, whose chain the TLS handshake has verified, here or in HAProxy."""
        if not client.wire.is_handed:
            return certificate_at(client.wire.transport)
        try:
            return b64decode(first(head, PEER_CERTIFICATE) or "", validate=True)
        except ValueError:
            return None

    def _refuse(self, reason: str, who: str, detail: str) -> CheopsError:
        self._node.refusals.count(reason, who, detail)
        return CheopsError(detail, fault=Fault.PEER, status=403)

    def address(self, site: str, service: str) -> UpstreamAddress:
        """The address of a site's gateway for a service."""
        entry = self._node.mesh.entry_of(site)
        if entry is None:
            raise self.down(site)  # it has not announced its services yet
        address = dict(entry.services).get(service)
        if not address:
            raise NoGatewayError(
                f"{site} has no address for requests to '{service}': set "
                f"{'gateway.listen' if self._node.keyring else f'services.{service}.listen'} there"
            )
        if self._node.keyring and not address.startswith("https://"):
            raise NoGatewayError(f"{site} has no address over TLS for '{service}': set gateway.listen there")
        try:
            upstream = upstream_address(address)
        except AddressError as error:
            raise NoGatewayError(f"the address of {site} for '{service}' cannot be used: {error}") from None
        if self._node.keyring is None:
            return upstream
        if (port := self.tunnels.port_to(site)) is not None:
            return replace(upstream, site=site, host="127.0.0.1", port=port)
        return replace(upstream, site=site)

    def is_up(self, site: str) -> bool:
        info = self._node.snapshot().sites.get(site)
        return info is not None and info.up

    def down(self, site: str) -> SiteDownError:
        """The error that a site is down, with the time of the last contact."""
        view = next((one for one in self._node.mesh.sites(now()) if one.name == site), None)
        contact_ms = view.contact_ms if view else None
        since = "it was never seen" if contact_ms is None else f"last seen {contact_ms / 1000:,.0f} s ago"
        if contact_ms is None and view and view.heard:
            since = "it has not responded since this agent's start"
        return SiteDownError(f"{site} is down: {since}; see 'cheops describe site {site}' at {self._node.name}")

    def probe_now(self, site: str) -> None:
        """A request to it failed: check now whether the site is up, and its gateway in reach."""
        self._node.mesh.probe_now(site)
        self.tunnels.doubt(site)

    async def addresses_of(self, site: str) -> frozenset[str]:
        """The addresses that requests of a site come from: those at which it is reached."""
        at_s = asyncio.get_running_loop().time()
        cached = self._addresses.get(site)
        if cached is None or not cached[1] or at_s - cached[0] > _ADDRESSES_FOR_S:
            cached = self._addresses[site] = (at_s, await self._look_up(site))
        return cached[1]

    async def _look_up(self, site: str) -> frozenset[str]:
        entry = self._node.mesh.entry_of(site)
        urls = [entry.url, *(address for _, address in entry.services if address)] if entry else []
        addresses: set[str] = set()
        for host in {address_of_url(url).host for url in urls}:
            try:
                infos = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
            except OSError as error:
                _log.warning("the address of %s cannot be looked up: %s: %s", site, host, error)
                continue
            addresses.update(str(info[4][0]) for info in infos)
        return frozenset(addresses)

    def _log_false_claim(self, site: str, peer: str) -> None:
        """Log a false claim once per pair, so that a client cannot fill the log."""
        claim = printable(shortened(f"{site} from {peer}"))
        if claim not in self._logged_claims and len(self._logged_claims) < _MAX_LOGGED_CLAIMS:
            self._logged_claims.add(claim)
            _log.warning(
                "%s claims to be the gateway of %s, which has no such address: treated as a client", peer, site
            )


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False
