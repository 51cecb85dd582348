"""The agent's HTTP application: everything that is answered on its one address."""

import asyncio

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cheops.api import metrics
from cheops.api.enrollment import enrollment_routes
from cheops.api.forms import form_routes
from cheops.api.guard import Guard, guarded
from cheops.api.health import health_answer, readiness_answer
from cheops.api.peers import peer_routes
from cheops.api.permissions import BASE, principal_of
from cheops.api.problems import on_any_error, on_cheops_error
from cheops.errors import CheopsError
from cheops.gateway.server import Gateway
from cheops.node.node import Node


def application(node: Node, gateway: Gateway | None = None) -> Starlette:
    own = [*form_routes(node), *peer_routes(node), *enrollment_routes(node), *_probe_routes(node, gateway)]
    later = _Later(node, gateway)
    app = Starlette(
        routes=[*guarded(node, own), _AsSent(BASE, later)],  # the API guards its own
        exception_handlers={CheopsError: on_cheops_error, Exception: on_any_error},
        middleware=[Middleware(Guard, node=node)],
    )
    app.state.prepare = later.made  # for those who know that they will ask
    return app


def _probe_routes(node: Node, gateway: Gateway | None) -> list[BaseRoute]:
    """What machines ask for under names that they know."""

    async def healthz(request: Request) -> Response:
        return health_answer(node, principal_of(request))

    async def readyz(request: Request) -> Response:
        return readiness_answer(node, principal_of(request))

    async def numbers(_request: Request) -> Response:
        if gateway:
            await gateway.refresh()
        return Response(metrics.metrics(node, gateway), media_type=metrics.MEDIA_TYPE)

    return [Route("/healthz", healthz), Route("/readyz", readyz), Route("/metrics", numbers)]


class _AsSent(Mount):
    """Leaves the path below it as it was sent: an encoded slash or line break in an id stays part of it."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = scope.get("raw_path", b"").partition(b"?")[0].decode("latin-1") or scope["path"]
        match, below = super().matches({**scope, "path": sent})
        return match, {**below, "path": sent} if match is not Match.NONE else below


class _Later:
    """The API, made when it is first asked for: to import FastAPI takes as long as all the rest of a start,
    and other sites should not wait for that."""

    def __init__(self, node: Node, gateway: Gateway | None) -> None:
        self._node = node
        self._gateway = gateway
        self._api: ASGIApp | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        api = self._api or await self.made()
        await api(scope, receive, send)

    async def made(self) -> ASGIApp:
        async with self._making:
            if self._api is None:
                self._api = await asyncio.to_thread(self._make)
            return self._api

    def _make(self) -> ASGIApp:
        from cheops.api.router import fastapi_app  # noqa: PLC0415 - see above

        return fastapi_app(self._node, self._gateway)
