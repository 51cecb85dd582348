"""Requests to this site's own instances and to the gateways of other sites, as each is to get them."""

import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace

import h11

from cheops.backends.http_exchange import NotSentError
from cheops.config.gateway import GatewayConfig
from cheops.config.services import ServiceConfig
from cheops.errors import CheopsError
from cheops.gateway.asking import Asked, Asking, Errand, Watched
from cheops.gateway.call import Patience
from cheops.gateway.carriers import Carriers, Ticket, added, carried
from cheops.gateway.errors import UpstreamError
from cheops.gateway.headers import (
    FOR,
    HOP,
    SCOPE,
    SERVICE,
    Passage,
    end_to_end,
    passed_on,
    site_name,
    wanted_upgrade,
    with_scope,
    without_mesh,
)
from cheops.gateway.peers import PeerGateways
from cheops.gateway.pool import Place, place_of_url
from cheops.gateway.request import size_of
from cheops.gateway.seam import Body, Head, Headers, Outgoing, first, without
from cheops.gateway.upload import GivenUpload

FOR_REPLICATION = "replication"
_FOR_THE_OTHER_S = 5.0  # so that the other gateway, which knows more, is the first to lose patience


class Sending:
    """Sends requests on. What the replicating half may ask for (`seam.Services`) is here too."""

    def __init__(
        self,
        here: str,
        services: Mapping[str, ServiceConfig],
        settings: GatewayConfig,
        peers: PeerGateways,
        carriers: Carriers | None,
    ) -> None:
        self._here = here
        self._services = services
        self._peers = peers
        self._carriers = carriers
        self.asking = Asking(settings, peers.credentials)

    # -- what is proxied ---------------------------------------------------------------------------------

    async def to_local(
        self, service: str, errand: Errand, answer_s: float | None = None
    ) -> tuple[Asked, Ticket | None]:
        """To this site's own instance. Whoever gets the ticket ends it when the answer is through."""
        place = place_of_url(self._services[service].url)
        head = errand.head
        seen = Head(head.method, head.target, without_mesh(head.headers))
        seen, ticket = self._with_carrier(service, seen)
        patience = Patience(answer_s or self._services[service].replication.timeout_s)
        try:
            if ticket:
                await ticket.settled()
            sent = replace(errand, head=_as_sent(seen, place, errand))
            return await self.asking.ask(place, sent, patience), ticket
        except BaseException:
            if ticket:
                ticket.end()
            raise

    async def to_site(self, site: str, service: str, errand: Errand, purpose: str = "") -> Asked:
        """To the instance of another site, by way of its gateway."""
        place = self._peers.place(site, service)
        head = _as_sent(self.for_peers(service, errand.head), place, errand)
        mesh: Headers = (
            (HOP, site_name(self._here)),
            (SERVICE, site_name(service)),
            *([(FOR, purpose)] if purpose else ()),
        )
        sent = replace(errand, head=Head(head.method, head.target, (*head.headers, *mesh)))
        answer_s = self._services[service].replication.timeout_s + _FOR_THE_OTHER_S
        patience = Patience(answer_s, lambda: not self._peers.is_up(site))
        try:
            return await self.asking.ask(place, sent, patience)
        except UpstreamError:
            self._peers.hurry(site)
            raise

    def for_peers(self, service: str, head: Head) -> Head:
        """A client's credentials are for this site: another may not accept them, and should not see them."""
        config = self._services[service].replication
        if config.credentials == "pass":
            return head
        kept = tuple(pair for pair in head.headers if not config.is_credential(pair[0]))
        return Head(head.method, head.target, kept)

    def _with_carrier(self, service: str, head: Head) -> tuple[Head, Ticket | None]:
        """Remember what the application may pass on, so that its own calls can be told apart."""
        if self._carriers is None:
            return head, None
        front = self._services[service].front
        scope = first(head, SCOPE)
        values = carried(head, front.carriers)
        if scope and front.add_carrier and not self._carriers.is_clear(values, scope):
            head = Head(head.method, head.target, added(head.headers, front.carriers, uuid.uuid4().hex))
            values = carried(head, front.carriers)
        return head, self._carriers.begin(values, scope)

    # -- what the replicating half asks for --------------------------------------------------------------

    async def local(
        self, service: str, head: Head, body: Body | None, timeout_s: float, passage: Passage
    ) -> Outgoing:
        """See seam.Services."""
        upload = GivenUpload(body, size_of(head))
        head = Head(head.method, head.target, _own_framing(head.headers, upload))
        errand = Errand(head, upload, _ignored, Watched(), passage)
        found = await _outgoing(*await self.to_local(service, errand, timeout_s))
        return replace(found, headers=without_mesh(found.headers))  # an application is no part of the mesh

    async def at(self, site: str, service: str, head: Head, body: Body | None, passage: Passage) -> Outgoing:
        """See seam.Services."""
        if not self._peers.is_up(site):
            error = self._peers.down(site)
            raise UpstreamError(str(error), "down", may_have_had_effect=False) from None
        upload = GivenUpload(body, size_of(head))
        head = Head(head.method, head.target, _own_framing(head.headers, upload))
        errand = Errand(head, upload, _ignored, Watched(), passage)
        asked = await self.to_site(site, service, errand, FOR_REPLICATION)
        return await _outgoing(asked, None)

    async def carry(self, service: str, headers: Headers, scope: str) -> tuple[Headers, Callable[[], None]]:
        """See seam.Services."""
        ticket = None
        try:
            head, ticket = self._with_carrier(service, Head("", "", with_scope(headers, scope or None)))
            if ticket:
                await ticket.settled()
        except BaseException as error:
            if ticket:
                ticket.end()
            if isinstance(error, CheopsError):
                raise NotSentError(str(error)) from None
            raise
        return without(head.headers, SCOPE), ticket.end if ticket else _nothing


