"""The agent's HTTP application: everything that is answered on its one address.

The API under /api/v1 has one route for each endpoint that is declared, with its handler. Beside it are the form API,
probes and metrics for machines, CouchDB's protocol, and what a site needs that joins with an invitation.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route, Router
from starlette.types import Scope

from cheops.api import metrics
from cheops.api.direct_routes import DirectRoutes
from cheops.api.disk_usage import disk_usage
from cheops.api.endpoints import BASE, ENDPOINTS, Endpoint
from cheops.api.forms import form_routes
from cheops.api.guard import Guard, guarded
from cheops.api.handlers import agent, events, operations, repair, resources, sites
from cheops.api.handlers import gateway as gateway_handlers
from cheops.api.handlers.agent import health_response, readiness_response
from cheops.api.health import state_counts
from cheops.api.openapi import DOCUMENT_PATH, document_json
from cheops.api.peers import database_routes, enrollment_routes, sites_only_route
from cheops.api.permissions import principal_of
from cheops.api.request import EXCEPTION_HANDLERS, HANDLERS, ApiRequest, json_response, read_parameters
from cheops.gateway.server import Gateway
from cheops.node.node import Node


def application(node: Node, gateway: Gateway | None = None) -> Starlette:
    own = [*form_routes(node), database_routes(node), *enrollment_routes(node), *_probe_routes(node, gateway)]
    routes = guarded(node, [*own, sites_only_route(), api_mount(node, gateway)])
    return Starlette(
        routes=routes,
        exception_handlers=EXCEPTION_HANDLERS,
        middleware=[Middleware(Guard, node=node), Middleware(DirectRoutes, node=node, routes=routes)],
    )


def _probe_routes(node: Node, gateway: Gateway | None) -> list[BaseRoute]:
    """Under the paths that orchestrators and Prometheus use by default."""

    async def healthz(request: Request) -> Response:
        return health_response(node, principal_of(request))

    async def readyz(request: Request) -> Response:
        return readiness_response(node, principal_of(request))

    async def serve_metrics(_request: Request) -> Response:
        if gateway:
            await gateway.refresh()
        states = await state_counts(node)
        usage = await disk_usage(node, is_brief=True)
        return Response(metrics.metrics(node, states, usage, gateway), media_type=metrics.MEDIA_TYPE)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", serve_metrics)]


# -- the API ---------------------------------------------------------------------------------------------------


# All modules of handlers. They are imported here because handlers register themselves (`@handles`).
_SUBJECTS = (agent, events, gateway_handlers, operations, repair, resources, sites)


def api_mount(node: Node, gateway: Gateway | None = None) -> Mount:
    """The whole API, to be guarded by the application."""
    routes = [_route(endpoint, _handler(endpoint), node, gateway) for endpoint in ENDPOINTS]
    routes.append(_without_head(Route(DOCUMENT_PATH, _serve_document, methods=["GET"])))
    # No redirects: `/sites/` is not `/sites`, and a client that follows a redirect may drop its token or its body.
    return _RawPathMount(BASE, app=Router(routes, redirect_slashes=False))


def _handler(endpoint: Endpoint[Any, Any, Any]) -> Callable[[ApiRequest[Any, Any]], Awaitable[Any]]:
    """Raises RuntimeError for an endpoint without a handler, so that the mistake shows when the agent starts."""
    if handler := HANDLERS.get(endpoint):
        return handler
    raise RuntimeError(
        f"the endpoint {endpoint.name} ({endpoint.method} {endpoint.path}) has no handler: write one with @handles in "
        "cheops/api/handlers/, and list its module in _SUBJECTS of cheops/api/app.py"
    )


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
