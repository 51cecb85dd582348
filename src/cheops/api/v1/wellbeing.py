"""Is the agent well: checks for people, health and readiness for machines."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.checks import GROUPS, checks
from cheops.api.health import health_answer, readiness_answer
from cheops.api.models import Checks, Health
from cheops.api.openapi import Document, responses
from cheops.api.permissions import principal_of
from cheops.api.request import NodeOf, json_response

router = APIRouter(tags=["agent"])
_NOT_WELL: dict[int | str, Document] = {
    503: {"description": "It is not.", "content": responses(Health, "")[200]["content"]}
}


@router.get(
    "/check",
    operation_id="check",
    summary=f"Is all as it should be: {', '.join(GROUPS)}",
    responses=responses(Checks, "Everything that was looked at."),
)
async def check(node: NodeOf, request: Request) -> Response:
    return json_response(await checks(node, request.app.state.gateway))


@router.get(
    "/healthz",
    operation_id="health",
    summary="Does the agent work",
    responses={**responses(Health, "It does."), **_NOT_WELL},
)
async def healthz(node: NodeOf, request: Request) -> Response:
    return health_answer(node, principal_of(request))


@router.get(
    "/readyz",
    operation_id="readiness",
    summary="Does the agent take operations",
    responses={**responses(Health, "It does."), **_NOT_WELL},
)
async def readyz(node: NodeOf, request: Request) -> Response:
    return readiness_answer(node, principal_of(request))
