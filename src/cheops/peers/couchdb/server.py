"""The server: the part of CouchDB's HTTP interface that replicators use (CouchDB 3, PouchDB, ours).

Documents come in only by `_bulk_docs` with `new_edits=false`: they are immutable, and their revision follows from
their content. Otherwise only a replicator's own notes (`_local/…`) can be written. A document has one
revision, so `open_revs`, `latest` and the history of revisions are simple. A document that the site has forgotten is
missing, not deleted.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cheops import __version__
from cheops.peers.client import decode_json
from cheops.peers.couchdb.changes import changes
from cheops.peers.couchdb.database import Database, Databases
from cheops.peers.couchdb.documents import CouchDocument
from cheops.peers.couchdb.requests import CouchError, Handler, bool_param, json_response, read_object, with_couch_errors

_AT_ONCE = 20  # documents in memory: each can have megabytes
_BOUNDARY = "cheops-3f1f0c7fd7d24d0b"  # cannot start a line of a body, which is JSON without line breaks


class BulkGetItem(msgspec.Struct):
    """A document that a `_bulk_get` requests; without a revision, the only one."""

    id: str
    rev: str | None = None


async def get_document(request: Request, database: Database) -> Response:
    id_, params = request.path_params["id"], request.query_params
    one = (await database.find([id_])).get(id_)
    revs = bool_param(params, "revs")
    if "open_revs" in params:
        results = _open_revs(one, _requested_revs(params["open_revs"], database), with_history=revs)
        wants_parts = "multipart/mixed" in request.headers.get("accept", "")
        return _in_parts(results) if wants_parts else json_response(results)
    if one is None or params.get("rev", one.rev) != one.rev:
        raise CouchError("missing", "not_found")
    return json_response(one.as_couch(history=revs))


def _requested_revs(text: str, database: Database) -> list[str] | None:
    """The revisions in the request; None for all."""
    if text == "all":
        return None
    try:
        revs = decode_json(text, list[str])
    except ValueError:
        raise CouchError("'open_revs' must be all, or a list of revisions") from None
    _check_count(len(revs), database)
    return revs


def _open_revs(one: CouchDocument | None, revs: Sequence[str] | None, *, with_history: bool) -> list[dict[str, Any]]:
    if revs is None:
        if one is None:
            raise CouchError("missing", "not_found")
        revs = [one.rev]
    return [{"ok": one.as_couch(history=with_history)} if one and rev == one.rev else {"missing": rev} for rev in revs]


def _in_parts(results: Sequence[Mapping[str, Any]]) -> Response:
    """The form that CouchDB's replicator requests: a part per revision, marked if it is missing."""
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
        requested = msgspec.convert(body.get("docs"), list[BulkGetItem])
    except msgspec.ValidationError as error:
        raise CouchError(f"'docs' must be a list of objects with 'id' and perhaps 'rev': {error}") from None
    _check_count(len(requested), database)
    revs = bool_param(request.query_params, "revs")
    return StreamingResponse(_bulk_results(database, requested, revs=revs), media_type="application/json")


async def _bulk_results(database: Database, requested: Sequence[BulkGetItem], *, revs: bool) -> AsyncIterator[bytes]:
    """A few at a time, so that many large documents are never in memory at once."""
    yield b'{"results":['
    for start in range(0, len(requested), _AT_ONCE):
        some = requested[start : start + _AT_ONCE]
        here = await database.find(one.id for one in some)
        rows = (msgspec.json.encode(_bulk_result(one, here.get(one.id), revs=revs)) for one in some)
        yield (b",\n" if start else b"\n") + b",\n".join(rows)
    yield b"\n]}\n"


def _bulk_result(requested: BulkGetItem, one: CouchDocument | None, *, revs: bool) -> dict[str, Any]:
    if one is not None and requested.rev in (None, one.rev):
        return {"id": requested.id, "docs": [{"ok": one.as_couch(history=revs)}]}
    rev = requested.rev or "undefined"
    missing = {"id": requested.id, "rev": rev, "error": "not_found", "reason": "missing"}
    return {"id": requested.id, "docs": [{"error": missing}]}


async def revs_diff(request: Request, database: Database) -> Response:
    body = await read_object(request, database.limits.body_bytes)
    try:
        requested = msgspec.convert(body, dict[str, list[str]])
    except msgspec.ValidationError as error:
        raise CouchError(f"the request body must give a list of revisions for each id: {error}") from None
    _check_count(len(requested), database)
    here = await database.revisions(requested)
    missing = {id_: [rev for rev in revs if rev != here.get(id_)] for id_, revs in requested.items()}
    return json_response({id_: {"missing": revs} for id_, revs in missing.items() if revs})


