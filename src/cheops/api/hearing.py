"""What the engines of other sites say: live messages; and the certificates that it takes to believe them."""

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from cheops.node import origins
from cheops.node.identity import FORGED_SENDER
from cheops.node.node import Node
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.sync import heart, links
from cheops.sync.couch_http import read_body
from cheops.text import printable


def sender(request: Request) -> str | None:
    """The site that asks, where it has shown that it is; None with `security: none`."""
    found: str | None = request.scope.get("state", {}).get("peer")
    return found


def hearing_routes(node: Node) -> list[BaseRoute]:
    async def messages(request: Request) -> Response:
        body = await read_body(request, MAX_MESSAGE_BYTES)
        peer, found = links.unpack(body)
        if sender(request) not in (None, peer):
            node.refusals.count(FORGED_SENDER, sender(request) or "", f"messages of {peer}")
            raise heart.ForgedSenderError(f"'{sender(request)}' cannot send messages of '{printable(peer)}'")
        if (shown := request.scope.get("state", {}).get("certificate")) is not None:
            await node.origins.meet(shown)
        await node.intake.hear(peer, found)
        return JSONResponse([], 201)

    async def identity(request: Request) -> Response:
        told = await node.origins.note_of(request.path_params["site"]) if node.trust else None
        return JSONResponse(told or {"certificates": []}, 200 if told else 404)

    return [
        _Live(f"/{links.DATABASE}/_bulk_docs", messages, methods=["POST"]),
        Route(f"/{origins.PATH}/{{site:path}}", identity, methods=["GET"]),
    ]


class _Live(Route):
    """Only for agents: other writers of this database are served as CouchDB would."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        marked = any(name == links.SITE_HEADER.lower().encode() for name, _ in scope.get("headers", ()))
        return super().matches(scope) if marked else (Match.NONE, {})
