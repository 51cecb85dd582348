"""`_changes`: the feed, read at once (normal), waited for (longpoll), or followed (continuous).

The first page is read before the response starts, so that an error still gets its status. A response that fails
later ends without its closing line, which every client notices.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.peers.client import decode_json
from cheops.peers.couchdb.database import Database, Databases, Page, ServerLimits
from cheops.peers.couchdb.documents import CouchDocument
from cheops.peers.couchdb.requests import CouchError, bool_param, int_param, read_object

_FEEDS = ("normal", "longpoll", "continuous")


class ChangesQuery(msgspec.Struct, frozen=True):
    """The parameters of a request. Those that only matter for edits, deletions or attachments, which do not
    exist here, are ignored."""

    feed: str
    since: int
    limit: int | None
    with_docs: bool
    only: frozenset[str] | None
    heartbeat_s: float | None
    timeout_s: float


class FeedCursor(msgspec.Struct):
    """How far a client has read."""

    since: int
    left: int | None  # rows that may still be sent
    sent: int = 0

    @property
    def is_full(self) -> bool:
        return self.left is not None and self.sent >= self.left


async def changes(request: Request, databases: Databases, database: Database) -> Response:
    body = await read_object(request, databases.limits.body_bytes) if request.method == "POST" else {}
    last = await database.last_seq()
    query = parse(request.query_params, body, database, last)
    first = await database.page(query.since, _page_size(query, database.limits))
    stream = _stream(database, query, first)
    if query.feed != "normal":
        if databases.long_polls >= databases.limits.long_polls:
            raise CouchError("too many clients wait for changes here; try again later", "too_many_requests")
        stream = _counted(databases, stream)
    return StreamingResponse(stream, media_type="application/json", headers={"Cache-Control": "no-store"})


def parse(params: Mapping[str, str], body: Mapping[str, Any], database: Database, last: int) -> ChangesQuery:
    feed = params.get("feed", "normal")
    if feed not in _FEEDS:
        raise CouchError(f"'feed' must be one of {', '.join(_FEEDS)}")
    if bool_param(params, "descending"):
        raise CouchError("the feed cannot be read backwards")
    limit = int_param(params, "limit")
    return ChangesQuery(
        feed=feed,
        since=_since(params.get("since", "0"), database, last),
        limit=None if limit is None else max(1, limit),  # CouchDB also treats 0 as 1
        with_docs=bool_param(params, "include_docs"),
        only=_only(params, body, database.limits),
        heartbeat_s=_heartbeat(params, database.limits),
        timeout_s=_timeout(params, database.limits),
    )


def _since(text: str, database: Database, last: int) -> int:
    text = text.removeprefix('"').removesuffix('"')  # CouchDB's replicator sends it as JSON
    if text == "now":
        return last
    number = database.positions.parse(text, last)
    if number is None:
        raise CouchError("'since' must be 0, now, or a 'seq' or 'last_seq' of this database")
    return number


def _only(params: Mapping[str, str], body: Mapping[str, Any], limits: ServerLimits) -> frozenset[str] | None:
    name = params.get("filter")
    if name is None:
        return None
    if name != "_doc_ids":
        raise CouchError("the only filter is _doc_ids; the database of a site holds what involves that site")
    try:
        given = body["doc_ids"] if "doc_ids" in body else decode_json(params.get("doc_ids", ""), object)
        ids = msgspec.convert(given, list[str])
    except (ValueError, msgspec.ValidationError):
        raise CouchError("'doc_ids' must be a list of ids") from None
    if len(ids) > limits.documents:
        raise CouchError(f"more than {limits.documents} ids in 'doc_ids'; request fewer", "too_large")
    return frozenset(ids)


def _heartbeat(params: Mapping[str, str], limits: ServerLimits) -> float | None:
    if params.get("heartbeat") in (None, "false"):
        return None
    if params["heartbeat"] == "true":
        return limits.longest_wait_s
    return min(max((int_param(params, "heartbeat") or 0) / 1000, limits.least_heartbeat_s), limits.longest_wait_s)


def _timeout(params: Mapping[str, str], limits: ServerLimits) -> float:
    timeout_ms = int_param(params, "timeout")
    return limits.longest_wait_s if timeout_ms is None else min(timeout_ms / 1000, limits.longest_wait_s)


def _page_size(query: ChangesQuery, limits: ServerLimits) -> int:
    return limits.page if query.limit is None or query.only is not None else min(limits.page, query.limit)


async def _rows(database: Database, query: ChangesQuery, cursor: FeedCursor, page: Page) -> AsyncIterator[bytes]:
    """The rows from this page to the end of the feed."""
    while True:
        for seq, one in page.rows:
            if cursor.is_full:
                return
            cursor.since = seq
            if query.only is None or one.id in query.only:
                cursor.sent += 1
                yield _row(database.positions.format(seq), one, query)
        if cursor.is_full:
            return
        cursor.since = page.reached
        if page.is_last:
            return
        page = await database.page(cursor.since, _page_size(query, database.limits))


def _row(seq: str, one: CouchDocument, query: ChangesQuery) -> bytes:
    row: dict[str, Any] = {"seq": seq, "id": one.id, "changes": [{"rev": one.rev}]}
    if query.with_docs:
        row["doc"] = one.as_couch()
    return msgspec.json.encode(row)


async def _counted(databases: Databases, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The stream, counted among the long polls while it is open."""
    databases.long_polls += 1
    try:
        async for part in stream:
            yield part
    finally:
        databases.long_polls -= 1


