"""The configuration file of a site: its name, where it listens, its peers, and what it runs.

    site: site1
    listen: 10.0.0.1:8079
    peers: {site2: http://10.0.0.2:8079}
    types:
      counter:
        matrix: matrices/counter.json
        allow: ["redis-cli incrby * *"]

Only `site` is required. All sites may share one list of peers, so a site's own name is accepted in it and ignored,
but its URL must equal `advertise`. What is doubtful but possible is not refused: see `SiteConfig.warnings`.
docs/configuration.md has every key.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from cheops.config.address import DEFAULT_LISTEN, Address, address_at, address_of_url, is_loopback, url_at
from cheops.config.gateway import GatewayConfig, address_conflict, gateway_at, gateway_warnings
from cheops.config.limits import ClientsConfig, HeartbeatConfig, clients_at, heartbeat_at, limits_at
from cheops.config.notify import TargetConfig, targets_at
from cheops.config.security import (
    UNSPECIFIED,
    ConfiguredAddress,
    SecurityConfig,
    check_addresses,
    configured_address,
    security_at,
)
from cheops.config.services import ServiceConfig, resource_type, service_conflict, service_of, services_at, type_name
from cheops.config.settings import DEMO, SITE, name_at, named_at, optional, path_at
from cheops.config.types import UNKNOWN_TYPE_POLICY, TypeConfig, type_at
from cheops.documents import Value, parse_document, read_document
from cheops.engine.settings import Limits, Settings
from cheops.errors import ClientError
from cheops.text import listed, nearest, printable, shortened


def wires_at(value: Value, folder: Path) -> Path:
    """The Unix socket of whoever holds the wires."""
    return path_at(DEMO.read(value)["wires"], folder)


class ConfiguredPeer(NamedTuple):
    """A URL, and where it is written."""

    at: Value
    url: str


def peers_at(value: Value, folder: Path) -> dict[str, ConfiguredPeer]:
    """Names and URLs, and where each stands: here, or in a file that all sites share."""
    held = read_document(path_at(value, folder)) if value.is_text else value
    return {name: ConfiguredPeer(at, url_at(at)) for name, at in named_at(held).items()}


def advertised_url(  # noqa: PLR0913, PLR0917 - all of it may say so
    root: Value,
    record: Mapping[str, Value],
    listen: Address,
    name: str,
    peers: Mapping[str, ConfiguredPeer],
    scheme: str = "http",
) -> str:
    """The URL at which others reach this site."""
    if "advertise" in record:
        return url_at(record["advertise"])
    if listen.is_wildcard and name in peers:
        return peers[name].url
    if listen.is_wildcard and peers:
        raise root.fail(
            f"'advertise' is missing: {listen} is all addresses of this machine, and peers need one, "
            f"such as advertise: {scheme}://10.0.0.1:{listen.port}"
        )
    return listen.url_as(scheme)


def other_sites(name: str, advertise: str, peers: Mapping[str, ConfiguredPeer]) -> dict[str, str]:
    """The peers without the site itself; no two of them, nor the site, at one address."""
    places = {address_of_url(advertise): name}
    for peer, (at, url) in peers.items():
        if peer == name and url != advertise:
            raise at.fail(
                f"this site itself is at {advertise} (by 'advertise' or 'listen'), not at {url}; "
                "say the same in both places"
            )
        if (holder := places.setdefault(address_of_url(url), peer)) != peer:
            raise at.fail(f"{url} is the address of '{holder}' already; each site has its own")
    return {peer: url for peer, (_, url) in peers.items() if peer != name}


DEFAULT_FILE = Path("cheops.yaml")
DEFAULT_TYPE = "default"
DEFAULT_DATA = "data"


class UnknownTypeError(ClientError):
    """A request names a resource type that this site is not configured for."""


@dataclass(frozen=True, slots=True)
class SiteConfig:
    """All that the file says, defaults filled in. Paths are absolute; the site is not among its peers."""

    name: str
    listen: Address
    advertise: str
    data: Path
    peers: dict[str, str]
    services: dict[str, ServiceConfig]
    types: dict[str, TypeConfig]
    limits: Limits
    heartbeat: HeartbeatConfig
    source: Path
    warnings: tuple[str, ...] = ()
    notify: tuple[TargetConfig, ...] = ()
    gateway: GatewayConfig = field(default_factory=GatewayConfig)
    security: SecurityConfig = UNSPECIFIED
    clients: ClientsConfig = field(default_factory=ClientsConfig)
    wires: Path | None = None  # in demo mode: the socket of whoever can cut this site off

    @property
    def listeners(self) -> Iterable[tuple[str, Address]]:
        """All places where the gateway listens, with the key that says so."""
        return _listeners(self.services.values(), self.gateway)

    @property
    def announced(self) -> tuple[tuple[str, str], ...]:
        """Services, and where the gateways of other sites reach each; an empty address: they do not."""
        return tuple(
            (name, self.gateway.advertise if self.security.is_on else one.front.advertise)
            for name, one in sorted(self.services.items())
        )

    @property
    def has_carriers(self) -> bool:
        """Whether the application calls out through the gateway, so that scopes have to be recovered."""
        fronts = (service.front for service in self.services.values())
        return self.gateway.proxy is not None or any(front.outbound for front in fronts)

    @property
    def carrier_names(self) -> tuple[str, ...]:
        """The headers by which they are, of all services, in an order that stays."""
        if not self.has_carriers:
            return ()
        names = (name for service in self.services.values() for name in service.front.carriers)
        return tuple({name.lower(): name for name in names}.values())

    @property
    def engine(self) -> Settings:
        """What the engine of this site is made with. Where nobody can prove who he is, no policy counts."""
        types = {name: type_.engine for name, type_ in {**self.types, **self.http_types}.items()}
        if not self.security.is_on:
            return Settings(types, self.limits)
        with_policy = {name: replace(one, policy=self.type_named(name).policy) for name, one in types.items()}
        return Settings(with_policy, self.limits, UNKNOWN_TYPE_POLICY)

    @property
    def http_types(self) -> dict[str, TypeConfig]:
        """The types of what is replicated by HTTP, one for each service."""
        services = self.services.values()
        return {type_name(one.name): resource_type(one.name, one.replication) for one in services}

    def type_named(self, name: str | None) -> TypeConfig:
        """The type that a request asks for, or the default one where it names none."""
        wanted = name or DEFAULT_TYPE
        if service_of(wanted) in self.services:
            return self.http_types[wanted]
        if wanted not in self.types:
            meant = nearest(wanted, self.types)
            hint = f"did you mean '{meant}'? " if meant else ""
            raise UnknownTypeError(
                f"unknown resource type '{printable(shortened(wanted))}'; {hint}"
                f"Types of {self.name}: {listed(self.types)}"
            )
        return self.types[wanted]


def read_site(path: Path) -> SiteConfig:
    """The configuration that a file holds; raises DocumentError."""
    return _site(read_document(path), path)


def parse_site(text: str, path: Path) -> SiteConfig:
    """The same from a text that stands, or is going to stand, in the file."""
    return _site(parse_document(text, str(path)), path)


def _site(root: Value, path: Path) -> SiteConfig:
    record = SITE.read(root)
    folder = path.absolute().parent
    name = name_at(record["site"])
    listen = optional(record, "listen", address_at, DEFAULT_LISTEN)
    written: dict[str, ConfiguredPeer] = optional(record, "peers", lambda at: peers_at(at, folder), {})
    security = optional(record, "security", lambda at: security_at(at, folder), UNSPECIFIED)
    advertise = advertised_url(root, record, listen, name, written, security.scheme)
    peers = other_sites(name, advertise, written)
    services: dict[str, ServiceConfig] = optional(
        record, "services", lambda at: services_at(at, listen, advertise, folder), {}
    )
    gateway = optional(record, "gateway", lambda at: gateway_at(at, advertise, security), GatewayConfig())
    listeners = tuple(_listeners(services.values(), gateway))
    if wrong := address_conflict([("listen", listen), *listeners]) or service_conflict(services, listeners):
        raise record.get("services", root).fail(wrong)
    check_addresses(
        security,
        (
            *(configured_address(record, root, key, address) for key, address in (("listen", listen), *listeners)),
            ConfiguredAddress("advertise", record.get("advertise", root), advertise, is_agent=True),
            *(
                ConfiguredAddress(f"services.{one.name}.advertise", record["services"], one.front.advertise)
                for one in services.values()
                if one.front.advertise
            ),
            *(ConfiguredAddress(f"peers.{peer}", at, url, is_agent=True) for peer, (at, url) in written.items()),
        ),
    )
    types: dict[str, TypeConfig] = optional(record, "types", lambda at: _types(at, folder), {})
    fronts = [(service.name, service.front) for service in services.values()]
    return SiteConfig(
        name,
        listen,
        advertise,
        optional(record, "data", lambda at: path_at(at, folder), folder / DEFAULT_DATA),
        peers,
        services,
        types,
        optional(record, "limits", limits_at, Limits()),
        optional(record, "heartbeat", heartbeat_at, HeartbeatConfig()),
        path,
        (
            *_warnings(advertise, peers, types.values(), services),
            *gateway_warnings(fronts, gateway, advertise, has_peers=bool(peers)),
        ),
        optional(record, "notify", lambda at: targets_at(at, folder), ()),
        gateway,
        security,
        optional(record, "clients", clients_at, ClientsConfig()),
        optional(record, "demo", lambda at: wires_at(at, folder), None),
    )


def _listeners(services: Iterable[ServiceConfig], gateway: GatewayConfig) -> Iterable[tuple[str, Address]]:
    for service in services:
        if service.front.listen:
            yield f"services.{service.name}.listen", service.front.listen
        if service.front.outbound:
            yield f"services.{service.name}.outbound", service.front.outbound
    if gateway.listen:
        yield "gateway.listen", gateway.listen
    if gateway.proxy:
        yield "gateway.proxy", gateway.proxy


def _types(value: Value, folder: Path) -> dict[str, TypeConfig]:
    return {name: type_at(name, at, folder) for name, at in named_at(value).items()}


def _warnings(
    advertise: str, peers: Mapping[str, str], types: Iterable[TypeConfig], services: Iterable[str]
) -> Iterable[str]:
    far = [peer for peer, url in peers.items() if not is_loopback(url)]
    if far and is_loopback(advertise):
        yield (
            f"advertise: {advertise} is this machine only, but {listed(far)} cannot be on it; "
            "set 'listen' or 'advertise' to an address that peers reach"
        )
    configured = list(types)
    if not configured and not list(services):  # a site may well have services only
        yield "types: none is configured, so no command is allowed"
    for type_ in configured:
        for warning in type_.warnings():
            yield f"types.{type_.name}: {warning}"
