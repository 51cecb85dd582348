"""Lists of services that give them in pages: each page of the whole is read from one part after the other, and held.

A page is what the client asked for with `limit`, or what one site gives at once. Pages are small, so a page is held
(up to `_MAX_PAGE_BYTES`), and its head tells all. It ends where a part has more, or has as much as was asked for, and
its `next` leads to the rest: of that part, then of the parts after it. `pages` has the pure half of this.
"""

import secrets
from dataclasses import dataclass, field

import msgspec
from msgspec.structs import replace

from cheops.bounded import BoundedMap
from cheops.config.pages import PagesConfig
from cheops.errors import CheopsError, ClientError
from cheops.gateway.dispatcher import Dispatcher
from cheops.gateway.error_shapes import shaped
from cheops.gateway.headers import PARTS, Headers, encode_name
from cheops.gateway.interfaces import Response
from cheops.gateway.json_items import BodyError, Shape
from cheops.gateway.lists import Folder, PartStatus, Seen, common_headers, merged_members, words_for
from cheops.gateway.open_part import OpenPart
from cheops.gateway.pages import (
    LINK_MEMBERS,
    Next,
    Position,
    after_page,
    limit_of,
    link_header,
    next_in,
    next_member,
    parameter,
    with_parameter,
    written,
)
from cheops.gateway.part_requests import Asker, Asking, close_all
from cheops.gateway.responses import problem_response
from cheops.gateway.routing import short_reason

_MAX_PAGE_BYTES = 16 * 1024 * 1024
_MAX_REQUESTS = 1_000  # for one page: most give none, or its items are copies of what was listed before
_REMEMBERED = 256  # lists that are being read page by page, and have replicants
_TOKEN_BYTES = 9
_NOT_FOUND = 404
NOT_ALL = "Cheops-Wait: all needs an answer from every part, and there is none from"


@dataclass(slots=True)
class _Page:
    """What was read of a page so far, and where the next one begins."""

    asking: Asking
    config: PagesConfig
    place: Position | None  # None: the list is at its end
    seen: Seen
    folder: Folder
    items: list[bytes] = field(default_factory=list)
    size: int = 0
    statuses: dict[int, PartStatus] = field(default_factory=dict)
    headers: list[Headers] = field(default_factory=list)  # of the parts that gave something
    beside: dict[str, dict[str, bytes]] = field(default_factory=dict)
    kind: tuple[Shape | None, str] | None = None
    is_full: bool = False
    requests: int = 0

    @property
    def limit(self) -> int | None:
        return limit_of(self.config, self.asking.query)

    @property
    def fills(self) -> bool:
        """Whether a page may hold items of several requests: not if pages have numbers, which depend on their size."""
        return self.limit is not None and bool(self.config.marker)


def folder_of(asking: Asking, dispatcher: Dispatcher, seen: Seen) -> Folder:
    service, annotates = asking.service, asking.wish.is_annotated
    return Folder(service.name, asking.path, service.replication.id, dispatcher.replication, seen, annotates=annotates)


