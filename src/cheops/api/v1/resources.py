"""Resources: which there are, whether all is well with them, and why."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.forms import check_showing
from cheops.api.models import (
    Explanation,
    Lanes,
    LogView,
    MatrixView,
    Overall,
    ResourceDetail,
    Resources,
    ResourceStatus,
    Types,
    Verification,
)
from cheops.api.openapi import responses
from cheops.api.permissions import check_type, principal_of
from cheops.api.request import (
    Cursor,
    Fresh,
    Limit,
    NodeOf,
    ResourceId,
    TypeName,
    json_response,
    load_resource,
    sites_up,
)
from cheops.api.v1.finding import Wish, found
from cheops.api.v1.verifying import verification
from cheops.api.views.explanation import explanation
from cheops.api.views.log import lanes, log_view
from cheops.api.views.matrix import matrix_in_force, matrix_view
from cheops.api.views.operations import sites_of
from cheops.api.views.status import detail, resource_status
from cheops.api.views.types import types_view
from cheops.log.operation import Status
from cheops.node.pump import wall_ms

router = APIRouter(tags=["resources"])


@router.get(
    "/resources",
    operation_id="listResources",
    summary="The resources of this site, page by page",
    description=(
        "With `type`, `overall` or `outcome` a page looks at 1,000 resources at most: it may hold fewer than "
        "`limit`, or none, and still have a `next`."
    ),
    responses=responses(Resources, "A page of resources, sorted by id.", 503),
)
async def list_resources(  # noqa: PLR0913, PLR0917 - one parameter per parameter
    node: NodeOf,
    request: Request,
    prefix: Annotated[str, Query(max_length=256, description="Only ids that begin so.")] = "",
    search: Annotated[str, Query(max_length=256, description="Only ids that hold this, in capitals or not.")] = "",
    site: Annotated[str, Query(max_length=256, description="Only what is, or was, at this site too.")] = "",
    type_: Annotated[str, Query(alias="type", max_length=256, description="Only this type.")] = "",
    overall: Annotated[Overall | None, Query(description="Only what is so.")] = None,
    outcome: Annotated[Status | None, Query(description="Only where this became of the newest operation.")] = None,
    cursor: Cursor = "",
    limit: Limit = 100,
    fresh: Fresh = 0.5,
) -> Response:
    wish = Wish(prefix, search, site, type_, overall, outcome)
    return json_response(await found(node, wish, cursor, limit, fresh, principal_of(request)))


@router.get(
    "/resources/{id}",
    operation_id="getResource",
    summary="A resource, with everything but its operations",
    responses=responses(ResourceDetail, "The resource.", 400, 404, 503),
)
async def get_resource(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return json_response(detail(await load_resource(node, id_, fresh), sites_up(node), wall_ms()))


@router.get(
    "/resources/{id}/status",
    operation_id="getStatus",
    summary="Is all well with a resource, at all its sites",
    responses=responses(ResourceStatus, "The verdict, and what is known of each site.", 400, 404, 503),
)
async def get_status(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return json_response(resource_status(await load_resource(node, id_, fresh), sites_up(node), wall_ms()))


@router.get(
    "/resources/{id}/explain",
    operation_id="explainResource",
    summary="Why the state of a resource is what it is",
    responses=responses(Explanation, "Step by step, and what it comes to.", 400, 404, 503),
)
async def explain(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return json_response(explanation(await load_resource(node, id_, fresh), sites_up(node), wall_ms()))


@router.get(
    "/resources/{id}/log",
    operation_id="getLog",
    summary="All operations that are known, which of them count, and what each site has",
    responses=responses(LogView, "The log.", 400, 404, 503),
)
async def get_log(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return json_response(log_view(await load_resource(node, id_, fresh)))


@router.get(
    "/resources/{id}/lanes",
    operation_id="getLanes",
    summary="The operations as a graph, with what each site has of each; short, for pages that draw it",
    responses=responses(Lanes, "Operations, and a lane for each site.", 400, 404, 503),
)
async def get_lanes(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    return json_response(lanes(await load_resource(node, id_, fresh), sites_up(node), wall_ms()))


@router.get(
    "/resources/{id}/matrix",
    operation_id="getMatrix",
    summary="The matrix in force for a resource",
    responses=responses(MatrixView, "The matrix, and what follows from it.", 400, 404, 503),
)
async def get_matrix(node: NodeOf, id_: ResourceId) -> Response:
    return json_response(matrix_in_force(await load_resource(node, id_)))


@router.get(
    "/types",
    operation_id="listTypes",
    summary="The resource types of this site's configuration",
    responses=responses(Types, "The types."),
)
async def list_types(node: NodeOf, request: Request) -> Response:
    return json_response(types_view(node.config.types.values(), principal_of(request)))


@router.get(
    "/types/{name}/matrix",
    operation_id="getTypeMatrix",
    summary="The matrix of a resource type in this site's configuration",
    responses=responses(MatrixView, "The matrix, and what follows from it.", 400),
)
async def get_type_matrix(node: NodeOf, request: Request, name: TypeName) -> Response:
    check_type(principal_of(request), name)
    return json_response(matrix_view(node.config.type_named(name).matrix))


@router.post(
    "/resources/{id}/verify",
    operation_id="verifyResource",
    summary="The real state of the application at every site, compared",
    responses=responses(Verification, "What each site's application says.", 400, 403, 404, 503),
)
async def verify(
    node: NodeOf,
    request: Request,
    id_: ResourceId,
    command: Annotated[
        str, Query(max_length=65_536, description="What shows the state, instead of the type's `read`.")
    ] = "",
) -> Response:
    replica = await load_resource(node, id_)
    check_showing(node, principal_of(request), replica, command, sites_of(replica))
    return json_response(await verification(node, replica, command))
