"""A session as one body: a line with its requests, as JSON, and then their bodies, one after the other.

The operation that completes a session has this as its body. So it is stored, limited, sent to other sites and deleted
like any other. The last request is the one that completes the session; each says in `file_bytes` how long its body is.
"""

from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from cheops.backends.http.payload import PayloadError, Request
from cheops.backends.http.sender import FileSlice, read_pieces

MAX_HEAD_BYTES = 16 * 1024 * 1024


class RecordedStep(NamedTuple):
    """A request of a session, and where its body is."""

    request: Request
    body: bytes | FileSlice


def head_of(requests: Sequence[Request]) -> bytes:
    return msgspec.json.encode(requests) + b"\n"


async def content_of(head: bytes, bodies: Sequence[bytes | Path]) -> AsyncGenerator[bytes, None]:
    yield head
    for body in bodies:
        if isinstance(body, Path):
            async for piece in read_pieces(body):
                yield piece
        elif body:
            yield body


def steps_of(content: bytes | Path) -> list[RecordedStep]:
    """Raises PayloadError for a body that is no session. Reads only the line with the requests."""
    head, size = _head(content)
    try:
        requests = msgspec.json.decode(head, type=list[Request])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"it completes a session, and its body does not have one: {error}") from None
    steps, start = [], len(head) + 1
    for request in requests:
        length = request.file_bytes or 0
        if length < 0 or start + length > size:
            raise PayloadError("it completes a session, and its body does not have all that was in it")
        body = content[start : start + length] if isinstance(content, bytes) else FileSlice(content, start, length)
        steps.append(RecordedStep(request, body))
        start += length
    if start != size or len(steps) < 2:
        raise PayloadError("it completes a session, and its body has something else in it")
    return steps


def _head(content: bytes | Path) -> tuple[bytes, int]:
    """The first line, and the size of the whole."""
    if isinstance(content, bytes):
        return content.partition(b"\n")[0], len(content)
    with content.open("rb") as file:
        line = file.readline(MAX_HEAD_BYTES)
    return line.rstrip(b"\n"), content.stat().st_size
