"""The HTTP gateway in the configuration file: where it listens, for all services and for each, and its limits.

gateway: {proxy: "127.0.0.1:3128"}
services:
  image:
    url: http://127.0.0.1:9292
    listen: 10.0.0.1:9000
    outbound: 127.0.0.1:9001
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from cheops.config.address import Address, address_of_url, is_loopback
from cheops.config.security import SecurityConfig
from cheops.config.service_tls import ListenerTls
from cheops.config.settings import Section, is_set, place, section, setting
from cheops.config.values import ADDRESS, BOOLEAN, COUNT, DURATION, KIB, MIB, SIZE, URL, ValueType, choice, count, size
from cheops.text import printable, shortened
from cheops.yaml_file import Value

DEFAULT_CARRIERS = ("X-Request-Id", "traceparent")  # frameworks and tracing libraries pass these on by themselves
DATA_PLANES = ("auto", "haproxy", "builtin")
MAX_CARRIERS = 8
MAX_HOSTS = 32
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,100}")
_HOST = re.compile(r"[a-z0-9_]([a-z0-9_.-]{0,251}[a-z0-9_])?")
# The gateway itself reads or rewrites these, so they cannot identify a request of the application.
_RESERVED_HEADERS = ("scope", "host", "content-length", "transfer-encoding", "connection")


class ForwardedHeaders(StrEnum):
    """Which headers name the client to a service, which sees only the gateway's address."""

    CLIENT = "for"  # X-Forwarded-For
    ALL = "all"  # also Forwarded, X-Forwarded-Host and -Proto
    NOTHING = "none"


class UnknownCalls(StrEnum):
    """What becomes of a call of the application that has neither a scope nor a known carrier."""

    ALLOW = "allow"
    WARN = "warn"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class GatewayConfig(Section):
    """The settings of the gateway that apply to all services."""

    listen: Address | None = setting(
        ADDRESS,
        None,
        "Where the gateways of other sites connect, for all services, over mutual TLS. With `security` on, other sites "
        "need it to forward requests to this one. With `security: none` it is refused: they use "
        "`services.NAME.listen`.",
    )
    advertise: str = setting(  # empty if the gateway does not listen: other sites cannot reach it
        URL,
        "",
        "The URL at which they reach it, `https://`. With a wildcard in `gateway.listen` it has the host of the site's "
        "`advertise`.",
        shown="from `listen`",
    )
    proxy: Address | None = setting(
        ADDRESS,
        None,
        "Where the application finds its `HTTP_PROXY`. It leads to services, by `services.NAME.hosts`, and nowhere "
        "else.",
    )
    forwarded_headers: ForwardedHeaders = setting(
        choice(ForwardedHeaders, ForwardedHeaders),
        ForwardedHeaders.CLIENT,
        "Which headers name the client to services: `for` adds `X-Forwarded-For`, `all` adds also `Forwarded`, "
        "`X-Forwarded-Host` and `X-Forwarded-Proto`, `none` adds nothing. `Host` is passed on "
        "unchanged; for replicated requests see `services.NAME.host`.",
    )
    connections: int = setting(
        COUNT,
        10_000,
        "Open connections of clients; further ones get a 503. The limit of open files may allow fewer.",
    )
    head_size_bytes: int = setting(
        size(KIB, MIB), 32 * KIB, "Largest request line and headers together.", key="head_size"
    )
    repeat_size_bytes: int = setting(
        SIZE,
        64 * KIB,
        "Largest body that is kept while it is sent, so that it can be sent to another site if this one fails.",
        key="repeat_size",
    )
    connect_timeout_s: float = setting(DURATION, 3.0, "How long a connection to a service or to another site may take.")
    head_timeout_s: float = setting(DURATION, 10.0, "How long a client may take to send the headers of a request.")
    stall_timeout_s: float = setting(
        DURATION, 60.0, "How long a client may pause while it sends a body or reads a response."
    )
    silence_timeout_s: float = setting(DURATION, 300.0, "How long a service may pause within its response.")
    tunnel_timeout_s: float = setting(
        DURATION, 3_600.0, "How long a WebSocket or another upgraded connection may be idle."
    )
    keep_alive_s: float = setting(DURATION, 75.0, "How long a client's connection stays open for its next request.")
    warm: int = setting(
        count(0, 10_000), 32, "Idle connections that are kept to each service and to each other gateway."
    )
    warm_for_s: float = setting(DURATION, 30.0, "How long they are kept.")
    carriers: int = setting(COUNT, 20_000, "How many values of carrier headers are remembered.")
    carriers_for_s: float = setting(
        DURATION, 600.0, "How long they are remembered after the response to the request with the scope."
    )
    stop_timeout_s: float = setting(DURATION, 10.0, "How long requests in progress may take when the agent stops.")
    data_plane: str = setting(
        choice(DATA_PLANES, str),
        "auto",
        "What forwards requests: `haproxy`, `builtin` (the agent itself), or `auto`: HAProxy if version 2.6 or newer "
        "is installed, else the agent. See [the fast path](gateway.md#the-fast-path).",
    )
    flows: int = setting(
        COUNT,
        20_000,
        "How many scopes are cached in HAProxy, over all services. If there are more, the client that has the most "
        "loses its least recently used one.",
    )

    def complete(self, value: Value) -> Self:
        _check_advertise(self.listen, value)
        return self

    def at_site(self, value: Value, site_url: str, security: SecurityConfig) -> Self:
        """The same with what depends on the rest of the file; `site_url` is where others reach the agent."""
        if self.listen is None:
            return self
        if not security.is_on:
            raise place(value, "listen").fail(
                "this is for gateways that show certificates, and there are none; without them they use the "
                "addresses of the services (services.NAME.listen)"
            )
        advertise = self.advertise or _advertised_url(self.listen, site_url, security.scheme)
        if not advertise.startswith("https://"):
            raise place(value, "advertise").fail("gateways speak TLS with each other, so this starts with https://")
        return replace(self, advertise=advertise)


