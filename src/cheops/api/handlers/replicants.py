"""Handlers of replicants: resources of HTTP services, and the id that each has in the service of a site."""

import asyncio
from collections.abc import Sequence

from msgspec import structs

from cheops.api.endpoints.declaration import FreshPageParameters, FreshParameters, NoParameters
from cheops.api.endpoints.resources import GET_REPLICANT, LIST_REPLICANTS, SET_LOCAL_ID
from cheops.api.handlers.resources import load_resource, page_of_ids, refresh_from_peers, sites_up
from cheops.api.models import LocalId, Replicants, ReplicantView
from cheops.api.permissions import may_see
from cheops.api.request import ApiRequest, handles
from cheops.api.views.operations import gone_from
from cheops.api.views.status import is_known, summary
from cheops.backends.http.backend import http_backend
from cheops.backends.http.copies import Copy
from cheops.backends.http.ids import MARK
from cheops.backends.http.locations import local_id_at
from cheops.backends.http.submission import creation_of
from cheops.config.services import service_of
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.node.node import Node
from cheops.security.principal import Principal


@handles(LIST_REPLICANTS)
async def list_replicants(request: ApiRequest[FreshPageParameters]) -> Replicants:
    node, wanted, by = request.node, request.parameters, request.principal
    # All meta-ids begin with the same mark, so they are neighbours in the order of ids.
    ids, more = await page_of_ids(node, MARK, wanted.cursor, wanted.limit)
    in_doubt = [one.id for one in await _views(node, ids, by) if one.overall == "CONVERGING"]
    # A resource that nobody used for a while has left memory, and with it what the other sites had reported.
    await refresh_from_peers(node, in_doubt, wanted.fresh)
    return Replicants(replicants=await _views(node, ids, by), next=ids[-1] if more else None)


async def _views(node: Node, ids: Sequence[str], by: Principal) -> tuple[ReplicantView, ...]:
    replicas = await asyncio.gather(*map(node.pump.replica, ids))
    return tuple(
        _view(node, replica)
        for replica in replicas
        if is_known(replica) and service_of(replica.type.name) and may_see(by, replica)
    )


def _view(node: Node, replica: Replica) -> ReplicantView:
    state, backend = summary(replica, sites_up(node)), http_backend(node)
    copy = backend.copies.index.copies.get(replica.resource)
    creation = creation_of(replica)
    return ReplicantView(
        id=replica.resource,
        service=service_of(state.type) or "",
        path=copy.path if copy else creation.path if creation else "",
        sites=state.sites,
        gone=gone_from(replica),
        local_id=copy.local_id if copy else None,
        overall=state.overall,
        deleted=state.deleted,
        waits=_doubt(replica) or backend.waits.get(replica.resource),
    )


def _doubt(replica: Replica) -> str | None:
    if replica.applied.unknown is None:
        return None
    return f"it is unknown whether {replica.applied.unknown.id} ran here; see 'cheops resolve {replica.resource}'"


@handles(GET_REPLICANT)
async def get_replicant(request: ApiRequest[FreshParameters]) -> ReplicantView:
    view = _view(request.node, await _load_replicant(request.node, request.id, request.parameters.fresh))
    return structs.replace(view, local_ids=await _local_ids(request.node, view))


async def _local_ids(node: Node, view: ReplicantView) -> dict[str, str | None]:
    """The local id at each site; None for a site that is not up, which gets no request."""

    async def local_id(site: str) -> str | None:
        if site == node.name:
            return view.local_id
        return await local_id_at(node, site, view.id) if site in sites_up(node) else None

    return dict(zip(view.sites, await asyncio.gather(*map(local_id, view.sites)), strict=True))


@handles(SET_LOCAL_ID)
async def set_local_id(request: ApiRequest[NoParameters, LocalId]) -> ReplicantView:
    node, id_, given = request.node, request.id, await request.body()
    replica = await _load_replicant(node, id_, 0.0)
    creation = creation_of(replica)
    if creation is None:
        raise ClientError("the operation that created it is not known here, so its path is not known", status=409)
    copies = http_backend(node).copies
    service = service_of(replica.type.name) or ""
    copy = Copy(id_, service, creation.item, given.local_id, given.is_number, creation.is_named)
    if other := copies.index.whose_place(copy):
        raise ClientError(f"that is the copy of {other}", status=409)
    await copies.bind(copy)
    return _view(node, replica)


async def _load_replicant(node: Node, id_: str, fresh_s: float) -> Replica:
    replica = await load_resource(node, id_, fresh_s)
    if not service_of(replica.type.name):
        raise ClientError(f"'{id_}' is not a resource of an HTTP service", status=404)
    return replica
