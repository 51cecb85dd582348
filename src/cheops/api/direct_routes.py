"""Middleware before the router: answers the requests that submit operations, which are most of all requests.

They have the routes of the application itself, with the same rights and the same error responses. What is saved are
the layers around them: Starlette searches its routes one by one, catches exceptions twice, and passes each message of
a response through a function of each layer. Whatever is not one of these requests goes on to the router.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from cheops.api.endpoints import BASE
from cheops.api.endpoints.resources import SUBMIT_OPERATION
from cheops.api.guard import permit
from cheops.api.request import EXCEPTION_HANDLERS
from cheops.errors import CheopsError
from cheops.node.node import Node

_DIRECT = ("/exec/{id:path}", f"{BASE}{SUBMIT_OPERATION.path}")
_HANDLED = (CheopsError, HTTPException, ClientDisconnect)  # others are a fault of the agent


@dataclass(frozen=True, slots=True)
class _DirectRoute:
    """A route, with the mounts that it is below."""

    template: str
    mounts: tuple[Mount, ...]
    route: Route

    def found(self, scope: Scope) -> Scope | None:
        """What the router would add to the scope of a request; None if the request is not for this route."""
        below: Scope = {}
        for one in (*self.mounts, self.route):
            match, more = one.matches({**scope, **below} if below else scope)
            if match is not Match.FULL:
                return None
            below.update(more)
        return below


def _direct_routes(routes: Iterable[BaseRoute], mounts: tuple[Mount, ...] = ()) -> Iterator[_DirectRoute]:
    prefix = "".join(mount.path for mount in mounts)
    for route in routes:
        if isinstance(route, Mount):
            yield from _direct_routes(route.routes or (), (*mounts, route))
        elif isinstance(route, Route) and f"{prefix}{route.path}" in _DIRECT and "POST" in (route.methods or ()):
            yield _DirectRoute(f"{prefix}{route.path}", mounts, route)


class DirectRoutes:
    """`routes` are those of the router."""

    def __init__(self, app: ASGIApp, node: Node, routes: Iterable[BaseRoute]) -> None:
        self._app = app
        self._node = node
        self._routes = tuple(_direct_routes(routes))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            for one in self._routes:
                if (found := one.found(scope)) is not None:
                    scope.update(found)
                    await self._serve(one, scope, receive, send)
                    return
        await self._app(scope, receive, send)

    async def _serve(self, one: _DirectRoute, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        respond: Callable[[Request], Awaitable[Response]] = one.route.endpoint
        try:
            await permit(self._node, request, one.template)
            response = await respond(request)
        except _HANDLED as error:
            kind = next(kind for kind in type(error).__mro__ if kind in EXCEPTION_HANDLERS)
            response = await EXCEPTION_HANDLERS[kind](request, error)
        await response(scope, receive, send)