def _read_hosts(value: Value) -> tuple[str, ...]:
    hosts = tuple(dict.fromkeys(_read_host(item) for item in value.items()))
    if not 1 <= len(hosts) <= MAX_HOSTS:
        raise value.fail(f"expected 1 to {MAX_HOSTS} host names; leave it out for the name of the service")
    return hosts


def _read_host(value: Value) -> str:
    host = value.string().lower()
    if not _HOST.fullmatch(host):
        shown = printable(shortened(value.string()))
        raise value.fail(f"expected a host name without a port, such as image.internal, found '{shown}'")
    return host


def _read_carriers(value: Value) -> tuple[str, ...]:
    names = tuple(_read_carrier(item) for item in value.items())
    if len({name.lower() for name in names}) != len(names) or len(names) > MAX_CARRIERS:
        raise value.fail(f"at most {MAX_CARRIERS} different names of headers; none for no carriers")
    return names


def _read_carrier(value: Value) -> str:
    name = value.string()
    if not _TOKEN.fullmatch(name) or name.lower() in _RESERVED_HEADERS or name.lower().startswith("cheops-"):
        shown = printable(shortened(name))
        raise value.fail(f"expected the name of a header that the application passes on, found '{shown}'")
    return name


@dataclass(frozen=True, slots=True)
class ServiceListener(Section):
    """Where the gateway listens for one service. Without `listen` and `outbound` it does not."""

    listen: Address | None = setting(
        ADDRESS,
        None,
        "Where the [gateway](gateway.md) accepts requests of clients for the service; with `security: none` also those "
        "of the gateways of other sites, which otherwise use `gateway.listen`.",
    )
    tls: ListenerTls | None = setting(
        section(ListenerTls),
        None,
        "The certificate for `listen`. With it clients use https, without it http. See [TLS](gateway.md#tls).",
    )
    advertise: str = setting(
        URL,
        "",
        "With `security: none`, the URL at which the gateways of other sites reach that address. With a wildcard in "
        "`listen` it has the host of the site's `advertise`.",
        shown="from `listen`",
    )
    outbound: Address | None = setting(
        ADDRESS, None, "Where the application of this site itself reaches the service, so that scopes follow its calls."
    )
    hosts: tuple[str, ...] = setting(
        ValueType("list of host names", _read_hosts),
        (),
        "The host names by which the application calls the service through `gateway.proxy`. URLs with these hosts in "
        "responses are recognized as links to the service's own resources, like those with the host of `url` or the "
        "one that the client used.",
        shown="its name",
    )
    carriers: tuple[str, ...] = setting(
        ValueType("list of headers", _read_carriers, lambda names: f"[{', '.join(names)}]"),
        DEFAULT_CARRIERS,
        "Headers that the application passes on with its own calls, from which a scope is "
        "[recovered](gateway.md#scopes-follow-calls); `[]` for none.",
    )
    add_carrier: bool = setting(
        BOOLEAN, True, "Whether the first of them is added to a request with a scope that has none of them."
    )
    unknown_calls: UnknownCalls = setting(
        choice(UnknownCalls, UnknownCalls),
        UnknownCalls.WARN,
        "A call of the application to this service without a scope or a known carrier, while the gateway remembers "
        "requests with scopes: `allow` serves it here, `warn` also reports it, `refuse` answers 409. See "
        "[calls without a known scope](gateway.md#calls-without-a-known-scope).",
    )

    def complete(self, value: Value) -> Self:
        _check_advertise(self.listen, value)
        if self.tls and self.listen is None:
            raise place(value, "tls").fail("'tls' is the certificate for 'listen', which is not set")
        return self

    def at_site(self, site_url: str) -> Self:
        """The same with its URL for other sites; `site_url` is where they reach the agent."""
        if self.listen is None or self.advertise:
            return self
        return replace(self, advertise=_advertised_url(self.listen, site_url, "https" if self.tls else "http"))


