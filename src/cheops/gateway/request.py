"""One request: its service, its sender and its scope.

`handler` has `RequestParser` make a `Request` of each head; `routing` decides next, by its scope.

The same code serves all listeners: a service's address for clients (and other sites' gateways), the address for the
local application's own calls, and the proxy, where the host names the service.
"""

from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from urllib.parse import urlsplit

from msgspec import Struct

from cheops.config.services import ServiceConfig
from cheops.config.site import SiteConfig
from cheops.errors import ClientError
from cheops.gateway.carriers import Carriers, RecoveredScope, carriers_in
from cheops.gateway.client_connection import ClientBody, ClientConnection
from cheops.gateway.connection import upstream_address
from cheops.gateway.haproxy.handover import original_request
from cheops.gateway.headers import (
    DRY_RUN,
    FOR_REPLICATION,
    HOP,
    PURPOSE,
    SCOPE,
    SERVICE,
    ForwardingInfo,
    RequestHead,
    body_size,
    decode_name,
    every,
    first,
    has_passed_through,
    with_scope,
    without,
    without_forged_headers,
)
from cheops.gateway.interfaces import GatewayRequestError
from cheops.gateway.peers import PeerGateways
from cheops.gateway.request_log import RequestTrace
from cheops.gateway.routing import parse_scope
from cheops.gateway.unknown_calls import UnknownCallPolicy
from cheops.gateway.upstream import DisconnectWatch
from cheops.scope.functions import Functions
from cheops.scope.parser import parse
from cheops.scope.tree import Scope
from cheops.text import listed, nearest, printable, shortened


class ReceivedRequest:
    """A request as replication gets it; implements `interfaces.IncomingRequest`."""

    def __init__(
        self,
        client: ClientConnection,
        head: RequestHead,
        upload: ClientBody,
        forwarding: ForwardingInfo,
        *,
        is_forwarded: bool,
    ) -> None:
        self.head = head
        self.forwarding = forwarding
        self.peer = client.peer
        self.is_forwarded = is_forwarded
        self.size = upload.size
        self._client = client
        self._upload = upload

    async def body(self) -> AsyncIterator[bytes]:
        await self._client.continue_if_awaited()
        async for piece in self._upload.pieces():
            yield piece


class ListenerKind(StrEnum):
    INBOUND = "inbound"
    MESH = "mesh"  # for other gateways only, over TLS
    OUTBOUND = "outbound"
    PROXY = "proxy"


class Listener(Struct, frozen=True):
    """An address where the gateway listens. At PROXY and MESH the request names the service."""

    kind: ListenerKind
    service: str = ""
    is_retry: bool = False  # HAProxy sends here what it tried without success
    is_from_peer: bool = False  # and here if another gateway had sent it, which HAProxy has verified

    @property
    def is_for_application(self) -> bool:
        return self.kind in (ListenerKind.OUTBOUND, ListenerKind.PROXY)


def find_service(head: RequestHead, listener: Listener, hosts: Mapping[str, str]) -> tuple[str, RequestHead]:
    """The service that a request is for, and the request with path and query alone as its target.

    `hosts` are the names by which the application calls services, for the proxy.
    """
    if head.method == "CONNECT":
        raise ClientError(
            "CONNECT is not supported: the gateway cannot read a scope inside a tunnel. Use http:// for services",
            status=501,
        )
    target, authority = _origin_form(head.target)
    if listener.kind is ListenerKind.PROXY:
        if authority is None:
            raise GatewayRequestError(
                "this address is a proxy: set it as HTTP_PROXY, so that requests name the host of a service"
            )
        service = _service_of_host(authority, hosts)
    elif listener.kind is ListenerKind.MESH:
        service = _service_in_header(head, set(hosts.values()))
    else:
        service = listener.service
    if authority is None:
        return service, head
    # RFC 9112, section 3.2.2: the host of an absolute target replaces the Host header, whatever that says.
    headers = (("Host", authority), *without(head.headers, "Host"))
    return service, RequestHead(head.method, target, headers)


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


def _service_of_host(authority: str, hosts: Mapping[str, str]) -> str:
    host = (urlsplit(f"//{authority}").hostname or "").lower()
    service = hosts.get(host)
    if service is None:
        meant = nearest(host, hosts)
        hint = f"Did you mean '{meant}'? " if meant else ""
        raise ClientError(
            f"'{printable(shortened(host))}' is no service of this site. {hint}Known here: {listed(hosts)}. "
            "What is not a service is reached directly: name it in NO_PROXY",
            status=403,
        )
    return service


def _service_in_header(head: RequestHead, services: set[str]) -> str:
    service = decode_name(first(head, SERVICE) or "")
    if service not in services:
        shown = printable(shortened(service))
        raise ClientError(f"this site has no service '{shown}'; it has {listed(services)}", status=404)
    return service


def is_dry_run(head: RequestHead) -> bool:
    return (first(head, DRY_RUN) or "0").strip().lower() not in ("0", "", "false", "no")


