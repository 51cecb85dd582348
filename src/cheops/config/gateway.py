"""The HTTP gateway in the configuration file: where it listens for each service, and its patience.

gateway: {proxy: "127.0.0.1:3128"}
services:
  image:
    url: http://127.0.0.1:9292
    listen: 10.0.0.1:9000
    outbound: 127.0.0.1:9001
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cheops.config.address import Address, address_at, address_of_url, is_loopback, url_at
from cheops.config.security import SecurityConfig
from cheops.config.settings import GATEWAY, duration_s, optional, size
from cheops.documents import Value
from cheops.text import listed, printable, shortened

DEFAULT_CARRIERS = ("X-Request-Id", "traceparent")
DATA_PLANES = ("auto", "haproxy", "builtin")
MAX_CARRIERS = 8
MAX_HOSTS = 32
MAX_CONNECTIONS = 1_000_000
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,100}")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
_OURS = ("scope", "host", "content-length", "transfer-encoding", "connection")


@dataclass(frozen=True, slots=True)
class ServiceListener:
    """Where the gateway stands in front of a service. Without `listen` it does not."""

    listen: Address | None = None  # clients, and the gateways of other sites
    advertise: str = ""  # the URL at which those reach it
    outbound: Address | None = None  # the application of this site
    hosts: tuple[str, ...] = ()  # what the application calls the service, where it uses a proxy; or its name
    carriers: tuple[str, ...] = DEFAULT_CARRIERS
    add_carrier: bool = True


class ForwardedHeaders(StrEnum):
    """What a service is told of who asked, as it sees the gateway's address only."""

    CLIENT = "for"  # X-Forwarded-For
    ALL = "all"  # also Forwarded, X-Forwarded-Host and -Proto
    NOTHING = "none"


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """What holds for all services."""

    listen: Address | None = None  # the gateways of other sites, over TLS, for all services
    advertise: str = ""  # the URL at which those reach it
    proxy: Address | None = None
    forwarded_headers: ForwardedHeaders = ForwardedHeaders.CLIENT  # what services learn of who asked
    connections: int = 10_000
    head_size_bytes: int = 32 * 1024
    repeat_size_bytes: int = 64 * 1024
    connect_timeout_s: float = 3.0
    head_timeout_s: float = 10.0
    stall_timeout_s: float = 60.0
    silence_timeout_s: float = 300.0
    tunnel_timeout_s: float = 3_600.0
    keep_alive_s: float = 75.0
    warm: int = 32
    warm_for_s: float = 30.0
    carriers: int = 20_000
    carriers_for_s: float = 600.0
    stop_timeout_s: float = 10.0
    data_plane: str = "auto"  # who forwards: haproxy, builtin, or HAProxy where it is installed
    flows: int = 20_000  # how many scopes HAProxy knows by heart


def gateway_at(value: Value, site_url: str, security: SecurityConfig) -> GatewayConfig:
    """`site_url` is where others reach the agent."""
    record = GATEWAY.read(value)
    default = GatewayConfig()
    listen = optional(record, "listen", address_at, None)
    if listen and not security.is_on:
        raise record["listen"].fail(
            "this is for gateways that show certificates, and there are none; without them they use the "
            "addresses of the services (services.NAME.listen)"
        )
    if listen is None and "advertise" in record:
        raise record["advertise"].fail("without 'listen' there is nothing that others could reach")
    advertise = optional(record, "advertise", url_at, _advertised(listen, site_url, security.scheme))
    if listen and not advertise.startswith("https://"):
        raise record["advertise"].fail("gateways speak TLS with each other, so this starts with https://")
    return GatewayConfig(
        listen,
        advertise,
        optional(record, "proxy", address_at, None),
        optional(record, "forwarded_headers", _forwarded_headers, default.forwarded_headers),
        optional(record, "connections", _count, default.connections),
        optional(record, "head_size", _head_size, default.head_size_bytes),
        optional(record, "repeat_size", size, default.repeat_size_bytes),
        optional(record, "connect_timeout", duration_s, default.connect_timeout_s),
        optional(record, "head_timeout", duration_s, default.head_timeout_s),
        optional(record, "stall_timeout", duration_s, default.stall_timeout_s),
        optional(record, "silence_timeout", duration_s, default.silence_timeout_s),
        optional(record, "tunnel_timeout", duration_s, default.tunnel_timeout_s),
        optional(record, "keep_alive", duration_s, default.keep_alive_s),
        optional(record, "warm", lambda at: at.whole(minimum=0, maximum=10_000), default.warm),
        optional(record, "warm_for", duration_s, default.warm_for_s),
        optional(record, "carriers", _count, default.carriers),
        optional(record, "carriers_for", duration_s, default.carriers_for_s),
        optional(record, "stop_timeout", duration_s, default.stop_timeout_s),
        optional(record, "data_plane", _data_plane, default.data_plane),
        optional(record, "flows", _count, default.flows),
    )


