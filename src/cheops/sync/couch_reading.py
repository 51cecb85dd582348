"""Documents by their ids: `GET /{db}/{id}`, `_bulk_get`, and `_revs_diff`, which asks what is lacking.

A document has one revision, so `open_revs`, `latest` and the history of revisions are simple. What the site
has forgotten is missing, not deleted.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.sync.couch_database import Database
from cheops.sync.couch_document import Found
from cheops.sync.couch_errors import CouchError, NotFoundError, TooLargeError
from cheops.sync.couch_http import answer, flag, read_object
from cheops.sync.couch_json import decoded

_AT_ONCE = 20  # documents in memory: they can have megabytes
_BOUNDARY = "cheops-3f1f0c7fd7d24d0b"  # cannot stand at a line's start in JSON without line breaks


class Asked(msgspec.Struct):
    """A document that `_bulk_get` names; without a revision the only one is meant."""

    id: str
    rev: str | None = None


async def get_document(request: Request, database: Database) -> Response:
    id_, params = request.path_params["id"], request.query_params
    one = (await database.find([id_])).get(id_)
    revs = flag(params, "revs")
    if "open_revs" in params:
        results = _open_revs(one, _asked_revs(params["open_revs"], database), with_history=revs)
        wants_parts = "multipart/mixed" in request.headers.get("accept", "")
        return _in_parts(results) if wants_parts else answer(results)
    if one is None or params.get("rev", one.rev) != one.rev:
        raise NotFoundError("missing")
    return answer(one.as_couch(history=revs))


def _asked_revs(text: str, database: Database) -> list[str] | None:
    """The revisions that were named; None for all."""
    if text == "all":
        return None
    try:
        revs = decoded(text, list[str])
    except ValueError:
        raise CouchError("'open_revs' must be all, or a list of revisions") from None
    _check_count(len(revs), database)
    return revs


def _open_revs(one: Found | None, revs: Sequence[str] | None, *, with_history: bool) -> list[dict[str, Any]]:
    if revs is None:
        if one is None:
            raise NotFoundError("missing")
        revs = [one.rev]
    return [
        {"ok": one.as_couch(history=with_history)} if one and rev == one.rev else {"missing": rev}
        for rev in revs
    ]


def _in_parts(results: Sequence[Mapping[str, Any]]) -> Response:
    """As CouchDB's replicator wants it: a part per revision, marked where it is missing."""
    parts = []
    for result in results:
        kind = "application/json" if "ok" in result else 'application/json; error="true"'
        content = msgspec.json.encode(result.get("ok", result))
        parts.append(f"--{_BOUNDARY}\r\nContent-Type: {kind}\r\n\r\n".encode() + content + b"\r\n")
    parts.append(f"--{_BOUNDARY}--".encode())
    return Response(b"".join(parts), media_type=f'multipart/mixed; boundary="{_BOUNDARY}"')


async def bulk_get(request: Request, database: Database) -> Response:
    body = await read_object(request, database.limits.body_bytes)
    try:
        asked = msgspec.convert(body.get("docs"), list[Asked])
    except msgspec.ValidationError as error:
        raise CouchError(f"'docs' must be a list of objects with 'id' and perhaps 'rev': {error}") from None
    _check_count(len(asked), database)
    revs = flag(request.query_params, "revs")
    return StreamingResponse(_bulk_results(database, asked, revs=revs), media_type="application/json")


async def _bulk_results(database: Database, asked: Sequence[Asked], *, revs: bool) -> AsyncIterator[bytes]:
    """A page at a time: many large documents are never in memory at once."""
    yield b'{"results":['
    for start in range(0, len(asked), _AT_ONCE):
        some = asked[start : start + _AT_ONCE]
        here = await database.find(one.id for one in some)
        rows = (msgspec.json.encode(_bulk_result(one, here.get(one.id), revs=revs)) for one in some)
        yield (b",\n" if start else b"\n") + b",\n".join(rows)
    yield b"\n]}\n"


def _bulk_result(asked: Asked, one: Found | None, *, revs: bool) -> dict[str, Any]:
    if one is not None and asked.rev in (None, one.rev):
        return {"id": asked.id, "docs": [{"ok": one.as_couch(history=revs)}]}
    rev = asked.rev or "undefined"
    missing = {"id": asked.id, "rev": rev, "error": "not_found", "reason": "missing"}
    return {"id": asked.id, "docs": [{"error": missing}]}


async def revs_diff(request: Request, database: Database) -> Response:
    body = await read_object(request, database.limits.body_bytes)
    try:
        asked = msgspec.convert(body, dict[str, list[str]])
    except msgspec.ValidationError as error:
        raise CouchError(f"the request body must give a list of revisions for each id: {error}") from None
    _check_count(len(asked), database)
    here = await database.revisions(asked)
    missing = {id_: [rev for rev in revs if rev != here.get(id_)] for id_, revs in asked.items()}
    return answer({id_: {"missing": revs} for id_, revs in missing.items() if revs})


def _check_count(count: int, database: Database) -> None:
    most = database.limits.documents
    if count > most:
        raise TooLargeError(f"more than {most} documents or revisions in one request; ask for fewer at once")
