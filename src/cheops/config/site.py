"""The configuration file of a site: the root section, and the rules that concern several sections.

    site: site1
    listen: 10.0.0.1:8079
    peers: {site2: http://10.0.0.2:8079}
    types:
      counter:
        matrix: matrices/counter.json
        allow: ["redis-cli incrby * *"]

Only `site` is required. All sites may share one list of peers, so a site accepts its own name in it, but the URL must
equal `advertise`. What is valid but probably a mistake becomes a warning (`SiteConfig.warnings`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from cheops.config.address import DEFAULT_LISTEN, Address, address_of_url, is_loopback
from cheops.config.gateway import GatewayConfig, UnknownCalls, address_conflict, gateway_warnings
from cheops.config.notify import TARGETS, TargetConfig
from cheops.config.security import (
    MISSING_SECURITY,
    SECURITY,
    UNSPECIFIED,
    ClientsConfig,
    ConfiguredAddress,
    SecurityConfig,
    check_addresses,
    configured_address,
)
from cheops.config.services import (
    ServiceConfig,
    check_service_url,
    resource_type,
    service_conflict,
    service_of,
    type_name,
)
from cheops.config.settings import (
    REQUIRED,
    Section,
    Setting,
    key_of,
    named_sections,
    place,
    read_record,
    read_settings,
    section,
    setting,
)
from cheops.config.types import UNKNOWN_TYPE_POLICY, TypeConfig
from cheops.config.values import (
    ADDRESS,
    COUNT,
    DURATION,
    DURATION_MS,
    NAME,
    PATH,
    SIZE,
    URL,
    ValueType,
    read_names,
    read_path,
    size,
)
from cheops.engine.settings import Limits, Settings
from cheops.errors import ClientError
from cheops.text import listed, nearest, printable, shortened
from cheops.yaml_file import Value, parse_yaml, read_yaml

DEFAULT_FILE = Path("cheops.yaml")
DEFAULT_TYPE = "default"


class ConfiguredPeer(NamedTuple):
    """A URL, and its position in a file."""

    at: Value
    url: str


def _read_peers(value: Value) -> dict[str, ConfiguredPeer]:
    """Names and URLs, in this file or in one that all sites share."""
    names = read_yaml(read_path(value)) if value.is_text else value
    return {name: ConfiguredPeer(at, URL.read(at)) for name, at in read_names(names).items()}


@dataclass(frozen=True, slots=True)
class HeartbeatConfig(Section):
    every_s: float = setting(DURATION, 1.0, "How often this site contacts each peer.")
    down_after_s: float = setting(
        DURATION, 5.0, "A peer that is silent for this long is considered down; at least twice `every`."
    )

    def complete(self, value: Value) -> Self:
        if self.down_after_s < 2 * self.every_s:
            raise value.fail(
                f"'down_after' ({self.down_after_s:g}s) must be at least twice 'every' "
                f"({self.every_s:g}s), or one lost heartbeat takes a site down"
            )
        return self


@dataclass(frozen=True, slots=True)
class DemoConfig(Section):
    wires: Path = setting(
        PATH, REQUIRED, "The Unix socket of the process that carries the connections between the sites of the demo."
    )


def _limit_settings() -> Iterable[Setting]:
    """The engine declares its limits, with their documentation; the unit in a name gives the type of the value."""
    for one in fields(Limits):
        if one.name.endswith("_bytes"):
            most = one.metadata["most"]
            type_ = size(maximum=most) if most else SIZE
            yield Setting(f"{key_of(one.name)}_size", type_, one.default, one.metadata["doc"])
        else:
            type_ = DURATION_MS if one.name.endswith("_ms") else COUNT
            yield Setting(key_of(one.name), type_, one.default, one.metadata["doc"])


_LIMITS = tuple(_limit_settings())


def _read_limits(value: Value) -> Limits:
    record = read_record(_LIMITS, value)
    limits = Limits(
        **{
            one.name: declared.type.read(record[declared.key])
            for one, declared in zip(fields(Limits), _LIMITS, strict=True)
            if declared.key in record
        }
    )
    for key, least, most in (
        ("resend", limits.resend_ms, limits.resend_most_ms),
        ("retry", limits.retry_ms, limits.retry_most_ms),
    ):
        if least > most:
            raise value.fail(f"'{key}' ({least}ms) is more than '{key}_most' ({most}ms)")
    return limits


@dataclass(frozen=True, slots=True)
class SiteConfig(Section):
    """The whole file, with defaults filled in. Paths are absolute, and the site is not among its peers."""

    name: str = setting(NAME, REQUIRED, "The name of this site, as scopes and other sites use it.", key="site")
    listen: Address = setting(
        ADDRESS, DEFAULT_LISTEN, "Where the agent listens for HTTP; IPv6 in brackets, `[::1]:8079`."
    )
    advertise: str = setting(
        URL,
        "",
        "The URL at which others reach this site, without a path. Required if `listen` is a wildcard (`0.0.0.0`, "
        "`[::]`) and there are peers.",
        shown="from `listen`",
    )
    data: Path = setting(PATH, Path("data"), "The directory for everything that must survive a restart.")
    peers: dict[str, str] = setting(
        ValueType("URLs by name, or path", _read_peers),
        {},
        "The other sites: their names and URLs, or the path of a file with them.",
    )
    services: dict[str, ServiceConfig] = setting(
        named_sections(ServiceConfig), {}, "The application's HTTP services at this site."
    )
    gateway: GatewayConfig = setting(
        section(GatewayConfig), GatewayConfig(), "The [gateway](gateway.md) in front of all services."
    )
    types: dict[str, TypeConfig] = setting(
        named_sections(TypeConfig),
        {},
        "Types of resources. A new resource whose request names no type gets the only type, or else the type "
        "`default`.",
    )
    limits: Limits = setting(
        ValueType("section", _read_limits, settings=_LIMITS),
        Limits(),
        "How much the engine keeps and when it retries.",
    )
    heartbeat: HeartbeatConfig = setting(
        section(HeartbeatConfig), HeartbeatConfig(), "How often peers are contacted, and when one is considered down."
    )
    security: SecurityConfig = setting(
        SECURITY,
        UNSPECIFIED,
        "The certificates of this site and the ones that it trusts; `none` for plain HTTP on one machine.",
        shown="required by the agent",
    )
    clients: ClientsConfig = setting(
        section(ClientsConfig), ClientsConfig(), "Limits for users, programs and other sites that send requests."
    )
    notify: tuple[TargetConfig, ...] = setting(
        TARGETS, (), "Where to send [notifications](notifications.md), by name.", shown="none"
    )
    demo: DemoConfig | None = setting(section(DemoConfig), None, "Demo mode, see [below](#demo).")
    source: Path = DEFAULT_FILE  # the file itself
    warnings: tuple[str, ...] = ()

    def problems(self) -> Iterator[str]:
        """Why no agent starts with this configuration, or why its commands fail on this machine."""
        if not self.security.is_specified:
            yield MISSING_SECURITY
        for name, type_ in self.types.items():
            yield from (f"types.{name}: {problem}" for problem in type_.problems(self.data))

    @property
    def listeners(self) -> Iterable[tuple[str, Address]]:
        """All addresses where the gateway listens, with their keys."""
        for service in self.services.values():
            if service.listener.listen:
                yield f"services.{service.name}.listen", service.listener.listen
            if service.listener.outbound:
                yield f"services.{service.name}.outbound", service.listener.outbound
        if self.gateway.listen:
            yield "gateway.listen", self.gateway.listen
        if self.gateway.proxy:
            yield "gateway.proxy", self.gateway.proxy

    @property
    def wires(self) -> Path | None:
        """In demo mode: the socket of the process that can cut this site off."""
        return self.demo.wires if self.demo else None

    @property
    def private_paths(self) -> tuple[Path, ...]:
        """What belongs to the agent: commands that run for clients and other sites have no business there."""
        found = (self.data, self.source, self.security.folder, self.security.ca_key)
        return tuple(path for path in found if path is not None)

    @property
    def service_urls(self) -> tuple[tuple[str, str], ...]:
        """Services, and where the gateways of other sites reach each; an empty address if they cannot."""
        return tuple(
            (name, self.gateway.advertise if self.security.is_on else one.listener.advertise)
            for name, one in sorted(self.services.items())
        )

    @property
    def has_carriers(self) -> bool:
        """Whether the application calls out through the gateway, so that scopes must be recovered."""
        listeners = (service.listener for service in self.services.values())
        return self.gateway.proxy is not None or any(listener.outbound for listener in listeners)

    @property
    def refuses_unknown_calls(self) -> bool:
        """Whether calls without a known scope are refused: then every request to the application needs a carrier."""
        listeners = (service.listener for service in self.services.values())
        return self.has_carriers and any(one.unknown_calls is UnknownCalls.REFUSE for one in listeners)

    @property
    def carrier_names(self) -> tuple[str, ...]:
        """The headers from which scopes are recovered, of all services, in a stable order."""
        if not self.has_carriers:
            return ()
        names = (name for service in self.services.values() for name in service.listener.carriers)
        return tuple({name.lower(): name for name in names}.values())

    @property
    def engine(self) -> Settings:
        """The settings of this site's engine. Without security no site can prove its identity: no policy applies."""
        types = {name: type_.engine for name, type_ in {**self.types, **self.http_types}.items()}
        if not self.security.is_on:
            return Settings(types, self.limits)
        with_policy = {name: replace(one, policy=self.type_named(name).policy) for name, one in types.items()}
        return Settings(with_policy, self.limits, UNKNOWN_TYPE_POLICY)

    @property
    def http_types(self) -> dict[str, TypeConfig]:
        """The types of resources that are replicated by HTTP, one for each service."""
        services = self.services.values()
        return {type_name(one.name): resource_type(one.name, one.replication) for one in services}

    def type_named(self, name: str | None) -> TypeConfig:
        """The type that a request names, or the default one; raises ClientError."""
        wanted = name or DEFAULT_TYPE
        if service_of(wanted) in self.services:
            return self.http_types[wanted]
        if wanted not in self.types:
            meant = nearest(wanted, self.types)
            hint = f"; did you mean '{meant}'?" if meant else "."
            raise ClientError(
                f"unknown resource type '{printable(shortened(wanted))}'{hint} "
                f"Types of {self.name}: {listed(self.types)}"
            )
        return self.types[wanted]


