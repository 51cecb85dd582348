"""Handles one request from its head to the end of its response: parse, route, dispatch, respond."""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.carriers import Carriers
from cheops.gateway.client_connection import ClientConnection
from cheops.gateway.dispatcher import AnyResponse, Dispatcher, Forwarder, discard, status_and_headers
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
from cheops.gateway.interfaces import GatewayRequestError, GoneError, Replication, Response, UpstreamError
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
from cheops.gateway.upstream import DisconnectWatch
from cheops.scope.functions import Functions
from cheops.scope.snapshot import Snapshot

_log = logging.getLogger(__name__)


class FlowInstaller(Protocol):
    """Who serves a scope from its second request on; see fast/plane.py."""

    @property
    def generation(self) -> int: ...

    def offer(self, news: FlowCandidate, decision: Decision, generation: int) -> None: ...


class RequestHandler:
    """Serves the requests of all clients."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a gateway
        self,
        config: SiteConfig,
        functions: Functions,
        snapshot: Callable[[], Snapshot],
        peers: PeerGateways,
        sending: Forwarder,
        carriers: Carriers | None,
        record: RequestLog,
    ) -> None:
        self._here = config.name
        self._settings = config.gateway
        self._parser = RequestParser(config, functions, peers, carriers)
        self._functions = functions
        self._snapshot = snapshot
        self._forwarder = sending
        self._record = record
        self._dispatcher = Dispatcher(config, peers, sending)
        self.flows: FlowInstaller | None = None

    def replicate_with(self, replication: Replication) -> None:
        """Have this answer what is replicated."""
        self._dispatcher.replication = replication

    async def serve(self, client: ClientConnection, entrance: Listener, head: RequestHead) -> None:
        """One request. Raises GoneError or GatewayRequestError where the connection is of no use after it."""
        story = RequestTrace(entrance.service, head.method, head.target, began_s=time.monotonic(), site=self._here)
        watched = DisconnectWatch()
        client.wire.on_end = watched.gone
        try:
            if client.wire.has_ended:
                raise GoneError("the client went away")  # noqa: TRY301 - handled as when it leaves later
            await self._route(await self._parser.parse_request(client, entrance, head, story, watched))
        except (GoneError, GatewayRequestError) as error:
            story.status = story.status or error.status
            if client.is_answered:
                raise GoneError("the answer broke off") from None
            raise
        except CheopsError as error:
            await self._tell(client, story, error_response(self._here, error, service=story.service))
        except Exception:
            _log.exception("%s %s failed", head.method, story.service)
            await self._tell(client, story, internal_error_response(self._here))
        finally:
            client.wire.on_end = None
            self._record.served(story.served())

    async def _tell(self, client: ClientConnection, story: RequestTrace, outgoing: Response) -> None:
        if client.is_answered:
            raise GoneError("the answer broke off")  # to end it is the only way to say so
        story.status = outgoing.status
        headers = outgoing.headers
        if story.fallback:
            headers = (*headers, (FALLBACK, encode_header(story.fallback)))
        await send_response(client, replace(outgoing, headers=headers))

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
        request.story.route = kind_of(decision)
        if is_dry_run(head):
            request.story.route = "dry-run"
            replicant = await self._dispatcher.dry_run(request, decision)
            told = dry_run_response(
                request.service, head, request.scope, route, decision, snapshot, self._functions, replicant
            )
            await self._tell(request.client, request.story, told)
            return
        generation = self.flows.generation if self.flows else 0
        choices = decision.choices if isinstance(decision, InTurn) else (decision,)
        await self._try(request, choices)
        if self.flows and request.is_news and request.scope and not request.story.fallback:
            news = FlowCandidate(request.service, request.sent_scope or "", request.scope, request.recovered)
            self.flows.offer(news, decision, generation)

    async def _try(self, request: Request, choices: tuple[Target, ...]) -> None:
        """The first that works; the last one's answer stands, whatever it is."""
        failed: list[str] = []
        for number, choice in enumerate(choices, 1):
            name, left = self._name(choice), len(choices) - number
            try:
                found = await self._dispatcher.dispatch(request, choice, is_only=len(choices) == 1)
                at_hand = RetryState(request.head, request.upload.can_restart, left)
                if may_try_next_after_response(*status_and_headers(found), choice, at_hand):
                    await discard(found)
                    failed.append(f"{encode_name(name)}: {status_and_headers(found)[0]}")
                    continue
            except CheopsError as error:
                if request.watched.is_gone:
                    raise GoneError("the client went away") from None
                request.story.site = name
                at_hand = RetryState(request.head, request.upload.can_restart, left)
                if not may_try_next_after_error(error, choice, at_hand):
                    raise final_error(error, name, failed, at_hand) from error
                failed.append(f"{encode_name(name)}: {short_reason(error)}")
                continue
            finally:
                request.story.fallback = ", ".join(failed)
            await self._answer(request, choice, found)
            return

    def _name(self, choice: Target) -> str:
        match choice:
            case Local():
                return self._here
            case Forward(site):
                return site
            case Replicate(route):
                return " & ".join(route.sites)

    # -- answering ---------------------------------------------------------------------------------------

    async def _answer(self, request: Request, choice: Target, found: AnyResponse) -> None:
        story = request.story
        if isinstance(found, Response):
            headers = own_headers(found.headers, self._here)
            story.site = _served_by(headers, self._here)
            await self._tell(request.client, story, replace(found, headers=headers))
            return
        headers = proxied_headers(found.asked.answer.headers, self._here, found.site, story.fallback)
        if found.site != self._here and self._forwarder.for_peers(request.service, request.head) != request.head:
            headers = (*headers, (CREDENTIALS, "dropped"))
        story.status = found.asked.answer.status
        story.site = _served_by(headers, found.site)
        try:
            await relay(request.client, found.asked, headers, self._settings)
        except UpstreamError as error:
            if request.watched.is_gone:
                raise GoneError("the client went away") from None
            if not request.client.is_answered:
                raise
            _log.info("%s of %s broke off: %s", request.service, self._name(choice), error)
            raise GoneError("the answer broke off") from None
        finally:
            await found.finish()


def _served_by(headers: Headers, otherwise: str) -> str:
    """Which site an answer names as the one that served it."""
    told = (value for name, value in headers if name.lower() == SITE.lower())
    return decode_name(next(told, encode_name(otherwise)))