def listener_at(record: dict[str, Value], site_url: str) -> ServiceListener:
    """What a service's own section says of the gateway; `site_url` is where others reach the agent."""
    listen = optional(record, "listen", address_at, None)
    if listen is None and "advertise" in record:
        raise record["advertise"].fail("without 'listen' there is nothing that others could reach")
    advertise = optional(record, "advertise", url_at, _advertised(listen, site_url))
    return ServiceListener(
        listen,
        advertise,
        optional(record, "outbound", address_at, None),
        optional(record, "hosts", _hosts, ()),
        optional(record, "carriers", _carriers, DEFAULT_CARRIERS),
        optional(record, "add_carrier", Value.boolean, True),
    )


def _advertised(listen: Address | None, site_url: str, scheme: str = "http") -> str:
    """A wildcard is no address for others: they take the host at which they reach the agent."""
    if listen is None:
        return ""
    at = Address(address_of_url(site_url).host, listen.port) if listen.is_wildcard else listen
    return at.url_as(scheme)


def gateway_warnings(
    fronts: Iterable[tuple[str, ServiceListener]], gateway: GatewayConfig, site_url: str, *, has_peers: bool
) -> Iterable[str]:
    """What is possible, but hardly meant so."""
    fronts, is_secure = tuple(fronts), site_url.startswith("https://")
    if fronts and is_secure and has_peers and gateway.listen is None:
        yield (
            "gateway.listen: without it other sites cannot send requests to the services here; "
            "set it to an address that they reach"
        )
    for name, front in fronts:
        if front.listen and is_loopback(front.advertise) and not (is_loopback(site_url) or is_secure):
            yield (
                f"services.{name}.listen: {front.listen} is this machine only, so other sites cannot send "
                f"requests for {name} here; set 'listen' or 'advertise' to an address that they reach"
            )
        if front.outbound and not is_loopback(front.outbound.url):
            yield (
                f"services.{name}.outbound: {front.outbound} can be reached from other machines; it is meant "
                "for the application of this site alone"
            )


def address_conflict(addresses: Iterable[tuple[str, Address]]) -> str | None:
    """What is wrong with several places to listen at, if two of them are the same."""
    seen: list[tuple[str, Address]] = []
    for key, address in addresses:
        for other_key, other in seen:
            overlap = address.host == other.host or address.is_wildcard or other.is_wildcard
            if address.port == other.port and overlap:
                return f"'{other_key}' and '{key}' both listen at port {address.port} of {address.host}"
        seen.append((key, address))
    return None


def _count(value: Value) -> int:
    return value.whole(minimum=1, maximum=MAX_CONNECTIONS)


def _data_plane(value: Value) -> str:
    return _one_of(value, DATA_PLANES)


def _forwarded_headers(value: Value) -> ForwardedHeaders:
    return ForwardedHeaders(_one_of(value, tuple(ForwardedHeaders)))


def _one_of(value: Value, names: tuple[str, ...]) -> str:
    found = value.string()
    if found not in names:
        raise value.fail(f"expected one of {listed(names)}, found '{printable(shortened(found))}'")
    return found


def _head_size(value: Value) -> int:
    found = size(value)
    if not 1024 <= found <= 1024 * 1024:
        raise value.fail(f"expected a size from 1KiB to 1MiB, found '{value.string()}'")
    return found


def _hosts(value: Value) -> tuple[str, ...]:
    hosts = tuple(dict.fromkeys(_host(item) for item in value.items()))
    if not 1 <= len(hosts) <= MAX_HOSTS:
        raise value.fail(f"expected 1 to {MAX_HOSTS} host names; leave it out for the name of the service")
    return hosts


def _host(value: Value) -> str:
    host = value.string().lower()
    if not _HOST.fullmatch(host):
        shown = printable(shortened(value.string()))
        raise value.fail(f"expected a host name without a port, such as image.internal, found '{shown}'")
    return host


def _carriers(value: Value) -> tuple[str, ...]:
    names = tuple(_carrier(item) for item in value.items())
    if len({name.lower() for name in names}) != len(names) or len(names) > MAX_CARRIERS:
        raise value.fail(f"at most {MAX_CARRIERS} different names of headers; none for no carriers")
    return names


def _carrier(value: Value) -> str:
    name = value.string()
    if not _TOKEN.fullmatch(name) or name.lower() in _OURS or name.lower().startswith("cheops-"):
        shown = printable(shortened(name))
        raise value.fail(f"expected the name of a header that the application passes on, found '{shown}'")
    return name
