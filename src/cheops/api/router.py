"""The API under /api/v1 as one ASGI application."""

from fastapi import APIRouter, Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from cheops import __version__
from cheops.api.guard import permit
from cheops.api.openapi import documented
from cheops.api.permissions import BASE
from cheops.api.problems import on_any_error, on_cheops_error, problem
from cheops.api.v1 import (
    audit,
    demo,
    feed,
    flows,
    invitations,
    operations,
    replicants,
    requests,
    resources,
    scopes,
    session,
    sites,
    tokens,
    wellbeing,
)
from cheops.errors import CheopsError
from cheops.gateway.request_log import RequestLog
from cheops.gateway.server import Gateway
from cheops.node.node import Node
from cheops.text import printable, shortened

_TAGS = [
    {"name": "resources", "description": "What the application manages, at several sites."},
    {"name": "operations", "description": "What changes resources."},
    {"name": "replicants", "description": "Resources of HTTP services, at several sites."},
    {"name": "requests", "description": "What the gateway did for clients."},
    {"name": "scopes", "description": "Where requests would be executed."},
    {"name": "sites", "description": "Where the application and its agents are."},
    {"name": "events", "description": "What happens, as it happens."},
    {"name": "access", "description": "Who may ask, and who did what."},
    {"name": "agent", "description": "Whether the agent itself is well."},
    {"name": "demo", "description": "In demo mode: cutting sites off, and joining them again."},
]


def fastapi_app(node: Node | None, gateway: Gateway | None = None) -> FastAPI:
    """Without a node only its document is of use."""
    app = FastAPI(
        title="Cheops",
        version=__version__,
        openapi_url=None,  # ours needs a right, as everything does
        dependencies=[Depends(_permitted)],
        docs_url=None,  # they load scripts from elsewhere; an agent may have no way out
        redoc_url=None,
        openapi_tags=_TAGS,
        default_response_class=Response,
        redirect_slashes=False,
    )
    for router in routers():
        app.include_router(router)
    app.state.node = node
    app.state.gateway = gateway
    app.state.record = gateway.record if gateway else RequestLog()
    app.openapi = documented(app)  # type: ignore[method-assign]  # as FastAPI's documentation has it
    app.add_exception_handler(CheopsError, on_cheops_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, on_any_error)
    return app


def routers() -> tuple[APIRouter, ...]:
    """All that is answered under /api/v1."""
    parts = (
        *(resources, operations, replicants, requests, flows, scopes, sites, invitations),
        *(feed, tokens, session, audit, wellbeing, demo),
    )
    return (*(part.router for part in parts), _document)


_document = APIRouter()


@_document.get("/openapi.json", include_in_schema=False)
async def _openapi(request: Request) -> Response:
    return JSONResponse(request.app.openapi())


async def _permitted(request: Request) -> None:
    """Runs before anything else of a route, whichever it is."""
    await permit(request.app.state.node, request, f"{BASE}{request.scope['route'].path}")


async def _on_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101 - it is registered for these
    said = "; ".join(_complaint(one) for one in error.errors()[:5])
    return problem(422, said, fault="client", definite=True)


def _complaint(one: dict[str, object]) -> str:
    place = one.get("loc", ())
    where = ".".join(map(str, place)) if isinstance(place, tuple | list) else str(place)
    return f"{printable(shortened(where))}: {one.get('msg')}"


async def _on_http(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 - it is registered for these
    found = problem(error.status_code, str(error.detail), fault="client", definite=True)
    found.headers.update(error.headers or {})
    return found


async def _on_disconnect(_request: Request, _error: Exception) -> Response:
    return Response(status_code=400)  # nobody reads it
