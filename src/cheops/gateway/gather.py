"""Reads over several sites (`a % b`): all parts are asked at once, and their lists put together.

`handler` calls `Gatherer.gather` for a `routing.Gather`. A list is streamed: part by part, as the scope has them, and
each item once. Only the beginnings of the parts are held. The head waits until each part has begun to answer, or the
client's patience is over: it says of each part how it answered (`Cheops-Parts`). A part that breaks off later ends the
connection without the end of the list, so nobody takes it for complete.

What is no list is given if one site has it. Services that give lists in pages are the affair of `list_pages`.
"""

import asyncio
import logging
import re
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b

import msgspec
from msgspec.structs import replace

from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.dispatcher import Dispatcher, Forwarder
from cheops.gateway.error_shapes import shaped
from cheops.gateway.headers import CREDENTIALS, PARTS, SITE, encode_name, end_to_end, without, without_mesh
from cheops.gateway.interfaces import ClientGoneError, Response, StreamedBody, UpstreamError
from cheops.gateway.json_items import ListNames, Shape
from cheops.gateway.list_pages import NOT_ALL, PageReader, folder_of
from cheops.gateway.lists import (
    PartStatus,
    Seen,
    accepts_multipart,
    check_readable,
    common_headers,
    media_type,
    merged_members,
    missing,
    parts_header,
    wish_of,
    words_for,
)
from cheops.gateway.open_part import TOO_SLOW, OpenPart
from cheops.gateway.pages import (
    check_sites,
    position_of,
    refuse_unexplained,
    setting_to_add,
    signs_of_pages,
    unexplained_parameters,
    with_parameter,
)
from cheops.gateway.part_requests import Asker, Asking, Watches, close_all
from cheops.gateway.request import Request
from cheops.gateway.responses import problem_response
from cheops.gateway.routing import Gather
from cheops.scope.route import Replicas
from cheops.scope.snapshot import Snapshot
from cheops.text import in_words, printable, shortened

_log = logging.getLogger(__name__)
_MARGIN_S = 10.0  # another gateway has its own timeout, and should report it first
_BOUNDARY_BYTES = 18
_ID = re.compile(r"[0-9]+|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{16,}")
_OF_ONE_BODY = ("Content-Length", "ETag", "Last-Modified", "Accept-Ranges", "Set-Cookie")


