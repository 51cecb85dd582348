"""Operations: made, looked at, tried out, and resolved where Cheops cannot know."""

from typing import Annotated

from fastapi import APIRouter, Query
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import (
    Accepted,
    ChangeSites,
    DryRun,
    Operations,
    OperationView,
    Resolved,
    ResolveRequest,
    SiteAnswer,
    SitesChange,
    SubmitRequest,
)
from cheops.api.openapi import body, form_of, lines_of, responses
from cheops.api.operations import OperationRequest
from cheops.api.permissions import principal_of
from cheops.api.request import (
    Cursor,
    Limit,
    NodeOf,
    OperationName,
    Patience,
    ResourceId,
    Waiting,
    decode_body,
    json_response,
    load_resource,
    read_body,
)
from cheops.api.submission import deletion_line, resolve_operation, sites_change, submit, submit_request, try_out
from cheops.api.views.log import operations_page
from cheops.api.views.operations import find, operation_view
from cheops.log.operation import Kind

router = APIRouter(tags=["operations"])
_LATER = {"description": "It is durable here, but fewer sites than were waited for have answered."}


def _carried_out(description: str, *codes: int) -> dict[int | str, dict[str, object]]:
    found = responses(Accepted, description, 400, 403, 409, 502, 503, 507, *codes)
    later = {202: {**_LATER, "content": {"application/json": found[200]["content"]["application/json"]}}}
    return {**found, **later}


@router.post(
    "/resources/{id}/operations",
    operation_id="submitOperation",
    summary="Have an operation carried out at all sites of a resource",
    description=(
        "The first site runs it before any other hears of it; if it fails there, it is void. With files: a "
        "form. With `Accept: application/x-ndjson` each site's answer comes as a line of its own."
    ),
    responses={
        **_carried_out("As many sites as were waited for have answered.", 413),
        200: responses(Accepted, "As many sites as were waited for have answered.", **lines_of(SiteAnswer))[200],
    },
    openapi_extra=body(SubmitRequest, **form_of(SubmitRequest)),
)
async def submit_operation(
    node: NodeOf, request: Request, id_: ResourceId, wait: Waiting, timeout: Patience
) -> Response:
    return await submit_request(node, request, id_, wait, timeout)


@router.delete(
    "/resources/{id}",
    operation_id="deleteResource",
    summary="Delete a resource at all its sites",
    description=(
        "An operation that beats all others. It runs `command`, or the `reset` of the resource's type, which "
        "each site must have too, in the same words; for a replicant a DELETE of it."
    ),
    responses=_carried_out("As many sites as were waited for have answered.", 404),
)
async def delete_resource(  # noqa: PLR0913, PLR0917 - one parameter per parameter
    node: NodeOf,
    request: Request,
    id_: ResourceId,
    wait: Waiting,
    timeout: Patience,
    command: Annotated[str, Query(max_length=65_536, description="What deletes it.")] = "",
) -> Response:
    replica = await load_resource(node, id_)
    line = deletion_line(node, replica, command)
    wanted = OperationRequest(id_, "delete", line, kind=Kind.DELETE, by=principal_of(request))
    return await submit(node, request, wanted, wait, timeout)


@router.get(
    "/resources/{id}/operations",
    operation_id="listOperations",
    summary="The operations of a resource, page by page, from the oldest on",
    responses=responses(Operations, "A page of operations.", 400, 404, 503),
)
async def list_operations(node: NodeOf, id_: ResourceId, cursor: Cursor = "", limit: Limit = 100) -> Response:
    return json_response(operations_page(await load_resource(node, id_), cursor, limit))


@router.get(
    "/resources/{id}/operations/{op}",
    operation_id="getOperation",
    summary="One operation, with what became of it at every site",
    responses=responses(OperationView, "The operation.", 400, 404, 503),
)
async def get_operation(node: NodeOf, id_: ResourceId, op: OperationName) -> Response:
    replica = await load_resource(node, id_)
    return json_response(operation_view(replica, find(replica, op)))


@router.post(
    "/resources/{id}/dry-run",
    operation_id="dryRun",
    summary="What an operation would do, without running anything",
    description=(
        "Also of what is not submitted so: with the kind `delete` the command may be left out, as where a "
        "resource is deleted; with `sites` it is another list of sites, and `sites` is that list."
    ),
    responses=responses(DryRun, "What would happen, as far as this site knows.", 400, 403, 404, 413, 503),
    openapi_extra=body(SubmitRequest),
)
async def dry_run(node: NodeOf, request: Request, id_: ResourceId) -> Response:
    asked = decode_body(await read_body(request), SubmitRequest)
    return json_response(await try_out(node, id_, asked, principal_of(request)))


@router.post(
    "/resources/{id}/resolve",
    operation_id="resolve",
    summary="The operator's word on what Cheops cannot know",
    description=(
        "`happened` and `not-happened` settle an operation that is UNKNOWN at a site (asked for there, or "
        "forwarded). `force` makes a new base out of a command, which ends any divergence."
    ),
    responses=responses(Resolved, "What was done.", 400, 403, 404, 409, 413, 502, 503, 507),
    openapi_extra=body(ResolveRequest),
)
async def resolve(node: NodeOf, request: Request, id_: ResourceId, timeout: Patience) -> Response:
    asked = decode_body(await read_body(request), ResolveRequest)
    return json_response(await resolve_operation(node, request, id_, asked, timeout))


# -- where a resource is ---------------------------------------------------------------------------------


@router.put(
    "/resources/{id}/sites",
    operation_id="setSites",
    summary="Set the list of sites of a resource",
    responses=_carried_out("The list is changed; new sites catch up by themselves.", 404, 413),
    openapi_extra=body(ChangeSites),
)
async def set_sites(node: NodeOf, request: Request, id_: ResourceId, wait: Waiting, timeout: Patience) -> Response:
    asked = structs.replace(decode_body(await read_body(request), ChangeSites), how=SitesChange.SET)
    wanted = await sites_change(node, id_, asked, principal_of(request))
    return await submit(node, request, wanted, wait, timeout)


@router.post(
    "/resources/{id}/sites",
    operation_id="changeSites",
    summary="Set the list of sites of a resource, add to it, or remove from it",
    responses=_carried_out("The list is changed; new sites catch up by themselves.", 404, 413),
    openapi_extra=body(ChangeSites),
)
async def change_sites(node: NodeOf, request: Request, id_: ResourceId, wait: Waiting, timeout: Patience) -> Response:
    asked = decode_body(await read_body(request), ChangeSites)
    wanted = await sites_change(node, id_, asked, principal_of(request))
    return await submit(node, request, wanted, wait, timeout)
