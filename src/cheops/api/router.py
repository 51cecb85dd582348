"""The routes under /api/v1: one for each endpoint that is declared, with its handler."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Mount, Route, Router
from starlette.types import Scope

from cheops.api.endpoints import BASE, ENDPOINTS, Endpoint
from cheops.api.handlers import access, agent, events, operations, replicants, resources, sites
from cheops.api.handlers import gateway as gateway_handlers
from cheops.api.openapi import DOCUMENT_PATH, document_json
from cheops.api.problems import on_any_error, on_cheops_error, problem
from cheops.api.request import HANDLERS, ApiRequest, json_response, read_parameters
from cheops.errors import CheopsError
from cheops.gateway.server import Gateway
from cheops.node.node import Node

# Imported for their handlers, which register themselves.
_SUBJECTS = (access, agent, events, gateway_handlers, operations, replicants, resources, sites)


def api_mount(node: Node, gateway: Gateway | None = None) -> Mount:
    """The whole API, to be guarded by the application."""
    routes = [_route(endpoint, HANDLERS[endpoint], node, gateway) for endpoint in ENDPOINTS]
    routes.append(_without_head(Route(DOCUMENT_PATH, _serve_document, methods=["GET"])))
    # No redirects: `/sites/` is not `/sites`, and a client that follows a redirect may drop its token or its body.
    return _RawPathMount(BASE, app=Router(routes, redirect_slashes=False))


def _route(
    endpoint: Endpoint[Any, Any, Any],
    handler: Callable[[ApiRequest[Any, Any]], Awaitable[Any]],
    node: Node,
    gateway: Gateway | None,
) -> Route:
    async def respond(http: Request) -> Response:
        parameters = read_parameters(endpoint.parameters, http)
        result = await handler(ApiRequest(node, gateway, http, endpoint, parameters))
        return result if isinstance(result, Response) else json_response(result)

    return _without_head(Route(endpoint.path, respond, methods=[endpoint.method]))


def _without_head(route: Route) -> Route:
    """Starlette adds HEAD to every GET. Here it would run the whole handler, and a stream of events never ends."""
    if route.methods:
        route.methods.discard("HEAD")
    return route


async def _serve_document(_http: Request) -> Response:
    return Response(document_json(), media_type="application/json")


class _RawPathMount(Mount):
    """Matches the path as it was sent: an encoded slash or line break in an id stays part of the id."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1") or scope["path"]
        match, below = super().matches({**scope, "path": sent})
        return match, {**below, "path": sent} if match is not Match.NONE else below


# -- errors -----------------------------------------------------------------------------------------------------


async def _on_http_error(_http: Request, error: Exception) -> Response:
    """Starlette's own: no such route, or no such method."""
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    response = problem(error.status_code, str(error.detail), fault="client", definite=True)
    response.headers.update(error.headers or {})
    return response


async def _on_disconnect(_http: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # the client has gone and does not read it


EXCEPTION_HANDLERS: dict[Any, Callable[[Request, Exception], Awaitable[Response]]] = {
    CheopsError: on_cheops_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_disconnect,
    Exception: on_any_error,
}
