"""Everything that HAProxy's configuration depends on, and the names and values in its configuration and maps.

A flow is an entry in its service's map: the percent-encoded text of the Scope header, and a value with three fields,
`BACKEND|SCOPE|FLAGS`: which backend serves, the scope to pass on where its spelling differs, and what a request must
not have.
"""

import os
import re
from collections.abc import Iterable
from hashlib import sha256
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from msgspec import Struct
from msgspec.structs import replace

from cheops.config.address import Address
from cheops.config.gateway import ForwardedHeaders, UnknownCalls
from cheops.config.service_tls import ListenerTls
from cheops.config.services import ServiceConfig
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.connection import UpstreamAddress, service_address
from cheops.gateway.peers import PeerGateways
from cheops.gateway.service_tls import CertificateFileError, listener_files, upstream_files

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring


LOCAL_KEY = "*"  # for requests without a scope: no encoded text has a star
RECOVERED = "*"  # before a scope in HAProxy's log: a carrier gave it
NO_BODIES = "b"  # not for requests whose body may name replicated resources
WITHOUT_EXCEPTIONS = r"^(?:own|to)\.[^|]*(?:\|[^|]*\|)?$"  # values whose flow is for every usual request
_PLAIN = re.compile(r"[A-Za-z0-9_-]{1,60}")


def slug(name: str) -> str:
    """The name of a site or service as HAProxy's configuration can hold it."""
    return name if _PLAIN.fullmatch(name) and not name.startswith("x-") else f"x-{name.encode().hex()}"


def agent_of(service: str) -> str:
    return f"agent.{slug(service)}"


def own_of(service: str) -> str:
    return f"own.{slug(service)}"


def own_or_of(service: str) -> str:
    """This site's instance, and where that fails another site."""
    return f"or.{slug(service)}"


def unknown_of(service: str) -> str:
    """This site's instance, for calls of the application without a scope or a carrier: they are counted apart."""
    return f"unknown.{slug(service)}"


def sent_of(service: str) -> str:
    """This site's instance, for requests that the gateway of another site sent on."""
    return f"sent.{slug(service)}"


def peer_of(service: str, site: str) -> str:
    return f"to.{slug(service)}.{slug(site)}"


def peer_or_of(service: str, site: str) -> str:
    return f"or.{slug(service)}.{slug(site)}"


def map_of(service: str) -> str:
    return f"{slug(service)}.map"


def front_socket(service: str) -> str:
    """Where the agent takes requests without a flow."""
    return f"front.{slug(service)}.sock"


def again_socket(service: str) -> str:
    """Where it takes requests that HAProxy tried without success."""
    return f"again.{slug(service)}.sock"


def again_sent_socket(service: str) -> str:
    """The same for requests that another gateway forwarded, which are not forwarded again."""
    return f"sent.{slug(service)}.sock"


def calls_of(service: str) -> str:
    """The agent, for the application's own calls."""
    return f"calls.{slug(service)}"


def calls_socket(service: str) -> str:
    """Where it takes the application's own calls."""
    return f"calls.{slug(service)}.sock"


def listener_certificate(service: str) -> str:
    """The file with the certificate that clients see, and its key."""
    return f"tls-{slug(service)}.pem"


def listener_authorities(service: str) -> str:
    """The file with the authorities of clients."""
    return f"clients-{slug(service)}.pem"


def upstream_certificate(service: str) -> str:
    """The file with the certificate that the service sees, and its key."""
    return f"own-{slug(service)}.pem"


def upstream_authorities(service: str) -> str:
    """The file with the authorities of the service."""
    return f"ca-{slug(service)}.pem"


MESH_AGENT = "mesh.agent"
MESH_SOCKET = "mesh.sock"  # where the agent takes requests of other gateways that HAProxy cannot serve
SERVICES = "services.map"  # for requests of other gateways: the encoded name of a service → backend

CARRIED = "carried.map"  # the carriers of a call → its scope: see admission.CarrierCache
MAX_VALUE_BYTES = 500  # of a carrier; calls with longer ones go to the agent


