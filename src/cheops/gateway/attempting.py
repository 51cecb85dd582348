"""One attempt to have a request served: by this site's own instance, by another site, or as an operation."""

from dataclasses import dataclass, replace
from typing import TypeAlias

from cheops.config.site import SiteConfig
from cheops.gateway.asking import Asked, Errand
from cheops.gateway.carriers import Ticket
from cheops.gateway.headers import Passage, end_to_end, wanted_upgrade
from cheops.gateway.incoming import Received
from cheops.gateway.peers import PeerGateways
from cheops.gateway.relay import informing
from cheops.gateway.routing import Choice, Decision, Forward, Local, NotThereYetError, Replicate
from cheops.gateway.seam import Foretold, Head, Headers, Outgoing, Replication, without
from cheops.gateway.sending import Sending
from cheops.gateway.understanding import Request

_SWITCHING = 101


@dataclass(frozen=True, slots=True)
class Proxied:
    """An answer that has begun, and what is to be done at its end."""

    asked: Asked
    site: str
    ticket: Ticket | None = None

    async def finish(self) -> None:
        await self.asked.finish()
        if self.ticket:
            self.ticket.end()


Found: TypeAlias = Proxied | Outgoing


class Attempting:
    """Knows all who may serve a request."""

    replication: Replication | None = None

    def __init__(self, config: SiteConfig, peers: PeerGateways, sending: Sending) -> None:
        self._here = config.name
        self._settings = config.gateway
        self._peers = peers
        self._sending = sending

    async def attempt(self, request: Request, choice: Choice, *, is_only: bool) -> Found:
        """What one choice gives. Raises CheopsError."""
        service = request.service
        match choice:
            case Replicate(route):
                if self.replication is None:
                    raise NotThereYetError("replication (&) of HTTP requests is not set up at this site")
                return await self.replication.handle(service, self._received(request), route)
            case Forward(site):
                if is_only and not self._peers.is_up(site):
                    raise self._peers.down(site)
                return Proxied(await self._sending.to_site(site, service, self._errand(request)), site)
            case Local():
                if self.replication is not None and self.replication.concerns(service, request.head):
                    tunnel = await self._tunnel(request, self.replication)
                    return tunnel or await self.replication.handle(service, self._received(request), None)
                asked, ticket = await self._sending.to_local(service, self._errand(request))
                return Proxied(asked, self._here, ticket)

    async def foretell(self, request: Request, decision: Decision) -> Foretold | None:
        """What would become of a request for something replicated."""
        if self.replication is None or not self.replication.concerns(request.service, request.head):
            return None
        route = decision.route if isinstance(decision, Replicate) else None
        return await self.replication.foretell(request.service, request.head, route)

    async def _tunnel(self, request: Request, replication: Replication) -> Proxied | None:
        """Another protocol, where the service speaks it: all that is known of it is where it begins. Where
        the service does not, nothing has happened, and the request is one as any other."""
        head = request.head
        if head.method != "GET" or request.upload.size != 0 or wanted_upgrade(head.headers) is None:
            return None
        errand = self._errand(replace(request, head=replication.to_local(request.service, head)))
        asked, ticket = await self._sending.to_local(request.service, errand)
        found = Proxied(asked, self._here, ticket)
        if found.asked.answer.status == _SWITCHING:
            return found
        await found.finish()
        return None

    def _received(self, request: Request) -> Received:
        headers = without(end_to_end(request.head.headers), "Expect")
        head = Head(request.head.method, request.head.target, headers)
        is_forwarded = request.sender is not None
        return Received(
            request.client, head, request.upload, self._passage(request), is_forwarded=is_forwarded
        )

    def _errand(self, request: Request) -> Errand:
        client, passage = request.client, self._passage(request)
        return Errand(request.head, request.upload, informing(client), request.watched, passage)

    def _passage(self, request: Request) -> Passage:
        return Passage(self._here, request.client.peer, told=self._settings.forwarded_headers)


def head_of(found: Found) -> tuple[int, Headers]:
    answer = found.asked.answer if isinstance(found, Proxied) else found
    return answer.status, answer.headers


async def dropped(found: Found) -> None:
    """An answer that nobody gets."""
    if isinstance(found, Proxied):
        await found.finish()
    elif (close := getattr(found.body, "aclose", None)) is not None:
        await close()
