"""A request from its head to the end of its answer: understood, routed, tried where it should go, and told.

Where several sites are to be tried in order, the next one is if the one before certainly did nothing, or if
doing it twice is as good as once; and only if the body is still at hand (see upload.py).
"""

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.asking import Watched, only_reads
from cheops.gateway.attempting import Attempting, Found, dropped, head_of
from cheops.gateway.carriers import Carriers
from cheops.gateway.client import Client
from cheops.gateway.dry_run import foretold
from cheops.gateway.errors import GatewayRequestError, GoneError, UpstreamError
from cheops.gateway.fallback import AtHand, given_up, goes_on_after_answer, goes_on_after_error, why
from cheops.gateway.fast.table import News
from cheops.gateway.headers import (
    CREDENTIALS,
    FALLBACK,
    SITE,
    as_header,
    site_name,
    site_named,
)
from cheops.gateway.peers import PeerGateways
from cheops.gateway.problems import of_error, of_mistake
from cheops.gateway.record import Record, Story
from cheops.gateway.relay import answer_headers, outgoing_headers, relay
from cheops.gateway.request import (
    Entrance,
    is_dry_run,
)
from cheops.gateway.routing import (
    Choice,
    Decision,
    Forward,
    InTurn,
    Local,
    Replicate,
    decide,
    decide_forwarded,
    kind_of,
    route_of,
)
from cheops.gateway.seam import Head, Headers, Outgoing, Replication
from cheops.gateway.sending import Sending
from cheops.gateway.telling import tell
from cheops.gateway.understanding import Request, Understanding
from cheops.scope.functions import Functions
from cheops.scope.snapshot import Snapshot

_log = logging.getLogger(__name__)


class Flows(Protocol):
    """Who serves a scope from its second request on; see fast/plane.py."""

    @property
    def generation(self) -> int: ...

    def offer(self, news: News, decision: Decision, generation: int) -> None: ...


class Serving:
    """Serves the requests of all clients."""

    def __init__(  # noqa: PLR0913, PLR0917 - the parts of a gateway
        self,
        config: SiteConfig,
        functions: Functions,
        snapshot: Callable[[], Snapshot],
        peers: PeerGateways,
        sending: Sending,
        carriers: Carriers | None,
        record: Record,
    ) -> None:
        self._here = config.name
        self._settings = config.gateway
        self._understanding = Understanding(config, functions, peers, carriers)
        self._functions = functions
        self._snapshot = snapshot
        self._sending = sending
        self._record = record
        self._attempting = Attempting(config, peers, sending)
        self.flows: Flows | None = None

    def replicate_with(self, replication: Replication) -> None:
        """Have this answer what is replicated."""
        self._attempting.replication = replication

    async def serve(self, client: Client, entrance: Entrance, head: Head) -> None:
        """One request. Raises GoneError or GatewayRequestError where the connection is of no use after it."""
        story = Story(entrance.service, head.method, head.target, began_s=time.monotonic(), site=self._here)
        watched = Watched()
        client.wire.on_end = watched.gone
        try:
            if client.wire.has_ended:
                raise GoneError("the client went away")  # noqa: TRY301 - handled as when it leaves later
            await self._route(await self._understanding.understood(client, entrance, head, story, watched))
        except (GoneError, GatewayRequestError) as error:
            story.status = story.status or error.status
            if client.is_answered:
                raise GoneError("the answer broke off") from None
            raise
        except CheopsError as error:
            await self._tell(client, story, of_error(self._here, error, service=story.service))
        except Exception:
            _log.exception("%s %s failed", head.method, story.service)
            await self._tell(client, story, of_mistake(self._here))
        finally:
            client.wire.on_end = None
            self._record.served(story.told())

    async def _tell(self, client: Client, story: Story, outgoing: Outgoing) -> None:
        if client.is_answered:
            raise GoneError("the answer broke off")  # to end it is the only way to say so
        story.status = outgoing.status
        headers = outgoing.headers
        if story.fallback:
            headers = (*headers, (FALLBACK, as_header(story.fallback)))
        await tell(client, replace(outgoing, headers=headers))

    # -- routing -----------------------------------------------------------------------------------------

    async def _route(self, request: Request) -> None:
        snapshot, head = self._snapshot(), request.head
        route = route_of(request.scope, request.service, snapshot, self._functions)
        reading = only_reads(head)
        decision: Decision
        if request.sender is None:
            decision = decide(route, snapshot, reading=reading)
        else:
            decision = decide_forwarded(route, self._here, snapshot, reading=reading)
        request.story.route = kind_of(decision)
        if is_dry_run(head):
            request.story.route = "dry-run"
            replicant = await self._attempting.foretell(request, decision)
            told = foretold(
                request.service, head, request.scope, route, decision, snapshot, self._functions, replicant
            )
            await self._tell(request.client, request.story, told)
            return
        generation = self.flows.generation if self.flows else 0
        choices = decision.choices if isinstance(decision, InTurn) else (decision,)
        await self._try(request, choices)
        if self.flows and request.is_news and request.scope and not request.story.fallback:
            news = News(request.service, request.sent_scope or "", request.scope, request.recovered)
            self.flows.offer(news, decision, generation)

    async def _try(self, request: Request, choices: tuple[Choice, ...]) -> None:
        """The first that works; the last one's answer stands, whatever it is."""
        failed: list[str] = []
        for number, choice in enumerate(choices, 1):
            name, left = self._name(choice), len(choices) - number
            try:
                found = await self._attempting.attempt(request, choice, is_only=len(choices) == 1)
                at_hand = AtHand(request.head, request.upload.can_restart, left)
                if goes_on_after_answer(*head_of(found), choice, at_hand):
                    await dropped(found)
                    failed.append(f"{site_name(name)}: {head_of(found)[0]}")
                    continue
            except CheopsError as error:
                if request.watched.is_gone:
                    raise GoneError("the client went away") from None
                request.story.site = name
                at_hand = AtHand(request.head, request.upload.can_restart, left)
                if not goes_on_after_error(error, choice, at_hand):
                    raise given_up(error, name, failed, at_hand) from error
                failed.append(f"{site_name(name)}: {why(error)}")
                continue
            finally:
                request.story.fallback = ", ".join(failed)
            await self._answer(request, choice, found)
            return

    def _name(self, choice: Choice) -> str:
        match choice:
            case Local():
                return self._here
            case Forward(site):
                return site
            case Replicate(route):
                return " & ".join(route.sites)

    # -- answering ---------------------------------------------------------------------------------------

    async def _answer(self, request: Request, choice: Choice, found: Found) -> None:
        story = request.story
        if isinstance(found, Outgoing):
            headers = outgoing_headers(found.headers, self._here)
            story.site = _served_by(headers, self._here)
            await self._tell(request.client, story, replace(found, headers=headers))
            return
        headers = answer_headers(found.asked.answer.headers, self._here, found.site, story.fallback)
        if (
            found.site != self._here
            and self._sending.for_peers(request.service, request.head) != request.head
        ):
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
    return site_named(next(told, site_name(otherwise)))
