"""All that HAProxy's configuration depends on. Pure: the same layout, the same text."""

from dataclasses import dataclass

from cheops.config.address import Address
from cheops.config.gateway import Told
from cheops.gateway.pool import Place


@dataclass(frozen=True, slots=True)
class ServiceLayout:
    """A service of this site that clients reach through the fast path."""

    name: str
    listen: Address
    own: Place
    answer_s: float
    dropped: tuple[str, ...] = ()  # names of headers that are not sent to other sites
    carriers: tuple[str, ...] = ()  # whose values are remembered, where the application calls out through us
    outbound: Address | None = None  # where it does


@dataclass(frozen=True, slots=True)
class PeerLayout:
    """The gateway of another site that takes requests for a service."""

    service: str
    site: str
    place: Place
    host: str = ""  # by which its certificate is verified; none: plain HTTP


@dataclass(frozen=True, slots=True)
class Layout:
    here: str
    services: tuple[ServiceLayout, ...]
    peers: tuple[PeerLayout, ...] = ()
    forwarded_headers: Told = Told.CLIENT
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
