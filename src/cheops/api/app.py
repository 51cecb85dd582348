"""The agent's HTTP application: everything that is answered on its one address."""

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cheops.api import metrics
from cheops.api.enrollment import enrollment_routes
from cheops.api.forms import form_routes
from cheops.api.guard import Guard, guarded
from cheops.api.handlers.agent import health_response, readiness_response
from cheops.api.peers import database_routes
from cheops.api.permissions import principal_of
from cheops.api.router import EXCEPTION_HANDLERS, api_mount
from cheops.gateway.server import Gateway
from cheops.node.node import Node


def application(node: Node, gateway: Gateway | None = None) -> Starlette:
    own = [*form_routes(node), database_routes(node), *enrollment_routes(node), *_probe_routes(node, gateway)]
    return Starlette(
        routes=guarded(node, [*own, api_mount(node, gateway)]),
        exception_handlers=EXCEPTION_HANDLERS,
        middleware=[Middleware(Guard, node=node)],
    )


def _probe_routes(node: Node, gateway: Gateway | None) -> list[BaseRoute]:
    """What machines ask for under names that they know."""

    async def healthz(request: Request) -> Response:
        return health_response(node, principal_of(request))

    async def readyz(request: Request) -> Response:
        return readiness_response(node, principal_of(request))

    async def numbers(_request: Request) -> Response:
        if gateway:
            await gateway.refresh()
        return Response(metrics.metrics(node, gateway), media_type=metrics.MEDIA_TYPE)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", numbers)]
