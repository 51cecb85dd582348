"""Bodies on their way through the gateway: which ids in them belong to replicants, and how they are translated.

A UUID, or another long hexadecimal number, is recognized as the whole of a string or of a member's name, and in URLs.
Any other id is one only where a collection has its ids:

    the response's own item, and the list that it is      {"id": 5}, [{"id": 5}], {"images": [{"id": 5}]}
    lists named like a collection below or beside it      {"comments": [{"id": 5}]}
    things named like one of a collection beside it       {"post": {"id": 5}}
    members that the configuration names (`refs`)         {"postId": 5}, {"posts": {"5": {…}}}
"""

import re
import zlib
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Protocol
from urllib.parse import urlsplit

from cheops.backends.http.copies import Index, is_distinctive
from cheops.backends.http.ids import Form, JsonPath
from cheops.backends.http.paths import canonical, collection_of, item_of, trimmed
from cheops.backends.http.payload import is_json, media_type
from cheops.config.services import ReplicationConfig, ServiceConfig
from cheops.gateway.headers import Headers, RequestHead, first, without
from cheops.gateway.interfaces import Body, Response, StreamedBody, UpstreamError, close_body

_BLANK = re.compile(r"\s")
_AUTHORITY = re.compile(r"(?:^|:)//([^/?#]*)")


class ResponseIds:
    """The ids in the response to one request: an `ids.IdLookup`. URLs are translated only if their host is one of
    `hosts` (None: any), since paths of other hosts mean something else."""

    def __init__(
        self,
        index: Index,
        service: str,
        config: ReplicationConfig,
        local_path: str,
        hosts: frozenset[str] | None = None,
    ) -> None:
        path = trimmed(canonical(local_path))
        self._index = index
        self._service = service
        self._hosts = hosts
        self._id = config.id or ("id",)
        self._items = config.items
        self._refs = {name: canonical(collection) for name, collection in config.refs}
        self._item = path if _is_item(index, service, path) else ""
        # the path as a collection, the one that it is an item of, and the one that it is another view of
        self._collections = (path, collection_of(path), collection_of(item_of(path, config.items)))

    def in_text(self, text: str, place: JsonPath) -> str | None:
        if meta_id := self._index.anywhere(text) or self._at_place(text, place):
            return meta_id
        return self._in_url(text) if "/" in text else None

    def of_number(self, number: int, place: JsonPath) -> str | None:
        return self._at_place(str(number), place)

    def of_name(self, name: str, place: JsonPath) -> str | None:
        """Names of members are ids where `refs` says that the object holds things of a collection."""
        if meta_id := self._index.anywhere(name):
            return meta_id
        collection = self._refs.get(_name(place))
        return self._index.in_collection(self._service, collection, name) if collection else None

    def in_header(self, value: str) -> str:
        """A `Location` or `Link` with meta-ids."""
        return "<".join(self._in_url(part, ">") or part for part in value.split("<"))

    # -- places --------------------------------------------------------------------------------------------

    def _at_place(self, text: str, place: JsonPath) -> str | None:
        where = self._referred_to(place) or self._collections_at(place)
        found = (self._index.in_collection(self._service, one, text) for one in where)
        return next((meta_id for meta_id in found if meta_id), None)

    def _referred_to(self, place: JsonPath) -> tuple[str, ...]:
        """The collection that the configuration names for a member, for those of a list, or for the id of a
        thing or of a list of things that stands there."""
        if self._id[-1:] == place[-1:] and _name(place) not in self._refs:
            place = place[:-1]
        collection = self._refs.get(_name(place))
        return (collection,) if collection else ()

    def _collections_at(self, place: JsonPath) -> tuple[str, ...]:
        """Where the id at a place may belong; nowhere, if no id stands there."""
        if place == self._id:
            return self._collections
        if place.count(None) == 1:
            list_ = place.index(None)
            if place[list_ + 1 :] in (self._id, self._id[-1:]):
                return self._of_list(place[list_ - 1] if list_ else None)
        if len(place) < 2 or place[-1] != self._id[-1]:
            return ()
        name = _name(place[:-1])
        return tuple(self._beside(name, is_one=place[-2] is not None)) if name else ()

    def _of_list(self, name: str | None) -> tuple[str, ...]:
        """A list within an item (`comments` of a post) holds things of another kind than the item, unless it
        is named like the item's own collection. Any other is the requested collection, whatever its name,
        unless that is the name of another collection."""
        own = collection_of(self._item) if self._item else self._collections[0]
        if name is None or own.rpartition("/")[2] == name.rpartition("/")[2]:
            return self._collections
        if self._item:
            within, beside = f"{self._item}/{name}", f"{collection_of(own).rstrip('/')}/{name}"
            return within, collection_of(item_of(within, self._items)), beside
        others = self._beside(name, is_one=False)
        return tuple(one for one in others if self._index.has_collection(self._service, one)) or self._collections

    def _beside(self, name: str, *, is_one: bool) -> Iterator[str]:
        """The collections beside those of the response that a name may stand for; that of one thing is most
        often the name of its collection without the s."""
        names = [name, f"{name}s", f"{name}es", f"{name.removesuffix('y')}ies"] if is_one else [name]
        for above in dict.fromkeys(collection_of(one) for one in self._collections):
            yield from (f"{above.rstrip('/')}/{one}" for one in names)

    # -- URLs ----------------------------------------------------------------------------------------------

    def _in_url(self, text: str, end: str = "") -> str | None:
        """A URL or path with meta-ids in its path, or None where it has none."""
        url, mark, rest = text.partition(end) if end else (text, "", "")
        authority = _AUTHORITY.search(url)
        start = authority.end() if authority else 0
        stops = [place for sign in "?#" if (place := url.find(sign, start)) >= 0]
        stop = min(stops, default=len(url))
        path = url[start:stop]
        if "/" not in path or _BLANK.search(path):  # with a blank it is a text for people
            return None
        is_ours = authority is None or self._hosts is None or host_of(authority[1]) in self._hosts
        translated = self._index.path_with_meta_ids(self._service, path, by_place=is_ours)
        return f"{url[:start]}{translated}{url[stop:]}{mark}{rest}" if translated != path else None


