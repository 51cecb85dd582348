"""A request as the gateway understands it: which service it is for, who sent it, and with which scope.

The same for all three ways in: the address of a service for clients (and for the gateways of other sites),
the one for the application of this site, and the proxy, where the host says which service is meant.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from cheops.config.services import ServiceConfig
from cheops.errors import ClientError
from cheops.gateway.errors import GatewayRequestError
from cheops.gateway.headers import DRY_RUN, SERVICE, site_named
from cheops.gateway.seam import Head, first, without
from cheops.text import listed, nearest, printable, shortened


class Way(StrEnum):
    INBOUND = "inbound"
    MESH = "mesh"  # of other gateways only, over TLS
    OUTBOUND = "outbound"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Entrance:
    """An address where the gateway listens; at the proxy's and the mesh's the service is in the request."""

    way: Way
    service: str = ""
    is_again: bool = False  # for what HAProxy has tried in vain
    is_sent: bool = False  # and what another gateway sent on, as HAProxy has seen

    @property
    def is_for_application(self) -> bool:
        return self.way in (Way.OUTBOUND, Way.PROXY)


class UnknownHostError(ClientError):
    """The proxy leads to services only."""

    status = 403


class UnknownServiceError(ClientError):
    """Another gateway asks for a service that is not here."""

    status = 404


class LoopError(ClientError):
    status = 508


class NoTunnelError(ClientError):
    status = 501


def addressed(head: Head, entrance: Entrance, hosts: Mapping[str, str]) -> tuple[str, Head]:
    """The service that a request is for, and the request with path and query alone as its target.

    `hosts` are the names by which the application calls services, for the proxy.
    """
    if head.method == "CONNECT":
        raise NoTunnelError(
            "CONNECT is not possible here: nobody sees the scope in a tunnel. Use http:// for services"
        )
    target, authority = _origin_form(head.target)
    if entrance.way is Way.PROXY:
        if authority is None:
            raise GatewayRequestError(
                "this address is a proxy: set it as HTTP_PROXY, so that requests name the host of a service"
            )
        service = _service_called(authority, hosts)
    elif entrance.way is Way.MESH:
        service = _service_named(head, set(hosts.values()))
    else:
        service = entrance.service
    if authority is None:
        return service, head
    headers = (("Host", authority), *without(head.headers, "Host"))
    return service, Head(head.method, target, headers)


def _origin_form(target: str) -> tuple[str, str | None]:
    """Path and query, and the host if the target names one."""
    if target.startswith("/") or target == "*":
        return target, None
    try:
        parts = urlsplit(target)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme.lower() != "http" or not parts.hostname or parts.username is not None:
        raise GatewayRequestError(f"'{printable(shortened(target))}' is neither a path nor an http:// URL")
    rest = target[len(parts.scheme) + 3 + len(parts.netloc) :].partition("#")[0]
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    path = rest if rest.startswith("/") else f"/{rest}"
    return path, host if port is None else f"{host}:{port}"


def _service_called(authority: str, hosts: Mapping[str, str]) -> str:
    host = (urlsplit(f"//{authority}").hostname or "").lower()
    service = hosts.get(host)
    if service is None:
        meant = nearest(host, hosts)
        hint = f"Did you mean '{meant}'? " if meant else ""
        raise UnknownHostError(
            f"'{printable(shortened(host))}' is no service of this site. {hint}Known here: {listed(hosts)}. "
            "What is not a service is reached directly: name it in NO_PROXY"
        )
    return service


def _service_named(head: Head, services: set[str]) -> str:
    service = site_named(first(head, SERVICE) or "")
    if service not in services:
        shown = printable(shortened(service))
        raise UnknownServiceError(f"this site has no service '{shown}'; it has {listed(services)}")
    return service


def size_of(head: Head) -> int | None:
    """How many bytes the body has; None where only its end will tell."""
    if first(head, "Transfer-Encoding") is not None:
        return None
    return int(first(head, "Content-Length") or 0)


def is_dry_run(head: Head) -> bool:
    return (first(head, DRY_RUN) or "0").strip().lower() not in ("0", "", "false", "no")


def hosts_of(services: Mapping[str, ServiceConfig]) -> dict[str, str]:
    """Which service is meant by which host name."""
    return {host: service.name for service in services.values() for host in service.hosts}
