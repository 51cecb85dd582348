"""Handlers of the gateway: served requests, the flows of the data plane, and what a scope means."""

import asyncio

import msgspec

from cheops.api.endpoints.declaration import PageParameters
from cheops.api.endpoints.resources import EXPLAIN_SCOPE, LIST_FLOWS, LIST_REQUESTS, RequestFilter, ScopeParameters
from cheops.api.models import Flows, FlowView, Requests, ScopeExplanation, ScopeMistake, ScopeService
from cheops.api.request import ApiRequest, handles
from cheops.api.submission import RequestError
from cheops.gateway.haproxy.flows import Flow
from cheops.gateway.haproxy.layout import scope_of_key
from cheops.gateway.server import Gateway
from cheops.plugins import scope_functions
from cheops.scope import parse
from cheops.scope.errors import ScopeError
from cheops.scope.explanation import explain, explanation_data
from cheops.scope.names import name_problem, normal
from cheops.scope.snapshot import Snapshot


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