async def _stream(database: Database, query: ChangesQuery, page: Page) -> AsyncIterator[bytes]:
    """The rows that exist; for a feed that waits, then the next ones, with a blank line as heartbeat; and the end."""
    cursor, timer, has_more = FeedCursor(query.since, query.limit), WaitTimer(query), True
    while has_more:
        async for row in _rows(database, query, cursor, page):
            timer = WaitTimer(query)
            yield _framed(query, row, is_first=cursor.sent == 1)
        has_more = False
        while _waits(query, cursor) and not (has_more or timer.is_over or database.signal.closed):
            has_more = await database.signal.wait_beyond(cursor.since, timer.next_s())
            if not has_more:
                yield b"\n"
        if has_more:
            page = await database.page(cursor.since, _page_size(query, database.limits))
    if query.feed != "continuous":
        yield b"\n],\n" if cursor.sent else b'{"results":[\n\n],\n'
    yield await _end(database, query, cursor)


def _waits(query: ChangesQuery, cursor: FeedCursor) -> bool:
    """Whether a client that has read everything waits for more."""
    if query.feed == "longpoll":
        return cursor.sent == 0
    return query.feed == "continuous" and not cursor.is_full


def _framed(query: ChangesQuery, row: bytes, *, is_first: bool) -> bytes:
    """A line of its own, or an item of the list that is a member of an object."""
    if query.feed == "continuous":
        return row + b"\n"
    return (b'{"results":[\n' if is_first else b",\n") + row


async def _end(database: Database, query: ChangesQuery, cursor: FeedCursor) -> bytes:
    """The end of a response. `pending` is an upper bound: some numbers belong to other sites, or are forgotten."""
    pending = max(0, await database.last_seq() - cursor.since)
    end = msgspec.json.encode({"last_seq": database.positions.format(cursor.since), "pending": pending}) + b"\n"
    return end if query.feed == "continuous" else end.removeprefix(b"{")


class WaitTimer:
    """How long to wait: with a heartbeat without end, in steps; otherwise until the timeout."""

    def __init__(self, query: ChangesQuery) -> None:
        self._heartbeat_s = query.heartbeat_s
        self._clock = asyncio.get_running_loop().time
        self._until = self._clock() + query.timeout_s

    def next_s(self) -> float:
        return self._heartbeat_s or max(0.0, self._until - self._clock())

    @property
    def is_over(self) -> bool:
        return self._heartbeat_s is None and self._clock() >= self._until