def _check_advertise(listen: Address | None, value: Value) -> None:
    if listen is None and is_set(value, "advertise"):
        raise place(value, "advertise").fail("without 'listen' there is nothing that others could reach")


def _advertised_url(listen: Address, site_url: str, scheme: str) -> str:
    """Others cannot connect to a wildcard: they use the host at which they reach the agent."""
    reachable = Address(address_of_url(site_url).host, listen.port) if listen.is_wildcard else listen
    return reachable.url_as(scheme)


def gateway_warnings(
    listeners: Iterable[tuple[str, ServiceListener]], gateway: GatewayConfig, site_url: str, *, has_peers: bool
) -> Iterable[str]:
    """Settings that are possible but probably a mistake."""
    listeners, is_secure = tuple(listeners), site_url.startswith("https://")
    if listeners and is_secure and has_peers and gateway.listen is None:
        yield (
            "gateway.listen: without it other sites cannot send requests to the services here; "
            "set it to an address that they reach"
        )
    for name, listener in listeners:
        # With security on, other sites use `gateway.listen` and never this address.
        if listener.listen and is_loopback(listener.advertise) and not (is_loopback(site_url) or is_secure):
            yield (
                f"services.{name}.listen: {listener.listen} is this machine only, so other sites cannot send "
                f"requests for {name} here; set 'listen' or 'advertise' to an address that they reach"
            )
        if listener.outbound and not is_loopback(listener.outbound.url):
            yield (
                f"services.{name}.outbound: {listener.outbound} can be reached from other machines; it is meant "
                "for the application of this site alone"
            )


def address_conflict(addresses: Iterable[tuple[str, Address]]) -> str | None:
    """The error message if two of these addresses, each with its key, conflict; None if none do."""
    seen: list[tuple[str, Address]] = []
    for key, address in addresses:
        for other_key, other in seen:
            # Host names are not resolved: they may mean something else when the agent starts.
            overlap = address.host == other.host or address.is_wildcard or other.is_wildcard
            if address.port == other.port and overlap:
                return f"'{other_key}' and '{key}' both listen at port {address.port} of {address.host}"
        seen.append((key, address))
    return None
