"""Bodies on their way through, in pieces, with their ids translated."""

import zlib
from collections.abc import AsyncIterator
from typing import Protocol

from cheops.backends.http_request import is_json, media_type
from cheops.backends.http_to_local import Form
from cheops.gateway.errors import UpstreamError
from cheops.gateway.seam import Body, Head, Headers, Outgoing, first, without

WHOLE_BYTES = 256 * 1024  # up to this a body is held as a whole, so that its length can be said
_FORM = "application/x-www-form-urlencoded"
# What is not true any more of a body that was translated.
OF_THE_BODY = ("Content-Length", "Content-MD5", "Digest", "Content-Digest", "Repr-Digest")
_PACKED = ("gzip", "x-gzip", "deflate")
_GZIP_OR_ZLIB = 47
_PARTIAL = 206


class Translating(Protocol):
    def feed(self, piece: bytes) -> bytes: ...

    def finish(self) -> bytes: ...


def form_of(head: Head) -> Form | None:
    """How ids are written in the body of a request; None where it is not looked into."""
    content_type = first(head, "Content-Type") or ""
    if is_json(content_type):
        return Form.JSON
    return Form.URL if media_type(content_type) == _FORM else None


async def translated(body: AsyncIterator[bytes], by: Translating) -> AsyncIterator[bytes]:
    try:
        async for piece in body:
            if done := by.feed(piece):
                yield done
        yield by.finish()
    finally:
        await closed(body)


async def closed(body: Body | None) -> None:
    if (close := getattr(body, "aclose", None)) is not None:
        await close()


async def in_pieces(body: Body) -> AsyncIterator[bytes]:
    if isinstance(body, bytes):
        yield body
        return
    try:
        async for piece in body:
            yield piece
    finally:
        await closed(body)


async def with_length(body: AsyncIterator[bytes], size: int | None) -> Body:
    """A small body as a whole, so that its new length can be said. Any other as it comes: one without a
    length may be a stream that never ends, and one that was packed may be much larger than it seemed."""
    if size is None or size > WHOLE_BYTES:
        return body
    begun: list[bytes] = []
    held = 0
    async for piece in body:
        begun.append(piece)
        held += len(piece)
        if held > 4 * WHOLE_BYTES:
            return _continued(begun, body)
    return b"".join(begun)


async def _continued(begun: list[bytes], body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        while begun:
            yield begun.pop(0)
        async for piece in body:
            yield piece
    finally:
        await closed(body)


def length_of(headers: Headers) -> int | None:
    """What an answer says of its length."""
    value = first(Head("", "", headers), "Content-Length") or ""
    return int(value) if value.isascii() and value.isdigit() else None


def is_translatable(answer: Outgoing) -> bool:
    return is_json(_content_type(answer))


def is_part_of_translatable(answer: Outgoing) -> bool:
    """Whether an answer is a part of JSON, or may be several. Nobody can tell where in the document it
    begins, and which bytes it would be once the ids are others."""
    if answer.status != _PARTIAL:
        return False
    return is_translatable(answer) or media_type(_content_type(answer)) == "multipart/byteranges"


def _content_type(answer: Outgoing) -> str:
    return first(Head("", "", answer.headers), "Content-Type") or ""


def with_new_body(headers: Headers) -> Headers:
    """Headers of an answer whose body may have become another. Its tag stays: it says whether the resource
    has changed, and is asked for by If-Match."""
    return without(headers, *OF_THE_BODY, "Accept-Ranges", "Content-Encoding")


async def unpacked(answer: Outgoing) -> AsyncIterator[bytes]:
    """The body of an answer; one that came packed, though nobody asked for that, is opened."""
    packing = (first(Head("", "", answer.headers), "Content-Encoding") or "identity").strip().lower()
    pieces = in_pieces(answer.body)
    if packing not in _PACKED:
        async for piece in pieces:
            yield piece
        return
    opening, is_empty = zlib.decompressobj(_GZIP_OR_ZLIB), True
    async for piece in pieces:
        is_empty = is_empty and not piece
        while piece:
            try:
                yield opening.decompress(piece, WHOLE_BYTES)
            except zlib.error as error:
                raise _broken(str(error)) from None
            piece = opening.unconsumed_tail or opening.unused_data  # noqa: PLW2901 - the rest of it
            if opening.eof and piece:
                opening = zlib.decompressobj(_GZIP_OR_ZLIB)  # gzip may be several, one after the other
    if not opening.eof and not is_empty:
        raise _broken("it ends too early")


def _broken(why: str) -> UpstreamError:
    text = f"the service packed its answer, though nobody asked for that, and it cannot be opened: {why}"
    return UpstreamError(text, "a bad answer", may_have_had_effect=True)


def is_packed_strangely(answer: Outgoing) -> bool:
    packing = (first(Head("", "", answer.headers), "Content-Encoding") or "identity").strip().lower()
    return packing not in ("identity", *_PACKED)
