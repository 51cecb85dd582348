"""Sends a request to one target of its route: the local service, another site's gateway, or replication.

`handler` calls `Dispatcher.dispatch` for one target after the other, as `routing` has ordered them. `Forwarder`
prepares the head for the other side and sends it with `upstream`; `responses` relays what comes back.
"""

import uuid
from collections.abc import Callable, Mapping
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from cheops.config.gateway import GatewayConfig
from cheops.config.services import ServiceConfig
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError, ClientError
from cheops.gateway.carriers import Carriers, CarrierUse, carriers_in, with_new_carrier
from cheops.gateway.connection import UpstreamAddress, service_address
from cheops.gateway.headers import (
    FOR_REPLICATION,
    HOP,
    PURPOSE,
    SCOPE,
    SERVICE,
    ForwardingInfo,
    Headers,
    RequestHead,
    body_size,
    encode_name,
    end_to_end,
    first,
    headers_for_upstream,
    requested_upgrade,
    with_scope,
    without,
    without_mesh,
)
from cheops.gateway.interfaces import Body, DryRunResult, Replication, Response, UpstreamError, close_body
from cheops.gateway.peers import PeerGateways
from cheops.gateway.request import ReceivedRequest, Request
from cheops.gateway.responses import informational_relay
from cheops.gateway.routing import Decision, Forward, Gather, InTurn, Local, Replicate, Target
from cheops.gateway.upstream import (
    DisconnectWatch,
    PreparedBody,
    ResponseTimeout,
    UpstreamClient,
    UpstreamRequest,
    UpstreamResponse,
    ignore_informational,
    streamed_response,
)
from cheops.text import printable, shortened

_PEER_MARGIN_S = 5.0  # the other gateway knows the reason for a timeout, so it should report it first
_SWITCHING = 101


