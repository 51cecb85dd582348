"""The requests for the parts of a read over several sites: one for each, through its own site's gateway.

They are like any forwarded request: with the client's credentials or without (`forward`), marked with the site that
sends them, and served where they arrive. Only what the client says about the whole is not passed on.
"""

import asyncio
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from cheops.config.services import ServiceConfig
from cheops.errors import CheopsError
from cheops.gateway.dispatcher import AnyResponse, Dispatcher, Forwarder, ProxiedResponse
from cheops.gateway.error_shapes import shaped
from cheops.gateway.headers import RequestHead, with_scope
from cheops.gateway.interfaces import ClientGoneError, Response
from cheops.gateway.json_items import BodyError, ListNames
from cheops.gateway.lists import PartStatus, Wish, part_headers
from cheops.gateway.open_part import TOO_SLOW, OpenPart
from cheops.gateway.request import Request
from cheops.gateway.responses import error_response
from cheops.gateway.routing import Forward, Local, short_reason
from cheops.gateway.upstream import DisconnectWatch, streamed_response
from cheops.scope.tree import At, Scope
from cheops.text import printable, shortened

_FAILED = (502, 503, 504)
_NOT_FOUND = 404


class Watches:
    """Ends the requests of all parts when the client disconnects."""

    def __init__(self) -> None:
        self._all: list[DisconnectWatch] = []

    def new(self) -> DisconnectWatch:
        self._all.append(DisconnectWatch())
        return self._all[-1]

    def abort(self) -> None:
        for one in self._all:
            one.client_left()


class Asking(Struct, frozen=True):
    """A read of a client, and what all requests for its parts have in common."""

    request: Request
    service: ServiceConfig
    wish: Wish
    parts: tuple[tuple[str, ...], ...]  # the sites of each part, in the order in which they are tried
    path: str
    query: str
    names: ListNames
    watches: Watches
    until_s: float
    stall_s: float

    @property
    def is_head(self) -> bool:
        return self.request.head.method == "HEAD"

    @property
    def what(self) -> str:
        return f"{self.request.head.method} {printable(shortened(self.path))}"


class Asker:
    """Sends the requests for parts."""

    def __init__(self, here: str, dispatcher: Dispatcher, forwarder: Forwarder) -> None:
        self._here = here
        self._dispatcher = dispatcher
        self._forwarder = forwarder

    async def all(self, asking: Asking) -> list[OpenPart]:
        """The beginnings of all parts, as far as they came in time."""
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self.one(asking, number, sites)) for number, sites in enumerate(asking.parts)]
        try:
            await asyncio.wait(tasks, timeout=max(asking.until_s - loop.time(), 0.0))
        finally:
            opened = await self._collected(asking, tasks)
        if asking.request.disconnect_watch.is_gone:
            await close_all(opened)
            raise ClientGoneError("the client disconnected")
        return opened

    async def in_time(self, asking: Asking, number: int, sites: Sequence[str], query: str) -> OpenPart:
        """One part, unless the time is over before it begins to answer."""
        loop = asyncio.get_running_loop()
        task = loop.create_task(self.one(asking, number, sites, query))
        try:
            await asyncio.wait({task}, timeout=max(asking.until_s - loop.time(), 0.0))
        finally:
            opened = await self._collected(asking, [task], number)
        if asking.request.disconnect_watch.is_gone:
            await close_all(opened)
            raise ClientGoneError("the client disconnected")
        return opened[0]

    @staticmethod
    async def _collected(asking: Asking, tasks: list[asyncio.Task[OpenPart]], first: int = 0) -> list[OpenPart]:
        for one in tasks:
            one.cancel()  # does nothing to one that is done
        await asyncio.wait(tasks)
        opened: list[OpenPart] = []
        failure: BaseException | None = None
        for number, one in enumerate(tasks, first):
            if one.cancelled():
                slow = PartStatus(asking.parts[number][0], 504, TOO_SLOW)
                opened.append(OpenPart.without_response(number, slow))
            elif error := one.exception():
                failure = error
            else:
                opened.append(one.result())
        if failure is not None:
            await close_all(opened)
            raise failure
        return opened

    async def one(self, asking: Asking, number: int, sites: Sequence[str], query: str | None = None) -> OpenPart:
        """A part: of its sites, the first that has what was asked for. What one replica does not have, another may."""
        query = asking.query if query is None else query
        kept = await self._at(asking, number, sites[0], query)
        for site in sites[1:]:
            if not kept.status.is_unknown and kept.status.status != _NOT_FOUND:
                break
            part = await self._at(asking, number, site, query)
            # Of two that have nothing, the one that could not be asked counts: it may have it.
            counts = kept if kept.status.is_unknown and not part.status.is_good else part
            await (part if counts is kept else kept).close()
            kept = counts
        return kept

    async def _at(self, asking: Asking, number: int, site: str, query: str) -> OpenPart:
        part: OpenPart | None = None
        try:
            response = await self._ask(asking, site, query)
            status = PartStatus(site, response.status)
            part = OpenPart(number, status, response.headers, response.body, asking.names, asking.stall_s)
            if part.status.is_good and not asking.is_head:
                await part.look()
        except CheopsError as error:
            if part is not None:
                await part.close()
            why = str(error) if isinstance(error, BodyError) else short_reason(error)
            return OpenPart.without_response(number, PartStatus(site, _status_of(error), why))
        except BaseException:
            if part is not None:
                await part.close()
            raise
        return part

    async def _ask(self, asking: Asking, site: str, query: str) -> Response:
        request = asking.request
        target = f"{asking.path}?{query}" if query else asking.path
        headers = part_headers(request.head.headers)
        if request.scope is not None:
            # The service may call itself through the gateway: such a call stays at its site.
            headers = with_scope(headers, str(_scope_at(request.scope, asking.service.name, site)))
        head = RequestHead(request.head.method, target, headers)
        one = replace(request, head=head, disconnect_watch=asking.watches.new(), is_part=True)
        try:
            response = await self._dispatcher.dispatch(
                one, Local() if site == self._here else Forward(site), is_only=True
            )
        except CheopsError as error:
            if error.status >= 500 or isinstance(error, ClientGoneError):
                raise
            return shaped(error_response(self._here, error), asking.service.replication.errors)
        return await _as_response(response)

    def drops_credentials(self, asking: Asking) -> bool:
        head, service = asking.request.head, asking.service.name
        is_elsewhere = any(site != self._here for sites in asking.parts for site in sites)
        return is_elsewhere and self._forwarder.for_peers(service, head) != head


async def _as_response(response: AnyResponse) -> Response:
    if isinstance(response, ProxiedResponse):
        carrier_use = response.carrier_use
        return await streamed_response(response.upstream, carrier_use.end if carrier_use else None)
    return response


def _status_of(error: CheopsError) -> int:
    return error.status if error.status in _FAILED else 502


async def close_all(parts: Sequence[OpenPart]) -> None:
    for one in parts:
        await one.close()


def _scope_at(scope: Scope, service: str, site: str) -> Scope:
    """The scope for one part. The service may call itself through the gateway: such a call stays at its site."""
    bindings = (replace(one, location=At(site)) if one.service == service else one for one in scope.bindings)
    return Scope(tuple(bindings))
