"""Handles one request from its head to the end of its response: parse, route, dispatch, respond.

`server` calls `RequestHandler.serve` with a head that `client_connection` has read. From there on a request passes
`request` (parse), `routing` (decide), `dispatcher` (send to a target, then to the next one) and `responses`.
"""

import logging
import time
from collections.abc import Callable
from typing import Protocol

from msgspec.structs import replace

from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.carriers import Carriers
from cheops.gateway.client_connection import ClientConnection
from cheops.gateway.cors import for_service, is_preflight, preflight_answer
from cheops.gateway.dispatcher import AnyResponse, Dispatcher, Forwarder, discard, status_and_headers
from cheops.gateway.error_shapes import shaped
from cheops.gateway.gather import Gatherer
from cheops.gateway.haproxy.flows import FlowCandidate
from cheops.gateway.headers import (
    CREDENTIALS,
    FALLBACK,
    SITE,
    Headers,
    RequestHead,
    decode_name,
    encode_header,
    encode_name,
    is_safe,
)
from cheops.gateway.interfaces import ClientGoneError, GatewayRequestError, Replication, Response, UpstreamError
from cheops.gateway.peers import PeerGateways
from cheops.gateway.request import Listener, Request, RequestParser, is_dry_run
from cheops.gateway.request_log import RequestLog, RequestTrace
from cheops.gateway.responses import (
    dry_run_response,
    error_response,
    internal_error_response,
    own_headers,
    proxied_headers,
    relay,
    send_response,
)
from cheops.gateway.routing import (
    Decision,
    Forward,
    Gather,
    InTurn,
    Local,
    Replicate,
    RetryState,
    Target,
    decide,
    decide_forwarded,
    final_error,
    kind_of,
    may_try_next_after_error,
    may_try_next_after_response,
    resolve_route,
    short_reason,
)
from cheops.gateway.unknown_calls import UnknownCallPolicy
from cheops.gateway.upstream import DisconnectWatch
from cheops.scope.functions import Functions
from cheops.scope.snapshot import Snapshot

_log = logging.getLogger(__name__)


class FlowInstaller(Protocol):
    """Installs the decision for a scope, so that HAProxy serves it from the second request on; see haproxy.plane."""

    @property
    def generation(self) -> int: ...

    def offer(self, candidate: FlowCandidate, decision: Decision, generation: int) -> None: ...