def hosts_of(service: ServiceConfig, requested: str = "") -> frozenset[str]:
    """The host names that a service may use for itself: `requested` is the Host of the request."""
    named = (urlsplit(service.url).hostname or "", host_of(requested), *(name.lower() for name in service.hosts))
    return frozenset(name for name in named if name)


def host_of(authority: str) -> str:
    try:
        return urlsplit(f"//{authority}").hostname or ""
    except ValueError:
        return ""


def _name(place: JsonPath) -> str:
    """That of the member at a place, or of the list in which it is."""
    named = place[:-1] if place and place[-1] is None else place
    return (named[-1] or "") if named else ""


def _is_item(index: Index, service: str, path: str) -> bool:
    """Whether a path leads to one thing, rather than to a list or a search: the path of
    a replicant does, and one whose end looks like an id."""
    last = path.rpartition("/")[2]
    return index.is_at(service, path) or last.isdigit() or is_distinctive(last)


WHOLE_BYTES = 256 * 1024  # up to this size a body is held as a whole, so that its length is known
_FORM = "application/x-www-form-urlencoded"
# Headers that are wrong once the body is translated.
BODY_HEADERS = ("Content-Length", "Content-MD5", "Digest", "Content-Digest", "Repr-Digest")
_ENCODINGS = ("gzip", "x-gzip", "deflate")
READABLE_ENCODINGS = ("", "identity", *_ENCODINGS)
_GZIP_OR_ZLIB = 47
_PARTIAL = 206