class PageReader:
    """Gives the pages of lists over several sites."""

    def __init__(self, here: str, asker: Asker, dispatcher: Dispatcher) -> None:
        self._here = here
        self._asker = asker
        self._dispatcher = dispatcher
        self._seen: BoundedMap[str, Seen] = BoundedMap(_REMEMBERED)

    async def first_page(self, asking: Asking, opened: list[OpenPart]) -> Response:
        """The first page, of parts that were asked already."""
        return await self._read(asking, Position(asking.parts, 0), Seen(), opened)

    async def page(self, asking: Asking, position: Position) -> Response:
        """The page at a marker. Raises ClientError."""
        seen = self._seen.get(position.seen) if position.seen else Seen()
        if seen is None:
            raise ClientError(
                "it is not known any more which replicated items the pages before have listed (the agent was started "
                "anew, or many lists were read meanwhile): begin the list again",
                status=410,
            )
        return await self._read(replace(asking, parts=position.parts), position, seen, [])

    # -- reading ---------------------------------------------------------------------------------------------

    async def _read(self, asking: Asking, position: Position, seen: Seen, opened: list[OpenPart]) -> Response:
        if (config := asking.service.pages) is None:
            raise AssertionError("the service has pages")
        page = _Page(asking, config, position, seen, folder_of(asking, self._dispatcher, seen))
        first = {part.number: part for part in opened}
        page.statuses = {part.number: part.status for part in opened}
        while page.place is not None and not page.is_full:
            place = page.place
            query = self._query(page, place)
            part = first.pop(place.part, None)
            if part is None or query != asking.query:
                if part is not None:
                    await part.close()
                sites = (place.site,) if place.query is not None else asking.parts[place.part]
                part = await self._asker.in_time(asking, place.part, sites, query)
            try:
                failure = await self._take_part(page, place, part, query)
            finally:
                await part.close()
            if failure is not None:
                await close_all(list(first.values()))
                return failure
        await close_all(list(first.values()))
        return self._response(page, position)

    @staticmethod
    def _query(page: _Page, place: Position) -> str:
        """The query for the next request, with as many items as are still wanted."""
        config, asking = page.config, page.asking
        query = place.query
        if query is None:
            query = asking.query
            if (marker := parameter(query, config.marker or config.page)) not in (None, "0", "1"):
                query = with_parameter(query, config.marker or config.page, None if marker else marker)
        if page.fills and page.limit is not None and (page.items or place.query is not None):
            return with_parameter(query, config.limit, str(page.limit - len(page.items)))
        return query

    async def _take_part(self, page: _Page, place: Position, part: OpenPart, query: str) -> Response | None:
        """Take what a part answered, and move on; the response instead, if the page cannot be given."""
        page.statuses[place.part] = part.status
        if part.status.status == _NOT_FOUND and page.config.page and not page.config.next and place.query is not None:
            self._move_on(page, place)  # some services have no empty page behind the last one
            return None
        if not part.status.is_good or part.shape not in (Shape.ARRAY, Shape.OBJECT):
            return self._skip(page, place, part)
        if page.kind is not None and part.list_kind != page.kind:
            return self._problem(page, 406, f"{part.status.site} has another kind of list than the parts before it")
        page.kind = part.list_kind
        page.requests += 1
        before = len(page.items)
        try:
            following = await self._take_items(page, place, part, query)
            if following is not None and (following.query == query or page.requests >= _MAX_REQUESTS):
                raise BodyError("its next page leads to itself, or never to an item")
        except CheopsError as error:
            why = str(error) if isinstance(error, BodyError) else short_reason(error)
            del page.items[before:]
            if place.query is None:
                page.seen.forget(place.part)
            page.statuses[place.part] = PartStatus(part.status.site, 502, why)
            return self._skip(page, place, OpenPart.without_response(place.part, page.statuses[place.part]))
        page.headers.append(part.headers)
        page.beside[part.status.site] = part.beside
        has_given = len(page.items) > before
        if following is not None:
            style = following.style or place.style
            page.place = replace(place, query=following.query, site=part.status.site, style=style)
            page.is_full = has_given if not page.fills else len(page.items) >= (page.limit or 0)
        else:
            self._move_on(page, place)
            page.is_full = (
                page.limit is not None and bool(page.items) and (not page.fills or len(page.items) >= page.limit)
            )
        return None

    async def _take_items(self, page: _Page, place: Position, part: OpenPart, query: str) -> Next | None:
        count = 0
        async for items in part.items():
            count += len(items)
            for item in items:
                page.size += len(item)
                if page.size > _MAX_PAGE_BYTES:
                    raise BodyError(f"the page is larger than {_MAX_PAGE_BYTES:,} bytes: ask for smaller ones")
                if (kept := await page.folder.take(item, place.part, part.status.site)) is not None:
                    page.items.append(kept)
        if page.config.next:
            return next_in(page.config, part.headers, part.beside, (page.asking.path, query))
        return after_page(page.config, query, count, page.folder.last_id)

    def _skip(self, page: _Page, place: Position, part: OpenPart) -> Response | None:
        """A part that does not answer is left out and reported; but not in the middle of it, where the client would
        take what it has of it for all."""
        status = part.status if not part.status.is_good else PartStatus(part.status.site, 502, "no list")
        page.statuses[place.part] = status
        if place.query is not None:
            return self._problem(
                page,
                503,
                f"no answer from {status.text}, whose part of the list goes on. Ask for the same page again later",
            )
        missing = (*place.missing, (status.site, status.status))
        self._move_on(page, replace(place, missing=missing))
        return None

    @staticmethod
    def _move_on(page: _Page, place: Position) -> None:
        after = place.part + 1
        page.place = replace(place, part=after, query=None, site="") if after < len(place.parts) else None

    # -- the response ----------------------------------------------------------------------------------------

    def _response(self, page: _Page, began: Position) -> Response:
        asking, config = page.asking, page.config
        lacking = [status for status in page.statuses.values() if not status.is_good]
        left_out = [PartStatus(site, status) for site, status in began.missing]
        if page.kind is None:
            return self._problem(page, 503, f"no answer to {asking.what} from {words_for(lacking)}", began)
        if asking.wish.is_all and (lacking or left_out):
            text = f"{NOT_ALL} {words_for([*left_out, *lacking])}"
            return self._problem(page, 503, text, began)
        headers: Headers = (*common_headers(page.headers), (PARTS, self._parts(page, began)))
        members = merged_members(
            {
                site: {
                    name: value
                    for name, value in beside.items()
                    if name not in LINK_MEMBERS and (len(config.next) < 2 or name != config.next[1])
                }
                for site, beside in page.beside.items()
            }
        )
        if page.place is not None:
            query = self._next_query(page, page.place)
            headers = (*headers, ("Link", link_header(asking.path, query)))
            if found := next_member(config, page.place.style, asking.path, query):
                members[found[0]] = found[1]
        items = b"[%b]" % b",".join(page.items)
        if page.kind[0] is Shape.OBJECT:
            items = msgspec.json.encode({page.kind[1]: msgspec.Raw(items), **members})
        return Response(200, headers, items)

    def _next_query(self, page: _Page, place: Position) -> str:
        seen = place.seen
        if page.seen.parts and not seen:
            seen = secrets.token_urlsafe(_TOKEN_BYTES)
        if seen:
            self._seen[seen] = page.seen
        marker = written(replace(place, seen=seen))
        return with_parameter(page.asking.query, page.config.marker or page.config.page, marker)

    @staticmethod
    def _parts(page: _Page, began: Position) -> str:
        """Of each part: its status, or that it is behind the client, or still to come."""
        missing = dict(began.missing)
        texts = []
        for number, sites in enumerate(page.asking.parts):
            status = page.statuses.get(number)
            left_out = next((site for site in sites if site in missing), None)
            if status is not None:
                texts.append(f"{encode_name(status.site)}; status={status.status}")
            elif left_out is not None:
                texts.append(f"{encode_name(left_out)}; status={missing[left_out]}")
            else:
                texts.append(f"{encode_name(sites[0])}; {'done' if number < began.part else 'later'}")
        return ", ".join(texts)

    def _problem(self, page: _Page, status: int, detail: str, began: Position | None = None) -> Response:
        parts = self._parts(page, began or page.place or Position(page.asking.parts, 0))
        problem = problem_response(self._here, status, detail)
        problem = replace(problem, headers=(*problem.headers, (PARTS, parts)))
        return shaped(problem, page.asking.service.replication.errors)
