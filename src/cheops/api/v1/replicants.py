"""Replicants: which there are, where, and under which id the service of this site has them."""

import asyncio
from collections.abc import Sequence

from fastapi import APIRouter
from msgspec import structs
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import LocalId, Replicants, ReplicantView
from cheops.api.openapi import body, responses
from cheops.api.operations import RefusedError
from cheops.api.permissions import may_see, principal_of
from cheops.api.request import (
    Cursor,
    Fresh,
    Limit,
    NodeOf,
    NoSuchResourceError,
    ResourceId,
    decode_body,
    json_response,
    load_resource,
    page_of_ids,
    read_body,
    refresh_from_peers,
    sites_up,
)
from cheops.api.views.replicants import replicant_view
from cheops.api.views.status import is_known
from cheops.backends.http.backend import http_backend
from cheops.backends.http.copies import Copy
from cheops.backends.http.ids import MARK
from cheops.backends.http.locations import local_id_at
from cheops.backends.http.submission import creation_of
from cheops.config.services import service_of
from cheops.engine.replica import Replica
from cheops.node.node import Node
from cheops.security.principal import Principal

router = APIRouter(tags=["replicants"])


@router.get(
    "/replicants",
    operation_id="listReplicants",
    summary="The replicants of this site, page by page",
    responses=responses(Replicants, "A page of replicants, sorted by id.", 503),
)
async def list_replicants(
    node: NodeOf, request: Request, cursor: Cursor = "", limit: Limit = 100, fresh: Fresh = 0.5
) -> Response:
    """All meta-ids begin with the same mark, so in the order of ids they stand together."""
    ids, more = await page_of_ids(node, MARK, cursor, limit)
    who = principal_of(request)
    in_doubt = [one.id for one in await _views(node, ids, who) if one.overall == "CONVERGING"]
    # What nobody asked for in a while has left memory, and with it what the other sites said of it.
    await refresh_from_peers(node, in_doubt, fresh)
    return json_response(Replicants(replicants=await _views(node, ids, who), next=ids[-1] if more else None))


async def _views(node: Node, ids: Sequence[str], who: Principal) -> tuple[ReplicantView, ...]:
    replicas = await asyncio.gather(*map(node.pump.replica, ids))
    return tuple(
        replicant_view(node, replica, sites_up(node))
        for replica in replicas
        if is_known(replica) and service_of(replica.type.name) and may_see(who, replica)
    )


@router.get(
    "/replicants/{id}",
    operation_id="getReplicant",
    summary="One replicant",
    responses=responses(ReplicantView, "The replicant.", 400, 404, 503),
)
async def get_replicant(node: NodeOf, id_: ResourceId, fresh: Fresh = 0.5) -> Response:
    found = replicant_view(node, await _replicant(node, id_, fresh), sites_up(node))
    return json_response(structs.replace(found, local_ids=await _local_ids(node, found)))


async def _local_ids(node: Node, one: ReplicantView) -> dict[str, str | None]:
    """What each site calls it; those that are not up are not asked."""

    async def said_by(site: str) -> str | None:
        if site == node.name:
            return one.local_id
        return await local_id_at(node, site, one.id) if site in sites_up(node) else None

    return dict(zip(one.sites, await asyncio.gather(*map(said_by, one.sites)), strict=True))


@router.put(
    "/replicants/{id}/local-id",
    operation_id="setLocalId",
    summary="Say what the service of this site calls a replicant",
    description=(
        "For a create that is UNKNOWN: the operator has looked, found it in the service, and says under "
        "which id. Then the operation is resolved as happened."
    ),
    responses=responses(ReplicantView, "The replicant.", 400, 404, 409, 413, 503),
    openapi_extra=body(LocalId),
)
async def set_local_id(node: NodeOf, request: Request, id_: ResourceId) -> Response:
    asked = decode_body(await read_body(request), LocalId)
    replica = await _replicant(node, id_, 0.0)
    begun = creation_of(replica)
    if begun is None:
        raise RefusedError("the operation that created it is not known here, so nobody knows where it belongs")
    copies = http_backend(node).copies
    service = service_of(replica.type.name) or ""
    copy = Copy(id_, service, begun.item, asked.local_id, asked.is_number, begun.is_named)
    if other := copies.index.whose_place(copy):
        raise RefusedError(f"that is the copy of {other}")
    await copies.bind(copy)
    return json_response(replicant_view(node, replica, sites_up(node)))


async def _replicant(node: Node, id_: str, fresh_s: float) -> Replica:
    replica = await load_resource(node, id_, fresh_s)
    if not service_of(replica.type.name):
        raise NoSuchResourceError(f"'{id_}' is a resource of commands, not of an HTTP service")
    return replica
