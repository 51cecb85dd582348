"""What only the agents of other sites ask for: heartbeats, files, `show`, and what hearing.py has."""

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from cheops.api.forms import show_here
from cheops.api.hearing import hearing_routes, sender
from cheops.api.operations import RequestError, check_names
from cheops.api.reach import ForbiddenError, check_involved, principal_of
from cheops.backends.http_ids import is_meta_id
from cheops.gateway.replicas import whereabouts
from cheops.gateway.replicas.whereabouts import Whereabouts
from cheops.node import fetching
from cheops.node.files import NoSuchFileError
from cheops.node.identity import FORGED_SENDER
from cheops.node.intake import NotYetError
from cheops.node.node import Node
from cheops.security.principal import Kind, Principal
from cheops.sync import heart, heartbeat
from cheops.sync.couch_http import read_body, read_json
from cheops.sync.couch_server import couch_routes

_MOST_BYTES = 1024 * 1024


async def check_file(node: Node, who: Principal, hash_: str) -> None:
    """Whether a site may have a file: one of an operation on a resource that it has, or had, to do with.
    Raises ForbiddenError."""
    if who.kind is not Kind.PEER:
        return
    if node.keeping.is_needed:
        raise NotYetError("which files belong to which resources is not known yet; ask again")
    for resource in node.keeping.users(hash_):
        history = (await node.pump.replica(resource)).history
        if who.name in history.roster or who.name in history.former:
            return
    raise ForbiddenError(f"no resource of {who.name} has the file {hash_[:12]}…", "site not involved")


def peer_routes(node: Node) -> list[BaseRoute]:
    couch = couch_routes(node.databases)

    async def probe(request: Request) -> Response:
        body = await read_body(request, heartbeat.MAX_BYTES)
        try:
            answer = node.heart.answer(body, sender(request))
        except heart.ForgedSenderError as error:
            node.refusals.count(FORGED_SENDER, sender(request) or "", str(error))
            raise
        return Response(answer, media_type="application/json")

    async def file(request: Request) -> Response:
        hash_ = request.path_params["hash"]
        path = node.files.path(hash_)
        if not path.exists():
            raise NoSuchFileError(f"the file {hash_[:12]}… is not here")
        await check_file(node, principal_of(request), hash_)
        return FileResponse(path)

    async def show(request: Request) -> Response:
        body = await read_json(request, _MOST_BYTES)
        if not isinstance(body, dict) or not all(
            isinstance(body.get(k), str) for k in ("resource", "command")
        ):
            raise RequestError("expected an object with 'resource' and 'command'")
        check_names(body["resource"])
        who = principal_of(request)
        if who.kind is Kind.PEER:
            check_involved(node, who, await node.pump.replica(body["resource"]))
        return JSONResponse(await show_here(node, body["resource"], body["command"]))

    async def replicant(request: Request) -> Response:
        meta_id = request.path_params["id"].lower()
        sites = await Whereabouts(node).known_here(meta_id) if is_meta_id(meta_id) else ()
        told: dict[str, object] = {"sites": sites}
        who = principal_of(request)
        if who.kind is not Kind.PEER or who.name in sites:  # what it is called here is for its own sites
            copy = node.replicants.runner.copies.index.copies.get(meta_id)
            told["local_id"] = copy.local_id if copy else None
        return JSONResponse(told, 200 if sites else 404)

    return [
        Route(f"/{heart.PATH}", probe, methods=["POST"]),
        *hearing_routes(node),
        Mount("/db", routes=couch),
        Route(f"/{fetching.PATH}/{{hash}}", file, methods=["GET"]),
        Route("/peer/show", show, methods=["POST"]),
        Route(f"/{whereabouts.PATH}/{{id}}", replicant, methods=["GET"]),
    ]
