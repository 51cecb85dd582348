"""Everything that HAProxy's configuration depends on, and the names and values in its configuration and maps.

A flow is an entry in its service's map: the percent-encoded text of the Scope header, and a value with three fields,
`BACKEND|SCOPE|FLAGS`: which backend serves, the scope to pass on where its spelling differs, and what a request must
not have.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote

from cheops.config.address import Address
from cheops.config.gateway import ForwardedHeaders
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.connection import UpstreamAddress, upstream_address
from cheops.gateway.peers import PeerGateways

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring


LOCAL_KEY = "*"  # of requests without a scope: no encoded text has a star
RECOVERED = "*"  # stands before a scope in a log where a carrier told it
NO_BODIES = "b"  # not for bodies in which ids of replicants are looked for
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
    """Where the agent takes what the fast path does not know."""
    return f"front.{slug(service)}.sock"


def again_socket(service: str) -> str:
    """Where it takes what the fast path tried in vain."""
    return f"again.{slug(service)}.sock"


def again_sent_socket(service: str) -> str:
    """The same for what another gateway sent on: it goes no further."""
    return f"sent.{slug(service)}.sock"


def calls_of(service: str) -> str:
    """The agent, for the application's own calls."""
    return f"calls.{slug(service)}"


def calls_socket(service: str) -> str:
    """Where it takes them."""
    return f"calls.{slug(service)}.sock"


MESH_AGENT = "mesh.agent"
MESH_SOCKET = "mesh.sock"  # where the agent takes what other gateways ask and the fast path does not know
SERVICES = "services.map"  # what other gateways may ask for: the name of a service as they send it → backend

CARRIED = "carried.map"  # which scope the carriers of a call stand for: see carrying.py
MAX_VALUE_BYTES = 500  # bytes of a carrier's value; longer ones are the agent's


def key_of(scope: str) -> str:
    """The text of a header, one character per byte, as `url_enc` of HAProxy writes it."""
    return quote(scope.encode("latin-1"), safe="")


def carried_key(values: Iterable[str]) -> str:
    """What a call carries, in the order of the carriers: an empty text for each that it has not."""
    return "|" + "".join(f"{key_of(value)}|" for value in values)


def scope_of_key(key: str) -> str:
    return unquote(key, encoding="latin-1")


def value_of(backend: str, passed_on: str = "", flags: str = "") -> str:
    if not passed_on and not flags:
        return backend
    return f"{backend}|{key_of(passed_on)}|{flags}"


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
    address: UpstreamAddress
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


_MAX_THREADS = 8


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
    return max(1, min((os.cpu_count() or 1) // 2, _MAX_THREADS))


def peer_layout(peers: PeerGateways, keyring: "Keyring | None", service: str, site: str) -> PeerLayout | None:
    """The gateway of a site, where there is one; None where nobody knows of any."""
    try:
        address = peers.address(site, service)
    except CheopsError:
        return None
    return PeerLayout(service, site, address, keyring.host_of(site) if keyring else "")