class Forwarder:
    """Sends requests to services and other gateways. Also the `UpstreamServices` (see interfaces) of replication."""

    def __init__(  # noqa: PLR0913 - what it needs of a gateway
        self,
        here: str,
        services: Mapping[str, ServiceConfig],
        settings: GatewayConfig,
        peers: PeerGateways,
        carriers: Carriers | None,
        *,
        marks_all: bool = False,
    ) -> None:
        """`marks_all`: add a carrier to requests without a scope, too."""
        self._here = here
        self._marks_all = marks_all
        self._services = services
        self._peers = peers
        self._carriers = carriers
        self.client = UpstreamClient(settings, peers.credentials)

    # -- proxied requests --------------------------------------------------------------------------------

    async def send_to_local(
        self, service: str, upstream_request: UpstreamRequest, answer_s: float | None = None
    ) -> tuple[UpstreamResponse, CarrierUse | None]:
        """Send to this site's instance. The caller ends the carrier use when the response is complete."""
        address = service_address(self._services[service])
        head = upstream_request.head
        seen = RequestHead(head.method, head.target, without_mesh(head.headers))
        seen, carrier_use = self._with_carrier(service, seen)
        timeout = ResponseTimeout(answer_s or self._services[service].replication.timeout_s)
        try:
            if carrier_use:
                # Before it is sent: the application may call out at once, and that call must not get an old scope.
                await carrier_use.wait_consistent()
            sent = replace(upstream_request, head=_head_for(seen, address, upstream_request))
            return await self.client.send(address, sent, timeout), carrier_use
        except BaseException:
            if carrier_use:
                carrier_use.end()
            raise

    async def send_to_site(
        self, site: str, service: str, upstream_request: UpstreamRequest, purpose: str = ""
    ) -> UpstreamResponse:
        """Send to the instance of another site, through its gateway."""
        address = self._peers.address(site, service)
        head = _head_for(self.for_peers(service, upstream_request.head), address, upstream_request)
        mesh: Headers = (
            (HOP, encode_name(self._here)),
            (SERVICE, encode_name(service)),
            *([(PURPOSE, purpose)] if purpose else ()),
        )
        sent = replace(upstream_request, head=RequestHead(head.method, head.target, (*head.headers, *mesh)))
        answer_s = self._services[service].replication.timeout_s + _PEER_MARGIN_S
        timeout = ResponseTimeout(answer_s, lambda: not self._peers.is_up(site))
        try:
            return await self.client.send(address, sent, timeout)
        except UpstreamError:
            self._peers.probe_now(site)  # it may be down: the next request should know without waiting for a timeout
            raise

    def for_peers(self, service: str, head: RequestHead) -> RequestHead:
        """A head as another gateway gets it: without the client's credentials, if they are not forwarded."""
        config = self._services[service].replication
        if config.forward == "client":
            return head
        kept = tuple(pair for pair in head.headers if not config.is_credential(pair[0]))
        return RequestHead(head.method, head.target, kept)

    def _with_carrier(
        self, service: str, head: RequestHead, *, is_marked: bool = False
    ) -> tuple[RequestHead, CarrierUse | None]:
        """Remember the scope under the carriers that the application passes on, to recognize its own calls. With
        `is_marked`, a request without a scope gets a carrier, too."""
        if self._carriers is None:
            return head, None
        front = self._services[service].listener
        scope = first(head, SCOPE)
        values = carriers_in(head, front.carriers)
        if (
            (scope or is_marked or self._marks_all)
            and front.add_carrier
            and not self._carriers.is_unambiguous(values, scope)
        ):
            head = RequestHead(
                head.method, head.target, with_new_carrier(head.headers, front.carriers, uuid.uuid4().hex)
            )
            values = carriers_in(head, front.carriers)
        return head, self._carriers.begin(values, scope)

    # -- for replication ---------------------------------------------------------------------------------

    async def local(
        self, service: str, head: RequestHead, body: Body | None, timeout_s: float, forwarding: ForwardingInfo
    ) -> Response:
        upload = PreparedBody(body, body_size(head))
        head = RequestHead(head.method, head.target, _own_framing(head.headers, upload))
        upstream_request = UpstreamRequest(head, upload, ignore_informational, DisconnectWatch(), forwarding)
        response, carrier_use = await self.send_to_local(service, upstream_request, timeout_s)
        streamed = await streamed_response(response, carrier_use.end if carrier_use else None)
        return replace(streamed, headers=without_mesh(streamed.headers))  # an application must not pass for a gateway

    async def at(
        self, site: str, service: str, head: RequestHead, body: Body | None, forwarding: ForwardingInfo
    ) -> Response:
        if not self._peers.is_up(site):
            error = self._peers.down(site)
            raise UpstreamError(str(error), "down", may_have_had_effect=False) from None
        upload = PreparedBody(body, body_size(head))
        head = RequestHead(head.method, head.target, _own_framing(head.headers, upload))
        upstream_request = UpstreamRequest(head, upload, ignore_informational, DisconnectWatch(), forwarding)
        return await streamed_response(await self.send_to_site(site, service, upstream_request, FOR_REPLICATION))

    async def carry(self, service: str, headers: Headers, scope: str) -> tuple[Headers, Callable[[], None]]:
        carrier_use = None
        try:
            # An operation may say nothing about other services: that is known then, and its calls are not reported.
            bare = RequestHead("", "", with_scope(headers, scope or None))
            head, carrier_use = self._with_carrier(service, bare, is_marked=True)
            if carrier_use:
                await carrier_use.wait_consistent()
        except BaseException as error:
            if carrier_use:
                carrier_use.end()
            if isinstance(error, CheopsError):
                raise UpstreamError(str(error), "not sent", may_have_had_effect=False, status=503) from None
            raise
        return without(head.headers, SCOPE), carrier_use.end if carrier_use else _nothing


def _head_for(head: RequestHead, address: UpstreamAddress, upstream_request: UpstreamRequest) -> RequestHead:
    """A request as it goes over the wire to an address."""
    if upstream_request.forwarding is None:
        headers = end_to_end(head.headers)
    else:
        headers = headers_for_upstream(head, upstream_request.forwarding, upgrade=requested_upgrade(head.headers))
    if upstream_request.upload.size is None:
        headers = (*headers, ("Transfer-Encoding", "chunked"))
    if first(head, "Host") is None:
        headers = (("Host", address.authority), *headers)
    target = head.target if head.target == "*" else address.path + head.target
    return RequestHead(head.method, target, headers)


def _own_framing(headers: Headers, upload: PreparedBody) -> Headers:
    """Headers with the length of the body that is sent, which may differ from the one that the client sent."""
    kept = without(headers, "Content-Length", "Transfer-Encoding")
    if upload.size is None or (upload.size == 0 and first(RequestHead("", "", headers), "Content-Length") is None):
        return kept
    return (*kept, ("Content-Length", str(upload.size)))


def _nothing() -> None:
    """For a request without a carrier use to end."""


class ProxiedResponse(Struct, frozen=True):
    """An upstream response whose head has arrived, and the carrier use to end with it."""

    upstream: UpstreamResponse
    site: str
    carrier_use: CarrierUse | None = None

    async def finish(self) -> None:
        await self.upstream.finish()
        if self.carrier_use:
            self.carrier_use.end()