def _as_sent(head: Head, place: Place, errand: Errand) -> Head:
    """A request as it goes over the wire to a place."""
    if errand.passage is None:
        headers = end_to_end(head.headers)
    else:
        headers = passed_on(head, errand.passage, upgrade=wanted_upgrade(head.headers))
    if errand.upload.size is None:
        headers = (*headers, ("Transfer-Encoding", "chunked"))
    if first(head, "Host") is None:
        headers = (("Host", place.authority), *headers)
    target = head.target if head.target == "*" else place.path + head.target
    return Head(head.method, target, headers)


def _own_framing(headers: Headers, upload: GivenUpload) -> Headers:
    """The length that the body has, whatever the head said before it was worked on."""
    kept = without(headers, "Content-Length", "Transfer-Encoding")
    if upload.size is None or (upload.size == 0 and first(Head("", "", headers), "Content-Length") is None):
        return kept
    return (*kept, ("Content-Length", str(upload.size)))


def _nothing() -> None:
    """There is nothing to be ended."""


async def _ignored(_status: int, _reason: bytes, _headers: Headers) -> None:
    """Nobody is there who would care for what comes before the answer."""


async def _outgoing(asked: Asked, ticket: Ticket | None) -> Outgoing:
    """An answer whose body is read from the service while somebody reads it from here."""
    answer = asked.answer
    if answer.status == 101:
        await _finish(asked, ticket)
        raise UpstreamError(
            "the service changed the protocol, which nobody asked for", "a bad 101", may_have_had_effect=True
        )
    headers = end_to_end(answer.headers)
    event = asked.call.event_now()
    if isinstance(event, h11.EndOfMessage):
        await _finish(asked, ticket)
        return Outgoing(answer.status, headers, b"")
    return Outgoing(answer.status, headers, _body(asked, ticket, event))


async def _body(asked: Asked, ticket: Ticket | None, event: h11.Data | None) -> AsyncIterator[bytes]:
    try:
        found = event or await asked.call.event()
        while isinstance(found, h11.Data):
            yield bytes(found.data)
            found = await asked.call.event()
    finally:
        await _finish(asked, ticket)


async def _finish(asked: Asked, ticket: Ticket | None) -> None:
    await asked.finish()
    if ticket:
        ticket.end()