def key_of(scope: str) -> str:
    """The text of a header, one character per byte, as `url_enc` of HAProxy writes it."""
    return quote(scope.encode("latin-1"), safe="")


def carried_key(values: Iterable[str]) -> str:
    """The carriers of a call, in their order; an empty text for each that it does not have."""
    return "|" + "".join(f"{key_of(value)}|" for value in values)


def scope_of_key(key: str) -> str:
    return unquote(key, encoding="latin-1")


def value_of(backend: str, passed_on: str = "", flags: str = "") -> str:
    if not passed_on and not flags:
        return backend
    return f"{backend}|{key_of(passed_on)}|{flags}"


class ServiceLayout(Struct, frozen=True):
    """A service of this site that clients reach through HAProxy."""

    name: str
    listen: Address
    own: UpstreamAddress
    answer_s: float
    dropped: tuple[str, ...] = ()  # names of headers that are not sent to other sites
    carriers: tuple[str, ...] = ()  # whose values are remembered, if the application makes calls through the gateway
    outbound: Address | None = None  # the address for the application's own calls
    unknown_calls: UnknownCalls = UnknownCalls.ALLOW  # those without a scope or a carrier
    marks_all: bool = False  # the agent adds a carrier to all requests to the local instance
    tls: ListenerTls | None = None  # the certificate for clients
    tls_version: str = ""  # a hash of all certificates, so that new ones cause a reload
    is_direct: bool = True  # HAProxy itself can connect to the service

    @property
    def counts_unknown_calls(self) -> bool:
        return self.outbound is not None and self.unknown_calls is UnknownCalls.WARN


class PeerLayout(Struct, frozen=True):
    """The gateway of another site that takes requests for a service."""

    service: str
    site: str
    address: UpstreamAddress
    host: str = ""  # by which its certificate is verified; none: plain HTTP


class Layout(Struct, frozen=True):
    """Everything that HAProxy's configuration depends on: an equal layout needs no reload."""

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
    mesh: Address | None = None  # the address for other gateways, with certificates
    certificates: str = ""  # a hash of them, so that new ones cause a reload


_MAX_THREADS = 8


def make_layout(config: SiteConfig, peers: tuple[PeerLayout, ...], keyring: "Keyring | None", most: int) -> Layout:
    """`most` is the limit of connections."""
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
                service_address(service),
                replication.timeout_s,
                _spellings(replication.credential_headers) if replication.forward == "none" else (),
                service.listener.carriers if config.has_carriers else (),
                service.listener.outbound,
                service.listener.unknown_calls,
                config.refuses_unknown_calls,
                service.listener.tls,
                *_upstream_state(service),
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


def _upstream_state(service: ServiceConfig) -> tuple[str, bool]:
    """A hash of the certificates of a service, and whether HAProxy can connect to it. HAProxy compares the name in a
    certificate with host names only: a service that is known by its address is left to the agent."""
    tls, address = service.listener.tls, service_address(service)
    versions = [listener_files(tls).current().fingerprint] if tls else []
    if not address.tls:
        return "".join(versions)[:16], True
    try:
        versions.append(upstream_files(address.tls).current().fingerprint)
    except CertificateFileError:
        return "".join(versions), False
    is_named = bool(address.tls.server_name) or not _is_ip(address.host)
    return sha256("".join(versions).encode()).hexdigest()[:16], is_named


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _spellings(headers: tuple[str, ...]) -> tuple[str, ...]:
    """Some programs read `_` in the name of a header as `-`, so HAProxy looks for both."""
    return tuple(dict.fromkeys((*headers, *(name.replace("-", "_") for name in headers))))


def _threads() -> int:
    """Half of the cores: the other half is for the application. A single thread needs no locks."""
    return max(1, min((os.cpu_count() or 1) // 2, _MAX_THREADS))


def peer_layout(peers: PeerGateways, keyring: "Keyring | None", service: str, site: str) -> PeerLayout | None:
    """The gateway of a site for a service; None if it has none."""
    try:
        address = peers.address(site, service)
    except CheopsError:
        return None
    address = replace(address, host=peers.host_names.address_of(address.host))
    return PeerLayout(service, site, address, keyring.host_of(site) if keyring else "")
