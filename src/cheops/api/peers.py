"""What only the agents of other sites ask for: live messages, heartbeats, files, and `show`."""

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Scope

from cheops.api.forms import show_here
from cheops.api.operations import RequestError
from cheops.backends.http_ids import is_meta_id
from cheops.gateway.replicas import whereabouts
from cheops.gateway.replicas.whereabouts import Whereabouts
from cheops.node import fetching
from cheops.node.files import NoSuchFileError
from cheops.node.node import Node
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.sync import heart, heartbeat, links
from cheops.sync.couch_http import read_body, read_json
from cheops.sync.couch_server import couch_routes

_MOST_BYTES = 1024 * 1024


def peer_routes(node: Node) -> list[BaseRoute]:
    couch = couch_routes(node.databases)

    async def probe(request: Request) -> Response:
        body = await read_body(request, heartbeat.MAX_BYTES)
        return Response(node.heart.answer(body), media_type="application/json")

    async def messages(request: Request) -> Response:
        body = await read_body(request, MAX_MESSAGE_BYTES)
        peer, found = links.unpack(body)
        node.receive(peer, found)
        return JSONResponse([], 201)

    async def file(request: Request) -> Response:
        hash_ = request.path_params["hash"]
        path = node.files.path(hash_)
        if not path.exists():
            raise NoSuchFileError(f"the file {hash_[:12]}… is not here")
        return FileResponse(path)

    async def show(request: Request) -> Response:
        body = await read_json(request, _MOST_BYTES)
        if not isinstance(body, dict) or not all(
            isinstance(body.get(k), str) for k in ("resource", "command")
        ):
            raise RequestError("expected an object with 'resource' and 'command'")
        return JSONResponse(await show_here(node, body["resource"], body["command"]))

    async def replicant(request: Request) -> Response:
        meta_id = request.path_params["id"].lower()
        sites = await Whereabouts(node).known_here(meta_id) if is_meta_id(meta_id) else ()
        return JSONResponse({"sites": sites}, 200 if sites else 404)

    return [
        Route(f"/{heart.PATH}", probe, methods=["POST"]),
        _Live(f"/{links.DATABASE}/_bulk_docs", messages, methods=["POST"]),
        Mount("/db", routes=couch),
        Route(f"/{fetching.PATH}/{{hash}}", file, methods=["GET"]),
        Route("/peer/show", show, methods=["POST"]),
        Route(f"/{whereabouts.PATH}/{{id}}", replicant, methods=["GET"]),
    ]


class _Live(Route):
    """Only for agents: other writers of this database are served as CouchDB would."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        marked = any(name == links.SITE_HEADER.lower().encode() for name, _ in scope.get("headers", ()))
        return super().matches(scope) if marked else (Match.NONE, {})
