"""Resources: which there are, whether all is well with them, and why."""

from collections.abc import Sequence
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.forms import check_showing
from cheops.api.models import (
    Explanation,
    LogView,
    MatrixView,
    ResourceDetail,
    Resources,
    ResourceStatus,
    ResourceSummary,
    Verification,
)
from cheops.api.reach import check_type, principal_of, sees
from cheops.api.v1.asking import (
    Cursor,
    Fresh,
    Limit,
    NodeOf,
    ResourceId,
    TypeName,
    answered,
    ask_the_others,
    page_of_ids,
    resource_at,
    up,
)
from cheops.api.v1.documenting import answer
from cheops.api.v1.verifying import verification
from cheops.api.views.explain import explanation
from cheops.api.views.log import log_view
from cheops.api.views.matrix import matrix_in_force, matrix_view
from cheops.api.views.operations import sites_of
from cheops.api.views.status import detail, resource_status, summary
from cheops.api.views.whereabouts import is_here
from cheops.node.node import Node
from cheops.node.pump import wall_ms
from cheops.security.principal import Principal

router = APIRouter(tags=["resources"])


@router.get(
    "/resources",
    operation_id="listResources",
    summary="The resources of this site, page by page",
    responses=answer(Resources, "A page of resources, sorted by id.", 503),
)
async def list_resources(  # noqa: PLR0913, PLR0917 - one parameter per parameter
    node: NodeOf,
    request: Request,
    prefix: Annotated[str, Query(max_length=256, description="Only ids that begin so.")] = "",
    cursor: Cursor = "",
    limit: Limit = 100,
    fresh: Fresh = 0.5,
) -> Response:
    ids, more = await page_of_ids(node, prefix, cursor, limit)
    who = principal_of(request)
    in_doubt = [one.id for one in await _summaries(node, ids, who) if one.overall == "CONVERGING"]
    # What nobody asked for in a while has left memory, and with it what the other sites said of it.
    await ask_the_others(node, in_doubt, fresh)
    return answered(Resources(resources=await _summaries(node, ids, who), next=ids[-1] if more else None))


async def _summaries(node: Node, ids: Sequence[str], who: Principal) -> tuple[ResourceSummary, ...]:
    replicas = [await node.pump.replica(id_) for id_ in ids]
    seen = [replica for replica in replicas if is_here(replica) and sees(who, replica)]
    return tuple(summary(replica, up(node)) for replica in seen)


@router.get(
    "/resources/{id}",
    operation_id="getResource",
    summary="A resource, with everything but its operations",
    responses=answer(ResourceDetail, "The resource.", 400, 404, 503),
)
async def get_resource(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return answered(detail(await resource_at(node, id_, fresh), up(node), wall_ms()))


@router.get(
    "/resources/{id}/status",
    operation_id="getStatus",
    summary="Is all well with a resource, at all its sites",
    responses=answer(ResourceStatus, "The verdict, and what is known of each site.", 400, 404, 503),
)
async def get_status(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return answered(resource_status(await resource_at(node, id_, fresh), up(node), wall_ms()))


@router.get(
    "/resources/{id}/explain",
    operation_id="explainResource",
    summary="Why the state of a resource is what it is",
    responses=answer(Explanation, "Step by step, and what it comes to.", 400, 404, 503),
)
async def explain(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return answered(explanation(await resource_at(node, id_, fresh), up(node), wall_ms()))


@router.get(
    "/resources/{id}/log",
    operation_id="getLog",
    summary="All operations that are known, which of them count, and what each site has",
    responses=answer(LogView, "The log.", 400, 404, 503),
)
async def get_log(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return answered(log_view(await resource_at(node, id_, fresh)))


@router.get(
    "/resources/{id}/matrix",
    operation_id="getMatrix",
    summary="The matrix in force for a resource",
    responses=answer(MatrixView, "The matrix, and what follows from it.", 400, 404, 503),
)
async def get_matrix(node: NodeOf, id_: ResourceId) -> Response:
    return answered(matrix_in_force(await resource_at(node, id_)))


@router.get(
    "/types/{name}/matrix",
    operation_id="getTypeMatrix",
    summary="The matrix of a resource type in this site's configuration",
    responses=answer(MatrixView, "The matrix, and what follows from it.", 400),
)
async def get_type_matrix(node: NodeOf, request: Request, name: TypeName) -> Response:
    check_type(principal_of(request), name)
    return answered(matrix_view(node.config.type_named(name).matrix))


@router.post(
    "/resources/{id}/verify",
    operation_id="verifyResource",
    summary="The real state of the application at every site, compared",
    responses=answer(Verification, "What each site's application says.", 400, 403, 404, 503),
)
async def verify(
    node: NodeOf,
    request: Request,
    id_: ResourceId,
    command: Annotated[
        str, Query(max_length=65_536, description="What shows the state, instead of the type's `read`.")
    ] = "",
) -> Response:
    replica = await resource_at(node, id_)
    check_showing(node, principal_of(request), replica, command, sites_of(replica))
    return answered(await verification(node, replica, command))
