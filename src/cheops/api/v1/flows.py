"""Who forwards requests to services, and which scopes it knows by heart."""

from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import Flows, FlowView
from cheops.api.openapi import responses
from cheops.api.operations import RequestError
from cheops.api.request import Cursor, Limit, json_response
from cheops.gateway.haproxy.flows import Flow
from cheops.gateway.haproxy.identifiers import scope_of_key
from cheops.gateway.server import Gateway

router = APIRouter(tags=["requests"])


def _gateway(request: Request) -> Gateway | None:
    gateway: Gateway | None = request.app.state.gateway
    return gateway


@router.get(
    "/flows",
    operation_id="listFlows",
    summary="The data plane, and the scopes that it knows by heart, page by page",
    description="A scope that the agent has resolved is a flow until something could alter its route.",
    responses=responses(Flows, "The data plane, and a page of its flows.", 400),
)
async def list_flows(
    gateway: Annotated[Gateway | None, Depends(_gateway)], cursor: Cursor = "", limit: Limit = 100
) -> Response:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 9):
        raise RequestError("'cursor' is `next` of the page before, a number")
    if gateway is None or gateway.fast is None:
        return json_response(_without_flows(gateway))
    fast, start = gateway.fast, int(cursor or 0)
    await fast.refresh()
    everything = list(fast.table.items())[::-1]
    page = everything[start : start + limit]
    return json_response(
        Flows(
            plane="haproxy",
            ok=not fast.trouble,
            trouble=fast.trouble,
            total=len(everything),
            carried=fast.carrying.count if fast.carrying is not None else 0,
            fast=fast.counting.fast,
            slow=fast.counting.slow,
            reloads=fast.reloads,
            restarts=fast.restarts,
            flows=tuple(_view(gateway.here, *key, flow) for key, flow in page),
            next=str(start + limit) if start + limit < len(everything) else None,
        )
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


def _view(here: str, service: str, key: str, flow: Flow) -> FlowView:
    scope = scope_of_key(key).encode("latin-1").decode("utf-8", "replace")
    return FlowView(service=service, scope=scope, route=flow.target.kind.value, site=flow.target.site or here)