class RequestHandler:
    """Serves the requests of all clients, from the parsed head to the end of the response."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a gateway
        self,
        config: SiteConfig,
        functions: Functions,
        snapshot: Callable[[], Snapshot],
        peers: PeerGateways,
        forwarder: Forwarder,
        carriers: Carriers | None,
        unknown_calls: UnknownCallPolicy | None,
        request_log: RequestLog,
    ) -> None:
        self._here = config.name
        self._settings = config.gateway
        self._services = config.services
        self._parser = RequestParser(config, functions, peers, carriers, unknown_calls)
        self._functions = functions
        self._snapshot = snapshot
        self._forwarder = forwarder
        self._request_log = request_log
        self._dispatcher = Dispatcher(config, peers, forwarder)
        self._gatherer = Gatherer(config, self._dispatcher, forwarder, snapshot)
        self.flows: FlowInstaller | None = None

    def replicate_with(self, replication: Replication) -> None:
        """Send requests for replicated resources to this."""
        self._dispatcher.replication = replication

    async def serve(self, client: ClientConnection, listener: Listener, head: RequestHead) -> None:
        """Serve one request. Raises ClientGoneError or GatewayRequestError if the connection must end after it."""
        trace = RequestTrace(listener.service, head.method, head.target, began_s=time.monotonic(), site=self._here)
        disconnect_watch = DisconnectWatch()
        client.wire.on_end = disconnect_watch.client_left
        try:
            if client.wire.has_ended:
                raise ClientGoneError("the client disconnected")  # noqa: TRY301 - handled as when it leaves later
            await self._route(await self._parser.parse_request(client, listener, head, trace, disconnect_watch))
        except (ClientGoneError, GatewayRequestError) as error:
            trace.status = trace.status or error.status
            if client.has_response_head:
                raise ClientGoneError("the response broke off") from None
            raise
        except CheopsError as error:
            await self._respond_error(client, trace, error_response(self._here, error, service=trace.service))
        except Exception:
            _log.exception("%s %s failed", head.method, trace.service)
            await self._respond_error(client, trace, internal_error_response(self._here))
        finally:
            client.wire.on_end = None
            self._request_log.served(trace.served_request())

    async def _respond_error(self, client: ClientConnection, trace: RequestTrace, response: Response) -> None:
        service = self._services.get(trace.service)
        await self._respond(client, trace, shaped(response, service.replication.errors) if service else response)

    async def _respond(self, client: ClientConnection, trace: RequestTrace, response: Response) -> None:
        if client.has_response_head:
            raise ClientGoneError("the response broke off")  # its head is sent: only closing can report it
        trace.status = response.status
        headers = response.headers
        if trace.fallback:
            headers = (*headers, (FALLBACK, encode_header(trace.fallback)))
        await send_response(client, replace(response, headers=headers))

    # -- routing -----------------------------------------------------------------------------------------

    async def _route(self, request: Request) -> None:
        snapshot, head = self._snapshot(), request.head
        route = resolve_route(request.scope, request.service, snapshot, self._functions)
        reading = is_safe(head)
        decision: Decision
        if request.sender is None:
            decision = decide(route, snapshot, reading=reading)
        else:
            decision = decide_forwarded(route, self._here, snapshot, reading=reading)
        request.trace.route = kind_of(decision)
        if is_dry_run(head):
            request.trace.route = "dry-run"
            for target in decision.targets if isinstance(decision, InTurn) else (decision,):
                if isinstance(target, Gather):
                    self._gatherer.check(request, target)
            replicant = await self._dispatcher.dry_run(request, decision)
            dry_run = dry_run_response(
                request.service, head, request.scope, route, decision, snapshot, self._functions, replicant
            )
            await self._respond(request.client, request.trace, dry_run)
            return
        # Read before the request is served: if the route changes meanwhile, HAProxy must not use it for later requests.
        generation = self.flows.generation if self.flows else 0
        targets = decision.targets if isinstance(decision, InTurn) else (decision,)
        if is_preflight(head):
            request = replace(request, head=for_service(head), preflight=head)
        await self._try_targets(request, targets)
        if self.flows and request.is_flow_candidate and request.scope and not request.trace.fallback:
            sent, client = request.sent_scope or "", request.client.peer
            candidate = FlowCandidate(request.service, sent, request.scope, request.recovered, client)
            self.flows.offer(candidate, decision, generation)

    async def _try_targets(self, request: Request, targets: tuple[Target, ...]) -> None:
        """Try the targets in order until one works. The response of the last one counts, whatever it is."""
        failed: list[str] = []
        for number, target in enumerate(targets, 1):
            name, left = self._name(target), len(targets) - number
            try:
                response = await self._dispatch(request, target, is_only=len(targets) == 1)
                retry_state = RetryState(request.head, request.upload.can_restart, left)
                # A response that is replaced by the next target's must be closed, or its connection is lost.
                if may_try_next_after_response(*status_and_headers(response), target, retry_state):
                    await discard(response)
                    failed.append(f"{encode_name(name)}: {status_and_headers(response)[0]}")
                    continue
            except CheopsError as error:
                # The watch has closed the upstream connection: that error is not the target's fault.
                if request.disconnect_watch.is_gone:
                    raise ClientGoneError("the client disconnected") from None
                request.trace.site = name
                retry_state = RetryState(request.head, request.upload.can_restart, left)
                if not may_try_next_after_error(error, target, retry_state):
                    raise final_error(error, name, failed, retry_state) from error
                failed.append(f"{encode_name(name)}: {short_reason(error)}")
                continue
            finally:
                request.trace.fallback = ", ".join(failed)
            await self._send(request, target, response)
            return

    async def _dispatch(self, request: Request, target: Target, *, is_only: bool) -> AnyResponse:
        if isinstance(target, Gather):
            return await self._gatherer.gather(request, target)
        return await self._dispatcher.dispatch(request, target, is_only=is_only)

    def _name(self, target: Target) -> str:
        match target:
            case Local():
                return self._here
            case Forward(site):
                return site
            case Replicate(route):
                return " & ".join(route.sites)
            case Gather(route):
                return " % ".join(route.sites)

    # -- responding --------------------------------------------------------------------------------------

    async def _send(self, request: Request, target: Target, response: AnyResponse) -> None:
        trace = request.trace
        if isinstance(response, Response):
            headers = own_headers(response.headers, self._here)
            if request.preflight:
                headers = preflight_answer(request.preflight, response.status, headers)
            trace.site = _served_by(headers, self._here)
            try:
                await self._respond(request.client, trace, replace(response, headers=headers))
            finally:
                await discard(response)
            return
        headers = proxied_headers(response.upstream.head.headers, self._here, response.site, trace.fallback)
        if response.site != self._here and self._forwarder.for_peers(request.service, request.head) != request.head:
            headers = (*headers, (CREDENTIALS, "dropped"))
        if request.preflight:
            headers = preflight_answer(request.preflight, response.upstream.head.status, headers)
        trace.status = response.upstream.head.status
        trace.site = _served_by(headers, response.site)
        try:
            await relay(request.client, response.upstream, headers, self._settings)
        except UpstreamError as error:
            if request.disconnect_watch.is_gone:
                raise ClientGoneError("the client disconnected") from None
            if not request.client.has_response_head:
                raise
            _log.info("a response of %s at %s broke off: %s", request.service, self._name(target), error)
            raise ClientGoneError("the response broke off") from None
        finally:
            await response.finish()


def _served_by(headers: Headers, otherwise: str) -> str:
    """The site that a response names as the one that served it."""
    names = (value for name, value in headers if name.lower() == SITE.lower())
    return decode_name(next(names, encode_name(otherwise)))