def read_site(path: Path) -> SiteConfig:
    """The configuration in a file; raises YamlFileError."""
    return _read(read_yaml(path), path)


def parse_site(text: str, path: Path) -> SiteConfig:
    """The same from the text of the file, which need not exist yet."""
    return _read(parse_yaml(text, str(path)), path)


def _read(root: Value, path: Path) -> SiteConfig:
    values: dict[str, Any] = read_settings(SiteConfig, root)
    # Peers may come from a file of their own, so messages about them need their positions, which SiteConfig drops.
    peers: dict[str, ConfiguredPeer] = values.pop("peers", {})
    config = SiteConfig(**values, source=path)
    # First the URL of the site: the addresses of its gateway and services, and the rules about peers, follow from it.
    advertise = _advertised_url(config, root, peers)
    config = replace(
        config,
        advertise=advertise,
        data=path.absolute().parent / config.data,
        peers=_other_sites(config.name, advertise, peers),
        gateway=config.gateway.at_site(place(root, "gateway"), advertise, config.security),
        services={
            name: replace(service, listener=service.listener.at_site(advertise))
            for name, service in config.services.items()
        },
    )
    _check(config, root, peers)
    return replace(config, warnings=tuple(_warnings(config)))


def _advertised_url(config: SiteConfig, root: Value, peers: Mapping[str, ConfiguredPeer]) -> str:
    """The URL at which others reach this site."""
    listen, scheme = config.listen, config.security.scheme
    if config.advertise:
        return config.advertise
    if listen.is_wildcard and config.name in peers:
        return peers[config.name].url
    if listen.is_wildcard and peers:
        raise root.fail(
            f"'advertise' is missing: {listen} is all addresses of this machine, and peers need one, "
            f"such as advertise: {scheme}://10.0.0.1:{listen.port}"
        )
    return listen.url_as(scheme)


