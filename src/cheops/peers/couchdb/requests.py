"""Requests and responses of the server: bounded bodies, parameters, and errors in CouchDB's form."""

import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cheops.errors import CheopsError, ClientError
from cheops.peers.client import decode_json
from cheops.text import printable, shortened

Handler = Callable[[Request], Awaitable[Response]]
_GZIP = 16 + zlib.MAX_WBITS  # zlib's way to ask for gzip's header and checksum

# CouchDB's words for errors, by which replicators decide what to do next, and the HTTP status of each.
_STATUS = {
    "bad_request": 400,
    "forbidden": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "file_exists": 412,
    "too_large": 413,
    "bad_content_type": 415,
    "too_many_requests": 429,
}


class CouchError(ClientError):
    """A request that the server refuses, sent as `{"error": …, "reason": …}`."""

    def __init__(self, reason: str, error: str = "bad_request") -> None:
        label = error.replace("_", " ")
        super().__init__(reason, status=_STATUS[error], definite=error != "too_many_requests", reason=label)
        self.error = error


def json_response(content: object, status: int = 200) -> Response:
    # CouchDB ends each response with a line break, for people who use curl.
    return Response(msgspec.json.encode(content) + b"\n", status, media_type="application/json")


def with_couch_errors(handler: Handler) -> Handler:
    """The handler, with its errors in CouchDB's form."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except CouchError as error:
            return json_response({"error": error.error, "reason": str(error)}, error.status)
        except CheopsError as error:
            return json_response({"error": "internal_server_error", "reason": str(error)}, error.status)
        except ClientDisconnect:
            return Response(status_code=400)  # the client is gone; the server only needs some response

    return handle


async def read_object(request: Request, most_bytes: int) -> dict[str, Any]:
    """The JSON object in a request's body."""
    content = await read_json(request, most_bytes)
    if not isinstance(content, dict):
        raise CouchError("the request body must be a JSON object")
    return content


async def read_json(request: Request, most_bytes: int) -> object:
    raw = await read_body(request, most_bytes)
    try:
        return decode_json(raw, object)
    except ValueError as error:
        raise CouchError(f"the request body is not valid JSON: {error}") from None


async def read_body(request: Request, most_bytes: int) -> bytes:
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip"):
        text = f"unknown content encoding '{printable(shortened(encoding))}'; use gzip or none"
        raise CouchError(text, "bad_content_type")
    unpack = GzipReader(most_bytes) if encoding == "gzip" else None
    parts, size, packed_size = [], 0, 0
    async for chunk in request.stream():
        part = unpack.feed(chunk) if unpack else chunk
        size, packed_size = size + len(part), packed_size + len(chunk)
        if max(size, packed_size) > most_bytes:
            text = f"the request body is larger than {most_bytes} bytes; send less at once"
            raise CouchError(text, "too_large")
        parts.append(part)
    if unpack:
        unpack.finish()
    return b"".join(parts)


class GzipReader:
    """Unpacks gzip, and stops one byte after the limit: a small body may unpack to gigabytes."""

    def __init__(self, most_bytes: int) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._left = most_bytes + 1

    def feed(self, chunk: bytes) -> bytes:
        if self._left <= 0 or not chunk:
            return b""
        try:
            part = self._stream.decompress(chunk, self._left)
        except zlib.error as error:
            raise CouchError(f"the request body is not valid gzip: {error}") from None
        if self._stream.unused_data:
            raise CouchError("the request body continues after the gzip stream")
        self._left -= len(part)
        return part

    def finish(self) -> None:
        if not self._stream.eof:
            raise CouchError("the gzip stream in the request body is incomplete")


def bool_param(params: Mapping[str, str], name: str) -> bool:
    """A parameter that is true or false; false if it is not given."""
    value = params.get(name, "false")
    if value not in ("true", "false"):
        raise CouchError(f"'{name}' must be true or false")
    return value == "true"


def int_param(params: Mapping[str, str], name: str) -> int | None:
    """A parameter that is a whole number, or not given."""
    value = params.get(name)
    if value is None:
        return None
    if not (value.isascii() and value.isdigit() and len(value) <= 18):
        raise CouchError(f"'{name}' must be a whole number")
    return int(value)