def _check_count(count: int, database: Database) -> None:
    most = database.limits.documents
    if count > most:
        raise CouchError(f"more than {most} documents or revisions in one request; request fewer at once", "too_large")


DatabaseHandler = Callable[[Request, Database], Awaitable[Response]]
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
_IMMUTABLE = "documents here are immutable; send them to _bulk_docs with new_edits=false"


def couch_routes(databases: Databases) -> list[Route]:
    """The routes, for the agent to mount. They check no rights: that is up to the agent."""

    def database(path: str, **handlers: DatabaseHandler) -> Route:
        return Route(path, with_couch_errors(_by_method(databases, handlers)), methods=_METHODS)

    async def feed(request: Request, database: Database) -> Response:
        return await changes(request, databases, database)

    async def welcome(_request: Request) -> Response:
        server = {"couchdb": "Welcome", "version": "3.3.0", "uuid": databases.positions.uuid, "features": []}
        return json_response(server | {"vendor": {"name": "Cheops", "version": __version__}})

    return [
        Route("/", with_couch_errors(welcome), methods=["GET"]),
        database("/{db}", get=_info, head=_info, put=_create),
        database("/{db}/", get=_info, head=_info, put=_create),  # PouchDB adds the slash
        database("/{db}/_changes", get=feed, post=feed),
        database("/{db}/_revs_diff", post=revs_diff),
        database("/{db}/_bulk_get", post=bulk_get),
        database("/{db}/_bulk_docs", post=_bulk_docs),
        database("/{db}/_ensure_full_commit", post=_ensure_full_commit),
        database("/{db}/_local/{id:path}", get=_get_note, put=_put_note),
        database("/{db}/{id:path}", get=_get, head=_get, put=_refuse, delete=_refuse),
    ]


def _by_method(databases: Databases, handlers: dict[str, DatabaseHandler]) -> Handler:
    async def handle(request: Request) -> Response:
        database = databases.named(request.path_params["db"])
        handler = handlers.get(request.method.lower())
        if handler is None:
            raise CouchError(f"only {', '.join(handlers).upper()} is allowed here", "method_not_allowed")
        return await handler(request, database)

    return handle


async def _info(_request: Request, database: Database) -> Response:
    """What replicators read. There is no count of documents: it would have to follow what the site forgets."""
    seq = database.positions.format(await database.last_seq())
    return json_response(
        {
            "db_name": database.name,
            "update_seq": seq,
            "committed_update_seq": seq,
            "instance_start_time": "0",  # CouchDB 3 gives it no meaning, but clients expect it
            "purge_seq": 0,
            "doc_del_count": 0,
            "compact_running": False,
        }
    )


async def _create(_request: Request, database: Database) -> Response:
    raise CouchError(f"the database {database.name} always exists", "file_exists")


async def _ensure_full_commit(_request: Request, _database: Database) -> Response:
    return json_response({"ok": True, "instance_start_time": "0"}, 201)  # every write was durable before its response


async def _bulk_docs(request: Request, database: Database) -> Response:
    body = await read_object(request, database.limits.body_bytes)
    if body.get("new_edits") is not False:
        raise CouchError(_IMMUTABLE, "forbidden")
    documents = body.get("docs")
    if not isinstance(documents, list):
        raise CouchError("'docs' must be a list of documents")
    if len(documents) > database.limits.documents:
        raise CouchError(f"more than {database.limits.documents} documents at once; send fewer", "too_large")
    taken = await database.take(documents)
    # As in CouchDB with new_edits=false, the response lists only what was refused. A replicator skips a "forbidden"
    # document and goes on; any other error would stop it.
    rows = [{"id": r.id, "rev": r.rev, "error": "forbidden", "reason": r.reason} for r in taken.refused]
    return json_response(rows, 201)


async def _get_note(request: Request, database: Database) -> Response:
    id_ = request.path_params["id"]
    note = await database.note(id_)
    if note is None:
        raise CouchError("missing", "not_found")
    return json_response({"_id": f"_local/{id_}"} | note)


async def _put_note(request: Request, database: Database) -> Response:
    id_ = request.path_params["id"]
    if len(id_.encode()) > 512:
        raise CouchError("the id of a note has at most 512 bytes")
    note = await read_object(request, database.limits.note_bytes)
    content = {name: value for name, value in note.items() if name not in ("_id", "_rev")}
    rev = await database.put_note(id_, content)
    return json_response({"ok": True, "id": f"_local/{id_}", "rev": rev}, 201)


async def _get(request: Request, database: Database) -> Response:
    if request.path_params["id"].startswith("_"):
        raise CouchError("this database serves only what replication needs", "not_found")
    return await get_document(request, database)


async def _refuse(_request: Request, _database: Database) -> Response:
    raise CouchError(_IMMUTABLE, "forbidden")
