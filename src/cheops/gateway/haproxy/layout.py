"""Everything that HAProxy's configuration depends on, computed from the site's configuration and its peers."""

import os
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cheops.config.address import Address
from cheops.config.gateway import ForwardedHeaders
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.connection import UpstreamAddress, upstream_address
from cheops.gateway.haproxy.flows import FlowKey, FlowTarget
from cheops.gateway.peers import PeerGateways

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring


@dataclass(frozen=True, slots=True)
class ServiceLayout:
    """A service of this site that clients reach through the fast path."""

    name: str
    listen: Address
    own: UpstreamAddress
    answer_s: float
    dropped: tuple[str, ...] = ()  # names of headers that are not sent to other sites
    carriers: tuple[str, ...] = ()  # whose values are remembered, where the application calls out through us
    outbound: Address | None = None  # where it does


@dataclass(frozen=True, slots=True)
class PeerLayout:
    """The gateway of another site that takes requests for a service."""

    service: str
    site: str
    place: UpstreamAddress
    host: str = ""  # by which its certificate is verified; none: plain HTTP


@dataclass(frozen=True, slots=True)
class Layout:
    here: str
    services: tuple[ServiceLayout, ...]
    peers: tuple[PeerLayout, ...] = ()
    forwarded_headers: ForwardedHeaders = ForwardedHeaders.CLIENT
    carriers: tuple[str, ...] = ()  # of all services: by which the scope of its calls is known
    connections: int = 10_000
    threads: int = 1
    head_size_bytes: int = 32 * 1024
    connect_timeout_s: float = 3.0
    head_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    silence_timeout_s: float = 300.0
    tunnel_timeout_s: float = 3_600.0
    keep_alive_s: float = 75.0
    warm: int = 32
    warm_for_s: float = 30.0
    mesh: Address | None = None  # where other gateways come in, with their certificates
    certificates: str = ""  # changes with them, so that new ones are read


_MOST_THREADS = 8


def make_layout(config: SiteConfig, peers: tuple[PeerLayout, ...], keyring: "Keyring | None", most: int) -> Layout:
    """`most` is how many connections there can be."""
    settings = config.gateway
    services = []
    for service in config.services.values():
        if service.listener.listen is None:
            continue
        replication = service.replication
        services.append(
            ServiceLayout(
                service.name,
                service.listener.listen,
                upstream_address(service.url),
                replication.timeout_s,
                replication.credential_headers if replication.credentials == "drop" else (),
                service.listener.carriers if config.has_carriers else (),
                service.listener.outbound,
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


_FILE = "peers.json"
_MOST = 256  # pairs of a service and a site


class PeerBackends:
    """`laid_out` are those that HAProxy has now."""

    def __init__(self, config: SiteConfig, peers: PeerGateways, keyring: "Keyring | None", most: int) -> None:
        """`most` is how many connections there can be."""
        self._config = config
        self._peers = peers
        self._keyring = keyring
        self._most = most
        self._wanted: OrderedDict[FlowKey, PeerLayout | None] = OrderedDict()
        self.laid_out: dict[FlowKey, PeerLayout] = {}

    def has(self, service: str, target: FlowTarget) -> bool:
        """Whether HAProxy has a backend for it."""
        return target.site is None or (service, target.site) in self.laid_out

    def want(self, service: str, site: str) -> None:
        self._wanted.setdefault((service, site), None)
        self._wanted.move_to_end((service, site))
        while len(self._wanted) > _MOST:
            self._wanted.popitem(last=False)

    def layout_now(self, folder: Path) -> Layout:
        """What HAProxy is to have."""
        changed = False
        for key, before in self._wanted.items():
            now = peer_layout(self._peers, self._keyring, *key)
            if now is not None and now != before:
                self._wanted[key], changed = now, True
        if changed:
            self._save(folder)
        known = [one for one in self._wanted.values() if one]
        peers = sorted(known, key=lambda one: (one.service, one.site))
        return make_layout(self._config, tuple(peers), self._keyring, self._most)

    def load(self, folder: Path, services: Collection[str]) -> None:
        try:
            told = msgspec.json.decode((folder / _FILE).read_bytes(), type=list[PeerLayout])
        except (OSError, msgspec.MsgspecError):
            return
        for one in told[:_MOST]:
            if one.service in services:
                self._wanted[one.service, one.site] = one

    def _save(self, folder: Path) -> None:
        known = [one for one in self._wanted.values() if one]
        (folder / _FILE).write_bytes(msgspec.json.encode(known))
