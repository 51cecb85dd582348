"""Handlers of the agent itself: checks for people, health and readiness for machines."""

from starlette.responses import Response

from cheops import __version__
from cheops.api.checks import checks
from cheops.api.endpoints.site import CHECK, HEALTH, READINESS
from cheops.api.models import Checks, Health
from cheops.api.request import ApiRequest, handles, json_response
from cheops.node.node import Node
from cheops.security.principal import Kind, Principal


@handles(CHECK)
async def check(request: ApiRequest) -> Checks:
    return await checks(request.node, request.gateway)


@handles(HEALTH)
async def health(request: ApiRequest) -> Response:
    return health_response(request.node, request.principal)


@handles(READINESS)
async def readiness(request: ApiRequest) -> Response:
    return readiness_response(request.node, request.principal)


def health_response(node: Node, by: Principal) -> Response:
    """Whether the agent works: any response shows that its event loop runs."""
    return _response(node, "", by)


def readiness_response(node: Node, by: Principal) -> Response:
    """Whether the agent accepts operations: not while nothing can be saved."""
    return _response(node, node.pump.trouble or "", by)


def _response(node: Node, trouble: str, by: Principal) -> Response:
    # A client without credentials learns yes or no, but not which site or version this is.
    if by.kind is Kind.NOBODY:
        body = Health(ok=not trouble, site="", version="", detail="")
    else:
        body = Health(ok=not trouble, site=node.name, version=__version__, detail=trouble)
    return json_response(body, 503 if trouble else 200)