class Gatherer:
    """Serves reads over several sites."""

    def __init__(
        self, config: SiteConfig, dispatcher: Dispatcher, forwarder: Forwarder, snapshot: Callable[[], Snapshot]
    ) -> None:
        self._here = config.name
        self._services = config.services
        self._dispatcher = dispatcher
        self._snapshot = snapshot
        self._asker = Asker(config.name, dispatcher, forwarder)
        self._pages = PageReader(config.name, self._asker, dispatcher)

    def check(self, request: Request, target: Gather) -> Asking:
        """What the request asks for. Raises CheopsError for what cannot be done."""
        service = self._services[request.service]
        check_readable(request.head, request.service, target.route.sites, request.upload.size)
        for part in target.route.parts:
            if isinstance(part, Replicas):
                part.check_level()
        wish = wish_of(request.head)
        path, _, query = request.head.target.partition("?")
        if service.pages is None:
            refuse_unexplained(request.service, unexplained_parameters(query))
        elif position := position_of(service.pages, query):
            check_sites(position, [part.sites for part in target.route.parts])
        usual_s = service.replication.timeout_s + _MARGIN_S
        wait_s = usual_s if wish.wait_s is None else wish.wait_s
        return Asking(
            request,
            service,
            wish,
            tuple(self._in_order(part.sites) for part in target.route.parts),
            path,
            query,
            _names(path, service.pages.items if service.pages else "", service.replication.id),
            Watches(),
            asyncio.get_running_loop().time() + wait_s,
            max(wait_s, 1.0),
        )

    def _in_order(self, sites: Sequence[str]) -> tuple[str, ...]:
        """The replicas of a part: the nearest first, and those that are down last."""
        snapshot = self._snapshot()

        def distance(site: str) -> tuple[bool, bool, float]:
            rtt_ms = snapshot.rtt_ms(self._here, site)
            return not snapshot.is_up(site), site != self._here, float("inf") if rtt_ms is None else rtt_ms

        return tuple(sorted(sites, key=distance))

    async def gather(self, request: Request, target: Gather) -> Response:
        asking = self.check(request, target)
        request.disconnect_watch.attach(asking.watches)
        pages = asking.service.pages
        if pages is not None and pages.is_paged and (position := position_of(pages, asking.query)):
            if not asking.is_head:
                return self._marked(asking, await self._pages.page(asking, position))
            asking = replace(asking, query=with_parameter(asking.query, pages.marker or pages.page, None))
        opened = await self._asker.all(asking)
        try:
            response = await self._put_together(asking, opened)
        except BaseException:
            await close_all(opened)
            raise
        if isinstance(response.body, bytes):
            await close_all(opened)
        return self._marked(asking, response)

    def _marked(self, asking: Asking, response: Response) -> Response:
        asking.request.trace.parts = next((value for name, value in response.headers if name == PARTS), "")
        if self._asker.drops_credentials(asking):
            response = replace(response, headers=(*response.headers, (CREDENTIALS, "dropped")))
        return response

    # -- what becomes of the parts ---------------------------------------------------------------------------

    async def _put_together(self, asking: Asking, opened: list[OpenPart]) -> Response:
        statuses = [part.status for part in opened]
        good = [part for part in opened if part.status.is_good]
        if not good:
            return self._none(asking, opened)
        lists = [part for part in good if part.shape in (Shape.ARRAY, Shape.OBJECT)]
        lacking = missing(statuses, for_document=not lists)
        if asking.wish.is_all and lacking:
            return self._problem(asking, 503, f"{NOT_ALL} {words_for(lacking)}", statuses)
        if asking.is_head:
            return self._head(good, opened)
        if len(lists) == len(good) and len({part.list_kind for part in lists}) == 1:
            return await self._one_list(asking, opened, lists)
        if not lists and (len(good) == 1 or await self._is_one_replicant(asking, good)):
            return self._document(good[0], opened)
        return self._unlike(asking, opened, good)

    async def _one_list(self, asking: Asking, opened: list[OpenPart], lists: list[OpenPart]) -> Response:
        self._refuse_pages(asking, lists)
        pages = asking.service.pages
        if pages is not None and pages.is_paged:
            return await self._pages.first_page(asking, opened)
        headers = (*common_headers([part.headers for part in lists]), _parts(opened))
        return Response(200, headers, StreamedBody(self._stream(asking, lists), partial(close_all, opened)))

    def _none(self, asking: Asking, opened: list[OpenPart]) -> Response:
        """No part has what was asked for. 404 only if all say so: what could not be asked may have it."""
        statuses = [part.status for part in opened]
        unknown = [status for status in statuses if status.is_unknown]
        if unknown:
            nowhere = [status.site for status in statuses if not status.is_unknown and status.status == 404]
            rest = f"; {in_words(nowhere)} {'does' if len(nowhere) == 1 else 'do'} not have it" if nowhere else ""
            return self._problem(asking, 503, f"no answer to {asking.what} from {words_for(unknown)}{rest}", statuses)
        chosen = next((part for part in opened if part.status.status != 404), opened[0])
        return self._document(chosen, opened)

    def _problem(self, asking: Asking, status: int, detail: str, statuses: Sequence[PartStatus]) -> Response:
        problem = problem_response(
            self._here, status, detail, parts=[{"site": one.site, "status": one.status} for one in statuses]
        )
        problem = replace(problem, headers=(*problem.headers, (PARTS, parts_header(statuses))))
        return shaped(problem, asking.service.replication.errors)

    def _head(self, good: list[OpenPart], opened: list[OpenPart]) -> Response:
        if len(good) == 1 and not missing([part.status for part in opened], for_document=True):
            return self._document(good[0], opened)
        headers = (*common_headers([part.headers for part in good]), _parts(opened))
        return Response(200, headers, b"")

    def _document(self, part: OpenPart, opened: list[OpenPart]) -> Response:
        """What one part answered, as it is."""
        headers = without(without_mesh(end_to_end(part.headers)), SITE)
        headers = (*headers, (SITE, encode_name(part.status.site)), _parts(opened))
        return Response(part.status.status, headers, StreamedBody(part.document(), partial(close_all, opened)))

    async def _is_one_replicant(self, asking: Asking, good: list[OpenPart]) -> bool:
        """Whether all of these are copies of one resource."""
        replication, path = self._dispatcher.replication, asking.path.rstrip("/")
        if replication is None:
            return False
        collection, _, name = path.rpartition("/")
        found = replication.replicant_of(asking.service.name, collection, name)
        if found is None or not found[1]:
            return found is not None
        sites = await replication.replicant_sites(found[0])
        return all(part.status.site in sites for part in good)

    def _unlike(self, asking: Asking, opened: list[OpenPart], good: list[OpenPart]) -> Response:
        if accepts_multipart(asking.request.head):
            return self._multipart(good, opened)
        sites = [part.status.site for part in good]
        service = asking.service.name
        detail = (
            f"{in_words(sites)} answered {asking.what} with what is not one list ({_kinds(good)}), so it cannot be put "
            f"together. Name one of them in the scope, such as {{{service}: {sites[0]}}}, or accept multipart/mixed"
        )
        if any(part.shape is Shape.DOCUMENT and "json" in media_type(part.headers) for part in good):
            detail += f". If it is a list, name its member: services.{service}.pages: {{items: $.…}}"
        return self._problem(asking, 406, detail, [part.status for part in opened])

    def _refuse_pages(self, asking: Asking, lists: list[OpenPart]) -> None:
        """Raises CheopsError if a list looks like one page of several, and nothing explains how to get the others."""
        for part in lists if asking.service.pages is None else ():
            if sign := signs_of_pages(part.headers, part.beside):
                raise CheopsError(
                    f"{part.status.site} gave one page of a list ({sign} leads to more), so the rest would be missing. "
                    f"{setting_to_add(asking.service.name)}",
                    status=501,
                )

    # -- a list ----------------------------------------------------------------------------------------------

    async def _stream(self, asking: Asking, lists: list[OpenPart]) -> AsyncIterator[bytes]:
        folder = folder_of(asking, self._dispatcher, Seen())
        name = lists[0].list_name
        beside: dict[str, Mapping[str, bytes]] = {}
        between = b"[" if lists[0].shape is Shape.ARRAY else b"{%b:[" % msgspec.json.encode(name)
        for part in lists:
            try:
                async for items in self._items_of(asking, part):
                    given = [await folder.take(item, part.number, part.status.site) for item in items]
                    if kept := [item for item in given if item is not None]:
                        yield between + b",".join(kept)
                        between = b","
                self._refuse_pages(asking, [part])
            except CheopsError as error:
                if asking.request.disconnect_watch.is_gone:
                    raise ClientGoneError("the client disconnected") from None
                _log.warning("the list %s broke off at %s: %s", asking.what, part.status.site, error)
                raise _broken(f"the list broke off: {error}") from None
            beside[part.status.site] = part.beside
            await part.close()
        yield (between if between != b"," else b"") + b"]"
        if lists[0].shape is Shape.OBJECT:
            members = merged_members(beside)
            yield b"," + msgspec.json.encode(members)[1:] if members else b"}"

    async def _items_of(self, asking: Asking, part: OpenPart) -> AsyncIterator[list[bytes]]:
        """The items of a part. While those before it were read, nobody read this one, and its site may have given up.
        So it is asked again, once; what it gave before must come again, byte by byte."""
        given, count = blake2b(), 0
        try:
            async for items in part.items():
                _count_in(given, items)
                count += len(items)
                yield items
        except UpstreamError as error:
            if asking.request.disconnect_watch.is_gone or error.why == TOO_SLOW:
                raise
        else:
            return
        again = await self._asker.one(asking, part.number, [part.status.site])
        repeated = blake2b()
        try:
            if again.status != part.status or again.list_kind != part.list_kind:
                raise _broken(f"{again.status.text} when it was asked again")
            async for items in again.items():
                skipped, new = items[:count], items[count:]
                _count_in(repeated, skipped)
                count -= len(skipped)
                if count == 0 and skipped and repeated.digest() != given.digest():
                    raise _broken("its list was another one when it was asked again")
                yield new
            if count:
                raise _broken("its list was shorter when it was asked again")
            part.beside.clear()
            part.beside.update(again.beside)
        finally:
            await again.close()

    # -- anything else ---------------------------------------------------------------------------------------

    def _multipart(self, good: list[OpenPart], opened: list[OpenPart]) -> Response:
        boundary = secrets.token_urlsafe(_BOUNDARY_BYTES)
        headers = (("Content-Type", f'multipart/mixed; boundary="{boundary}"'), _parts(opened))
        body = self._documents(good, boundary.encode())
        return Response(200, headers, StreamedBody(body, partial(close_all, opened)))

    @staticmethod
    async def _documents(good: list[OpenPart], boundary: bytes) -> AsyncIterator[bytes]:
        for part in good:
            headers = without(without_mesh(end_to_end(part.headers)), *_OF_ONE_BODY)
            kept = [(name, value) for name, value in headers if name.lower().startswith("content-")]
            lines = [f"{name}: {value}" for name, value in (*kept, (SITE, encode_name(part.status.site)))]
            yield b"--%b\r\n%b\r\n\r\n" % (boundary, "\r\n".join(lines).encode("latin-1"))
            async for piece in part.document():
                yield piece
            yield b"\r\n"
        yield b"--%b--\r\n" % boundary


def _count_in(digest: blake2b, items: Sequence[bytes]) -> None:
    for item in items:
        digest.update(item + b"\0")


def _broken(text: str) -> UpstreamError:
    return UpstreamError(text, "broke off", may_have_had_effect=False)


def _parts(opened: Sequence[OpenPart]) -> tuple[str, str]:
    return PARTS, parts_header(part.status for part in opened)


def _names(path: str, named: str, id_: tuple[str, ...]) -> ListNames:
    """What the list member of a response may be called. A path that ends with an id leads to one item."""
    segments = [segment.lower() for segment in path.split("/") if segment]
    is_item = bool(segments) and _ID.fullmatch(segments[-1]) is not None
    return ListNames(named, frozenset(segments), id_[-1] if id_ else "id", is_item=is_item)


def _kinds(parts: Sequence[OpenPart]) -> str:
    return in_words(
        [
            f"{part.status.site}: "
            + {Shape.ARRAY: "an array", Shape.OBJECT: f"the list '{printable(shortened(part.list_name))}'"}.get(
                part.shape or Shape.DOCUMENT, media_type(part.headers) or "no list"
            )
            for part in parts
        ]
    )