AnyResponse: TypeAlias = ProxiedResponse | Response


class Dispatcher:
    """Sends a request to one target of its route: the local service, another site's gateway, or replication."""

    replication: Replication | None = None

    def __init__(self, config: SiteConfig, peers: PeerGateways, forwarder: Forwarder) -> None:
        self._here = config.name
        self._settings = config.gateway
        self._peers = peers
        self._forwarder = forwarder

    async def dispatch(self, request: Request, target: Target, *, is_only: bool) -> AnyResponse:
        """Raises CheopsError. A site known to be down is refused at once only if there is no other target to try."""
        service = request.service
        match target:
            case Replicate(route):
                if self.replication is None:
                    raise CheopsError("replication (&) of HTTP requests is not set up at this site", status=501)
                if request.head.method == "GET" and (protocol := requested_upgrade(request.head.headers)):
                    raise ClientError(
                        f"a connection that switches to another protocol ({printable(shortened(protocol))}) cannot be "
                        f"replicated: name one site in the scope, such as {{{service}: {route.sites[0]}}}, or "
                        f"alternatives, {{{service}: {' ; '.join(route.sites[:2])}}}",
                        status=422,
                    )
                return await self.replication.handle(service, self._received(request), route)
            case Forward(site):
                if is_only and not self._peers.is_up(site):
                    raise self._peers.down(site)
                upstream = await self._forwarder.send_to_site(site, service, self._upstream_request(request))
                return ProxiedResponse(upstream, site)
            case Local():
                # Without a scope, too: a request that names a replicated resource concerns all of its sites.
                if self.replication is not None and self.replication.concerns(service, request.head):
                    tunnel = await self._tunnel(request, self.replication)
                    return tunnel or await self.replication.handle(service, self._received(request), None)
                upstream, carrier_use = await self._forwarder.send_to_local(service, self._upstream_request(request))
                return ProxiedResponse(upstream, self._here, carrier_use)
            case Gather():
                raise AssertionError("the gatherer sends one request for each part")

    async def dry_run(self, request: Request, decision: Decision) -> DryRunResult | None:
        """What replication would do with a request; None if another site decides, and this one knows nothing of it."""
        if self.replication is None:
            return None
        first = decision.targets[0] if isinstance(decision, InTurn) else decision
        if isinstance(first, Gather):
            return None  # each part decides for itself
        if isinstance(first, Forward):  # the other site decides, by its own rules
            return await self.replication.replicant(request.service, request.head)
        route = decision.route if isinstance(decision, Replicate) else None
        return await self.replication.dry_run(request.service, self._received(request), route)

    async def _tunnel(self, request: Request, replication: Replication) -> ProxiedResponse | None:
        """The response that switches to another protocol, if the service agrees to it (101). If it does not, a GET
        had no effect, and the request is handled like any other."""
        head = request.head
        if head.method != "GET" or request.upload.size != 0 or requested_upgrade(head.headers) is None:
            return None
        upstream_request = self._upstream_request(
            replace(request, head=replication.with_local_ids(request.service, head))
        )
        upstream, carrier_use = await self._forwarder.send_to_local(request.service, upstream_request)
        response = ProxiedResponse(upstream, self._here, carrier_use)
        if response.upstream.head.status == _SWITCHING:
            return response
        await response.finish()
        return None

    def _received(self, request: Request) -> ReceivedRequest:
        headers = without(end_to_end(request.head.headers), "Expect")
        head = RequestHead(request.head.method, request.head.target, headers)
        is_forwarded = request.sender is not None or request.is_part
        return ReceivedRequest(
            request.client, head, request.upload, self._forwarding(request), is_forwarded=is_forwarded
        )

    def _upstream_request(self, request: Request) -> UpstreamRequest:
        forwarding = self._forwarding(request)
        informational = ignore_informational if request.is_part else informational_relay(request.client)
        return UpstreamRequest(request.head, request.upload, informational, request.disconnect_watch, forwarding)

    def _forwarding(self, request: Request) -> ForwardingInfo:
        return ForwardingInfo(self._here, request.client.peer, request.proto, self._settings.forwarded_headers)


def status_and_headers(response: AnyResponse) -> tuple[int, Headers]:
    head = response.upstream.head if isinstance(response, ProxiedResponse) else response
    return head.status, head.headers


async def discard(response: AnyResponse) -> None:
    """Finish a response, whether its body was read or not."""
    if isinstance(response, ProxiedResponse):
        await response.finish()
    else:
        await close_body(response.body)