def service_hosts(services: Mapping[str, ServiceConfig]) -> dict[str, str]:
    """The services by the host names that the application uses for them."""
    return {host: service.name for service in services.values() for host in service.hosts}


_ANOTHER = "another site"  # HAProxy has verified that it is one, but does not say which
_HAPROXY_KINDS = (ListenerKind.INBOUND, ListenerKind.OUTBOUND)  # whose later requests HAProxy can serve alone


class Request(Struct, frozen=True):
    """A parsed request."""

    client: ClientConnection
    service: str
    head: RequestHead  # as the client sent it, without the headers that only gateways may send
    scope: Scope | None
    sender: str | None  # the site whose gateway forwarded it; None: a client sent it
    upload: ClientBody
    disconnect_watch: DisconnectWatch
    trace: RequestTrace
    # The text of the Scope header, not normalized: HAProxy finds the flow of later requests by the same text. For a
    # recovered scope, its normalized text.
    sent_scope: str | None = None
    is_flow_candidate: bool = False  # HAProxy may serve the next request with the same scope
    recovered: RecoveredScope | None = None  # the carriers that gave its scope, if it had no Scope header
    proto: str = "http"  # which the client used
    is_part: bool = False  # of a read over several sites: it is served where it is sent, and goes no further
    preflight: RequestHead | None = None  # the head that the browser sent, if it is a preflight


class RequestParser:
    """Parses heads: finds the service, the sender and the scope of a request."""

    def __init__(
        self,
        config: SiteConfig,
        functions: Functions,
        peers: PeerGateways,
        carriers: Carriers | None,
        unknown_calls: UnknownCallPolicy | None,
    ) -> None:
        self._config = config
        self._here = config.name
        self._settings = config.gateway
        self._hosts = service_hosts(config.services)
        self._functions = functions
        self._peers = peers
        self._carriers = carriers
        self._unknown_calls = unknown_calls

    async def parse_request(
        self,
        client: ClientConnection,
        listener: Listener,
        head: RequestHead,
        trace: RequestTrace,
        disconnect_watch: DisconnectWatch,
    ) -> Request:
        """Raises CheopsError for a request that must not be served.

        The order matters: the sender decides which headers are believed, so it comes before the scope.
        """
        upload = ClientBody(client, body_size(head), self._settings.repeat_size_bytes)
        trace.service, head = find_service(head, listener, self._hosts)
        if listener.is_retry:  # HAProxy has changed it already for the target that failed
            base = upstream_address(self._config.services[listener.service].url).path
            head = original_request(head, self._here, base, self._settings.forwarded_headers)
        sender, purpose = None, ""
        is_mesh = listener.kind is ListenerKind.MESH
        if is_mesh or (first(head, HOP) is not None and not listener.is_for_application):
            sender = await self._peers.sender(client, head, is_mesh=is_mesh)
            if sender is None and has_passed_through(head, self._here):
                raise ClientError(
                    f"this request has passed through {self._here} before: the gateways are in a loop", status=508
                )
            purpose = (first(head, PURPOSE) or "") if sender else ""
        if listener.is_from_peer:
            sender = _ANOTHER
        if sender is None:
            head = without_forged_headers(head)
        scope, sent, recovered = None, first(head, SCOPE), None
        # The gateway that forwarded a request has applied its scope. Only a request for replication is routed again.
        if sender is None or purpose == FOR_REPLICATION:
            scope, recovered = self._scope(listener, head, trace)
            head = RequestHead(head.method, head.target, with_scope(head.headers, str(scope) if scope else None))
        trace.scope = str(scope) if scope else first(head, SCOPE) or ""
        if recovered:
            sent = first(head, SCOPE)
        is_flow_candidate = sender is None and listener.kind in _HAPROXY_KINDS and not listener.is_retry
        return Request(
            client,
            trace.service,
            head,
            scope,
            sender,
            upload,
            disconnect_watch,
            trace,
            sent,
            is_flow_candidate,
            recovered,
            "https" if self._is_secured(listener) else "http",
        )

    def _is_secured(self, listener: Listener) -> bool:
        is_inbound = listener.kind is ListenerKind.INBOUND
        return is_inbound and self._config.services[listener.service].listener.tls is not None

    def _scope(
        self, listener: Listener, head: RequestHead, trace: RequestTrace
    ) -> tuple[Scope | None, RecoveredScope | None]:
        scope = parse_scope(every(head, SCOPE), trace.service, self._functions)
        if scope is not None or not listener.is_for_application or self._carriers is None:
            return scope, None
        values = carriers_in(head, self._config.carrier_names)
        text = self._carriers.recover(values)
        if self._unknown_calls and first(head, SCOPE) is None and not self._carriers.knows(values):
            self._unknown_calls.apply(trace.service)
        trace.recovered = text is not None
        if not text:
            return None, None
        return parse(text.encode("latin-1").decode(), self._functions), RecoveredScope(head, text)