class Translator(Protocol):
    def feed(self, piece: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


def form_of(head: RequestHead) -> Form | None:
    """How ids are written in the body of a request; None where it is not looked into."""
    content_type = first(head, "Content-Type") or ""
    if is_json(content_type):
        return Form.JSON
    return Form.URL if media_type(content_type) == _FORM else None


def translate_body(body: AsyncIterator[bytes], by: Translator) -> AsyncIterator[bytes]:
    return StreamedBody(_translate(body, by), partial(close_body, body))


async def _translate(body: AsyncIterator[bytes], by: Translator) -> AsyncIterator[bytes]:
    async for piece in body:
        if done := by.feed(piece):
            yield done
    yield by.finish()


def iterate_body(body: Body) -> AsyncIterator[bytes]:
    return _one_piece(body) if isinstance(body, bytes) else body


async def _one_piece(body: bytes) -> AsyncIterator[bytes]:
    yield body


async def buffer_if_small(body: AsyncIterator[bytes], size: int | None) -> Body:
    """A small body as a whole, so that its new length is known; any other in pieces. A body without a length may be a
    stream that never ends, and a compressed one may be much larger than it seems."""
    if size is None or size > WHOLE_BYTES:
        return body
    begun: list[bytes] = []
    held = 0
    async for piece in body:
        begun.append(piece)
        held += len(piece)
        if held > 4 * WHOLE_BYTES:
            return StreamedBody(_continue(begun, body), partial(close_body, body))
    return b"".join(begun)


async def _continue(begun: list[bytes], body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    while begun:
        yield begun.pop(0)
    async for piece in body:
        yield piece


def length_of(headers: Headers) -> int | None:
    """The length that a response declares."""
    value = first(RequestHead("", "", headers), "Content-Length") or ""
    return int(value) if value.isascii() and value.isdigit() else None


def is_translatable(response: Response) -> bool:
    return is_json(_content_type(response))


def is_partial_json(response: Response) -> bool:
    """Whether a response is a part of JSON, or may be several parts. It is unknown where in the document it begins, and
    which bytes it would have once the ids are translated."""
    if response.status != _PARTIAL:
        return False
    return is_translatable(response) or media_type(_content_type(response)) == "multipart/byteranges"


def _content_type(response: Response) -> str:
    return first(RequestHead("", "", response.headers), "Content-Type") or ""


def without_body_headers(headers: Headers) -> Headers:
    """Headers of a response whose body may have changed. Its ETag stays: it identifies the version of the resource, and
    clients send it in If-Match."""
    return without(headers, *BODY_HEADERS, "Accept-Ranges", "Content-Encoding")


def decompressed(response: Response) -> AsyncIterator[bytes]:
    """The body of a response. Some services compress it although the request did not accept that: it is unpacked."""
    pieces = iterate_body(response.body)
    if _encoding_of(response) not in _ENCODINGS:
        return pieces
    return StreamedBody(_decompress(pieces), partial(close_body, pieces))


async def _decompress(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    unpacker, is_empty = zlib.decompressobj(_GZIP_OR_ZLIB), True
    async for piece in pieces:
        is_empty = is_empty and not piece
        while piece:
            try:
                yield unpacker.decompress(piece, WHOLE_BYTES)
            except zlib.error as error:
                raise _bad_encoding(str(error)) from None
            piece = unpacker.unconsumed_tail or unpacker.unused_data  # noqa: PLW2901 - the rest of it
            if unpacker.eof and piece:
                unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)  # gzip may have several members
    if not unpacker.eof and not is_empty:
        raise _bad_encoding("it ends too early")


def _bad_encoding(why: str) -> UpstreamError:
    return bad_response(f"the service compressed its response without a request for that, and it cannot be read: {why}")


def bad_response(text: str) -> UpstreamError:
    """The error for a response that cannot be translated. The service has executed the request by then."""
    return UpstreamError(text, "a bad response", may_have_had_effect=True)


def has_unknown_encoding(response: Response) -> bool:
    return _encoding_of(response) not in ("identity", *_ENCODINGS)


def _encoding_of(response: Response) -> str:
    return (first(RequestHead("", "", response.headers), "Content-Encoding") or "identity").strip().lower()
