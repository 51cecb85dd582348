"""Is the agent well: checks for people, health and readiness for machines."""

from fastapi import APIRouter
from starlette.responses import Response

from cheops.api.checks import checks
from cheops.api.health import health_answer, readiness_answer
from cheops.api.models import Checks, Health
from cheops.api.v1.asking import NodeOf, answered
from cheops.api.v1.documenting import Document, answer

router = APIRouter(tags=["agent"])
_NOT_WELL: dict[int | str, Document] = {
    503: {"description": "It is not.", "content": answer(Health, "")[200]["content"]}
}


@router.get(
    "/check",
    operation_id="check",
    summary="Is all as it should be: configuration, store, clocks, peers, services, backends, versions",
    responses=answer(Checks, "Everything that was looked at."),
)
async def check(node: NodeOf) -> Response:
    return answered(await checks(node))


@router.get(
    "/healthz",
    operation_id="health",
    summary="Does the agent work",
    responses={**answer(Health, "It does."), **_NOT_WELL},
)
async def healthz(node: NodeOf) -> Response:
    return health_answer(node)


@router.get(
    "/readyz",
    operation_id="readiness",
    summary="Does the agent take operations",
    responses={**answer(Health, "It does."), **_NOT_WELL},
)
async def readyz(node: NodeOf) -> Response:
    return readiness_answer(node)
