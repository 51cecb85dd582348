"""From a site's configuration, and what it knows of the others, to a layout."""

import os
from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.fast.layout import Layout, PeerLayout, ServiceLayout
from cheops.gateway.peers import PeerGateways
from cheops.gateway.pool import place_of_url

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring

_MOST_THREADS = 8


def layout_of(
    config: SiteConfig, peers: tuple[PeerLayout, ...], keyring: "Keyring | None", most: int
) -> Layout:
    """`most` is how many connections there can be."""
    settings = config.gateway
    services = []
    for service in config.services.values():
        if service.front.listen is None:
            continue
        replication = service.replication
        services.append(
            ServiceLayout(
                service.name,
                service.front.listen,
                place_of_url(service.url),
                replication.timeout_s,
                replication.credential_headers if replication.credentials == "drop" else (),
                service.front.carriers if config.has_carriers else (),
                service.front.outbound,
            )
        )
    layout = Layout(
        config.name,
        tuple(services),
        peers,
        carriers=config.carrier_names,
        connections=most,
        threads=_threads(),
    )
    for name in (
        *("forwarded_headers", "head_size_bytes", "connect_timeout_s", "head_timeout_s"),
        *("stall_timeout_s", "silence_timeout_s", "tunnel_timeout_s", "keep_alive_s", "warm", "warm_for_s"),
    ):
        layout = replace(layout, **{name: getattr(settings, name)})
    if keyring is None:
        return layout
    shown = keyring.identity.pem + keyring.folder.authorities.pem
    return replace(layout, certificates=sha256(shown).hexdigest()[:16], mesh=settings.listen)


def _threads() -> int:
    """Half of the machine: the other half is the application's. One thread alone needs no locks."""
    return max(1, min((os.cpu_count() or 1) // 2, _MOST_THREADS))


def peer_layout(peers: PeerGateways, keyring: "Keyring | None", service: str, site: str) -> PeerLayout | None:
    """The gateway of a site, where there is one; None where nobody knows of any."""
    try:
        place = peers.place(site, service)
    except CheopsError:
        return None
    return PeerLayout(service, site, place, keyring.host_of(site) if keyring else "")
