"""Requests that only the agents of other sites send: heartbeats, messages, files, certificates, `show`."""

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import Scope

from cheops.api.forms import show_here
from cheops.api.permissions import ForbiddenError, check_involved, principal_of
from cheops.api.submission import RequestError, check_names
from cheops.backends.http import locations
from cheops.backends.http.backend import http_backend
from cheops.backends.http.ids import is_meta_id
from cheops.backends.http.locations import Locations
from cheops.node.node import Node
from cheops.peers import file_fetcher, heartbeat, links, prober, site_keys
from cheops.peers.couchdb.requests import read_body, read_json
from cheops.peers.couchdb.server import couch_routes
from cheops.peers.enrollment import FORGED_SENDER
from cheops.peers.intake import NotYetError
from cheops.security.principal import Kind, Principal
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.store.files import NoSuchFileError
from cheops.text import printable


def sender(request: Request) -> str | None:
    """The site that asks, where it has shown that it is; None with `security: none`."""
    found: str | None = request.scope.get("state", {}).get("peer")
    return found


def message_routes(node: Node) -> list[BaseRoute]:
    async def messages(request: Request) -> Response:
        body = await read_body(request, MAX_MESSAGE_BYTES)
        peer, found = links.unpack(body)
        if sender(request) not in (None, peer):
            node.refusals.count(FORGED_SENDER, sender(request) or "", f"messages of {peer}")
            raise prober.ForgedSenderError(f"'{sender(request)}' cannot send messages of '{printable(peer)}'")
        if (shown := request.scope.get("state", {}).get("certificate")) is not None:
            await node.site_keys.meet(shown)
        await node.intake.hear(peer, found)
        return JSONResponse([], 201)

    async def identity(request: Request) -> Response:
        told = await node.site_keys.note_of(request.path_params["site"]) if node.verifier else None
        return JSONResponse(told or {"certificates": []}, 200 if told else 404)

    return [
        _MessageRoute(f"/{links.DATABASE}/_bulk_docs", messages, methods=["POST"]),
        Route(f"/{site_keys.IDENTITY_PATH}/{{site:path}}", identity, methods=["GET"]),
    ]


class _MessageRoute(Route):
    """Only for agents: other writers of this database are served as CouchDB would."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        marked = any(name == links.SITE_HEADER.lower().encode() for name, _ in scope.get("headers", ()))
        return super().matches(scope) if marked else (Match.NONE, {})


_MOST_BYTES = 1024 * 1024


async def check_file(node: Node, who: Principal, hash_: str) -> None:
    """Whether a site may have a file: one of an operation on a resource that it has, or had, to do with.
    Raises ForbiddenError."""
    if who.kind is not Kind.PEER:
        return
    if node.file_references.is_needed:
        raise NotYetError("which files belong to which resources is not known yet; ask again")
    for resource in node.file_references.users(hash_):
        history = (await node.pump.replica(resource)).history
        if who.name in history.site_list or who.name in history.ever_listed:
            return
    raise ForbiddenError(f"no resource of {who.name} has the file {hash_[:12]}…", "site not involved")


def peer_routes(node: Node) -> list[BaseRoute]:
    couch = couch_routes(node.databases)

    async def probe(request: Request) -> Response:
        body = await read_body(request, heartbeat.MAX_BYTES)
        try:
            answer = node.prober.answer(body, sender(request))
        except prober.ForgedSenderError as error:
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
        if not isinstance(body, dict) or not all(isinstance(body.get(k), str) for k in ("resource", "command")):
            raise RequestError("expected an object with 'resource' and 'command'")
        check_names(body["resource"])
        who = principal_of(request)
        if who.kind is Kind.PEER:
            check_involved(node, who, await node.pump.replica(body["resource"]))
        return JSONResponse(await show_here(node, body["resource"], body["command"]))

    async def replicant(request: Request) -> Response:
        meta_id = request.path_params["id"].lower()
        sites = await Locations(node).known_here(meta_id) if is_meta_id(meta_id) else ()
        told: dict[str, object] = {"sites": sites}
        who = principal_of(request)
        if who.kind is not Kind.PEER or who.name in sites:  # what it is called here is for its own sites
            copy = http_backend(node).copies.index.copies.get(meta_id)
            told["local_id"] = copy.local_id if copy else None
        return JSONResponse(told, 200 if sites else 404)

    return [
        Route(f"/{prober.PROBE_PATH}", probe, methods=["POST"]),
        *message_routes(node),
        Mount("/db", routes=couch),
        Route(f"/{file_fetcher.FILES_PATH}/{{hash}}", file, methods=["GET"]),
        Route("/peer/show", show, methods=["POST"]),
        Route(f"/{locations.PATH}/{{id}}", replicant, methods=["GET"]),
    ]