def _other_sites(name: str, advertise: str, peers: Mapping[str, ConfiguredPeer]) -> dict[str, str]:
    """The peers without the site itself. No two sites have one address."""
    # Two names for one address would be one site that replicates to itself under another name.
    owners = {address_of_url(advertise): name}
    for peer, (at, url) in peers.items():
        if peer == name and url != advertise:
            raise at.fail(
                f"this site itself is at {advertise} (by 'advertise' or 'listen'), not at {url}; "
                "write the same in both places"
            )
        if (owner := owners.setdefault(address_of_url(url), peer)) != peer:
            raise at.fail(f"{url} is the address of '{owner}' already; each site has its own")
    return {peer: url for peer, (_, url) in peers.items() if peer != name}


def _check(config: SiteConfig, root: Value, peers: Mapping[str, ConfiguredPeer]) -> None:
    """The rules about the addresses of all sections together."""
    record = root.mapping()
    listeners = (("listen", config.listen), *config.listeners)
    places = record["services"].mapping() if config.services else {}  # once: a file may list thousands
    for name, service in config.services.items():
        check_service_url(service, places[name], config.listen, config.advertise)
    if problem := address_conflict(listeners) or service_conflict(config.services, config.listeners):
        raise place(root, "services").fail(problem)
    if config.peers and not config.security.is_on:
        secured = next((name for name, one in config.services.items() if one.listener.tls), None)
        if secured is not None:
            raise place(places[secured], "tls").fail(
                "with 'security: none' the gateways of other sites use this address, without TLS; set 'security'"
            )
    check_addresses(
        config.security,
        (
            *(configured_address(record, root, key, address) for key, address in listeners),
            ConfiguredAddress("advertise", place(root, "advertise"), config.advertise, is_agent=True),
            *(
                ConfiguredAddress(f"services.{one.name}.advertise", record["services"], one.listener.advertise)
                for one in config.services.values()
                if one.listener.advertise
            ),
            *(ConfiguredAddress(f"peers.{peer}", at, url, is_agent=True) for peer, (at, url) in peers.items()),
        ),
    )


def _warnings(config: SiteConfig) -> Iterable[str]:
    remote = [peer for peer, url in config.peers.items() if not is_loopback(url)]
    if remote and is_loopback(config.advertise):
        yield (
            f"advertise: {config.advertise} is this machine only, but {listed(remote)} cannot be on it; "
            "set 'listen' or 'advertise' to an address that peers reach"
        )
    if not config.types and not config.services:  # services alone are fine: they need no type
        yield "types: none is configured, so no command is allowed"
    for type_ in config.types.values():
        yield from (f"types.{type_.name}: {warning}" for warning in type_.warnings())
    listeners = [(service.name, service.listener) for service in config.services.values()]
    yield from gateway_warnings(listeners, config.gateway, config.advertise, has_peers=bool(config.peers))
