"""Handlers of HTTP services: replicants, served requests, the flows of the data plane, and what a scope means."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import structs

from cheops.api.endpoints.declaration import FreshPageParameters, FreshParameters, NoParameters, PageParameters
from cheops.api.endpoints.resources import (
    EXPLAIN_SCOPE,
    GET_REPLICANT,
    LIST_FLOWS,
    LIST_REPLICANTS,
    LIST_REQUESTS,
    SET_LOCAL_ID,
    RequestFilter,
    ScopeParameters,
)
from cheops.api.handlers.resources import load_resource, page_of_ids, refresh_from_peers, sites_up
from cheops.api.models.resources import (
    Flows,
    FlowView,
    LocalId,
    Replicants,
    ReplicantView,
    Requests,
    ScopeExplanation,
    ScopeMistake,
    ScopeService,
)
from cheops.api.permissions import may_see
from cheops.api.request import ApiRequest, handles
from cheops.api.submission import RequestError
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
from cheops.gateway.haproxy.flows import Flow
from cheops.gateway.haproxy.layout import scope_of_key
from cheops.gateway.server import Gateway
from cheops.node.node import Node
from cheops.plugins import scope_functions
from cheops.scope import parse
from cheops.scope.errors import ScopeError
from cheops.scope.explanation import explain, explanation_data
from cheops.scope.names import name_problem, normal
from cheops.scope.snapshot import Snapshot
from cheops.security.principal import Principal


def _number(cursor: str, digits: int) -> int | None:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= digits):
        raise RequestError("'cursor' must be the `next` of the previous page, which is a number")
    return int(cursor) if cursor else None


# -- requests ---------------------------------------------------------------------------------------------------


@handles(LIST_REQUESTS)
async def list_requests(request: ApiRequest[RequestFilter]) -> Requests:
    wanted, gateway = request.parameters, request.gateway
    before = _number(wanted.cursor, 18)
    if gateway is None:
        return Requests(requests=(), next=None)
    await gateway.refresh()
    latest = gateway.request_log.latest(wanted.limit + 1, before, wanted.service)
    more = str(latest[wanted.limit - 1].number) if len(latest) > wanted.limit else None
    return Requests(requests=tuple(latest[: wanted.limit]), next=more)


# -- flows ------------------------------------------------------------------------------------------------------


@handles(LIST_FLOWS)
async def list_flows(request: ApiRequest[PageParameters]) -> Flows:
    gateway, limit = request.gateway, request.parameters.limit
    start = _number(request.parameters.cursor, 9) or 0
    if gateway is None or gateway.plane is None:
        return _without_flows(gateway)
    plane = gateway.plane
    await plane.refresh()
    everything = list(plane.table.items())[::-1]
    page = everything[start : start + limit]
    return Flows(
        plane="haproxy",
        ok=not plane.trouble,
        trouble=plane.trouble,
        total=len(everything),
        carried=plane.carrier_cache.count if plane.carrier_cache is not None else 0,
        fast=plane.counters.by_haproxy,
        slow=plane.counters.by_agent,
        reloads=plane.reloads,
        restarts=plane.restarts,
        flows=tuple(_flow_view(gateway.here, *key, flow) for key, flow in page),
        next=str(start + limit) if start + limit < len(everything) else None,
    )


def _without_flows(gateway: Gateway | None) -> Flows:
    return Flows(
        plane="builtin" if gateway else "none",
        ok=True,
        trouble="",
        total=0,
        carried=0,
        fast=0,
        slow=0,
        reloads=0,
        restarts=0,
        flows=(),
        next=None,
    )


def _flow_view(here: str, service: str, key: str, flow: Flow) -> FlowView:
    scope = scope_of_key(key).encode("latin-1").decode("utf-8", "replace")
    return FlowView(service=service, scope=scope, route=flow.target.kind.value, site=flow.target.site or here)


# -- scopes -----------------------------------------------------------------------------------------------------


@handles(EXPLAIN_SCOPE)
async def explain_scope(request: ApiRequest[ScopeParameters]) -> ScopeExplanation:
    node, wanted = request.node, request.parameters
    # In a thread: a long scope takes a while to parse.
    return await asyncio.to_thread(scope_explanation, wanted.text, wanted.service, node.name, node.snapshot())


def scope_explanation(text: str, service: str, here: str, snapshot: Snapshot) -> ScopeExplanation:
    canonical: str | None = None
    try:
        if service and (problem := name_problem(normal(service))):
            raise ScopeError(f"the service: {problem}")  # noqa: TRY301 - reported like all the others
        functions = scope_functions()
        scope = parse(text, functions)
        canonical = str(scope)
        data = explanation_data(explain(scope, snapshot, normal(service) or None, functions))
    except ScopeError as error:
        return ScopeExplanation(canonical=canonical, here=here, services=(), mistake=_mistake(error, text))
    services = msgspec.convert(data["services"], tuple[ScopeService, ...])
    return ScopeExplanation(canonical=canonical, here=here, services=services, mistake=None)


def _mistake(error: ScopeError, text: str) -> ScopeMistake:
    place = error.place
    return ScopeMistake(
        problem=error.problem,
        hint=error.hint or "",
        text=place.text if place else text,
        start=place.start if place else None,
        end=place.end if place else None,
    )


# -- replicants ------------------------------------------------------------------------------------------------


@handles(LIST_REPLICANTS)
async def list_replicants(request: ApiRequest[FreshPageParameters]) -> Replicants:
    node, wanted, by = request.node, request.parameters, request.principal
    # All meta-ids begin with the same mark, so they are neighbours in the order of ids.
    ids, more = await page_of_ids(node, MARK, wanted.cursor, wanted.limit)
    in_doubt = [one.id for one in await _views(node, ids, by) if one.overall == "CONVERGING"]
    # A resource that was not used for a while has left memory, and with it the reports of the other sites.
    await refresh_from_peers(node, in_doubt, wanted.fresh)
    return Replicants(replicants=await _views(node, ids, by), next=ids[-1] if more else None)


async def _views(node: Node, ids: Sequence[str], by: Principal) -> tuple[ReplicantView, ...]:
    replicas = await node.pump.readable(ids)
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
        void=state.void,
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
    node, id_, local = request.node, request.id, await request.body()
    replica = await _load_replicant(node, id_, 0.0)
    creation = creation_of(replica)
    if creation is None:
        raise ClientError("the operation that created it is not known here, so its path is not known", status=409)
    copies = http_backend(node).copies
    service = service_of(replica.type.name) or ""
    copy = Copy(id_, service, creation.item, local.local_id, local.is_number, creation.is_named, client=creation.client)
    if other := copies.index.whose_place(copy):
        raise ClientError(f"that is the copy of {other}", status=409)
    await copies.bind(copy)
    return _view(node, replica)


async def _load_replicant(node: Node, id_: str, fresh_s: float) -> Replica:
    replica = await load_resource(node, id_, fresh_s)
    if not service_of(replica.type.name):
        raise ClientError(f"'{id_}' is not a resource of an HTTP service", status=404)
    return replica
