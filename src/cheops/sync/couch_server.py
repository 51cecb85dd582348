"""The server end: the part of CouchDB's HTTP interface that replicators use (CouchDB 3, PouchDB, ours).

Documents come in only by `_bulk_docs` with `new_edits=false`: they are immutable, and their revision is part
of what they are. Nothing else can be written but a replicator's own notes (`_local/…`).
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cheops import __version__
from cheops.sync.couch_changes import changes
from cheops.sync.couch_database import Database, Databases
from cheops.sync.couch_errors import (
    CouchError,
    ExistsError,
    ForbiddenError,
    NotAllowedError,
    NotFoundError,
    TooLargeError,
)
from cheops.sync.couch_http import Handler, answer, answering, read_object
from cheops.sync.couch_reading import bulk_get, get_document, revs_diff

DatabaseHandler = Callable[[Request, Database], Awaitable[Response]]
_METHODS = ["GET", "HEAD", "POST", "PUT", "DELETE"]
_IMMUTABLE = "documents here are immutable; send them to _bulk_docs with new_edits=false"


def couch_routes(databases: Databases) -> list[Route]:
    """The routes, to be mounted where the agent wants them. Whoever mounts them sees to who may come in."""

    def database(path: str, **handlers: DatabaseHandler) -> Route:
        return Route(path, answering(_by_method(databases, handlers)), methods=_METHODS)

    async def feed(request: Request, database: Database) -> Response:
        return await changes(request, databases, database)

    async def welcome(_request: Request) -> Response:
        server = {"couchdb": "Welcome", "version": "3.3.0", "uuid": databases.places.uuid, "features": []}
        return answer(server | {"vendor": {"name": "Cheops", "version": __version__}})

    return [
        Route("/", answering(welcome), methods=["GET"]),
        database("/{db}", get=_info, head=_info, put=_create),
        database("/{db}/", get=_info, head=_info, put=_create),  # as PouchDB writes it
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
            raise NotAllowedError(f"only {', '.join(handlers).upper()} is allowed here")
        return await handler(request, database)

    return handle


async def _info(_request: Request, database: Database) -> Response:
    """What replicators ask for. Documents are not counted: what a site forgets would have to be, too."""
    seq = database.places.written(await database.last_seq())
    return answer(
        {
            "db_name": database.name,
            "update_seq": seq,
            "committed_update_seq": seq,
            "instance_start_time": "0",  # as in CouchDB 3: it means nothing any more, but must be there
            "purge_seq": 0,
            "doc_del_count": 0,
            "compact_running": False,
        }
    )


async def _create(_request: Request, database: Database) -> Response:
    raise ExistsError(f"the database {database.name} is always there")


async def _ensure_full_commit(_request: Request, _database: Database) -> Response:
    return answer({"ok": True, "instance_start_time": "0"}, 201)  # what was answered for is durable


async def _bulk_docs(request: Request, database: Database) -> Response:
    body = await read_object(request, database.limits.body_bytes)
    if body.get("new_edits") is not False:
        raise ForbiddenError(_IMMUTABLE)
    documents = body.get("docs")
    if not isinstance(documents, list):
        raise CouchError("'docs' must be a list of documents")
    if len(documents) > database.limits.documents:
        raise TooLargeError(f"more than {database.limits.documents} documents at once; send fewer")
    taken = await database.take(documents)
    # As CouchDB does with new_edits=false, only what was refused is named; after "forbidden" others go on.
    rows = [{"id": r.id, "rev": r.rev, "error": "forbidden", "reason": r.reason} for r in taken.refused]
    return answer(rows, 201)


async def _get_note(request: Request, database: Database) -> Response:
    id_ = request.path_params["id"]
    note = await database.note(id_)
    if note is None:
        raise NotFoundError("missing")
    return answer({"_id": f"_local/{id_}"} | note)


async def _put_note(request: Request, database: Database) -> Response:
    id_ = request.path_params["id"]
    if len(id_.encode()) > 512:
        raise CouchError("the id of a note has at most 512 bytes")
    note = await read_object(request, database.limits.note_bytes)
    content = {name: value for name, value in note.items() if name not in ("_id", "_rev")}
    rev = await database.put_note(id_, content)
    return answer({"ok": True, "id": f"_local/{id_}", "rev": rev}, 201)


async def _get(request: Request, database: Database) -> Response:
    if request.path_params["id"].startswith("_"):
        raise NotFoundError("this database answers only what replication needs")
    return await get_document(request, database)


async def _refuse(_request: Request, _database: Database) -> Response:
    raise ForbiddenError(_IMMUTABLE)
