"""What the gateway of this site did for clients: the latest requests that had a scope."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from cheops.api.models import Requests, RequestView
from cheops.api.openapi import responses
from cheops.api.operations import RequestError
from cheops.api.request import Cursor, Limit, json_response
from cheops.api.views.operations import time_text
from cheops.gateway.request_log import RequestLog, ServedRequest
from cheops.gateway.server import Gateway

router = APIRouter(tags=["requests"])


def _record(request: Request) -> RequestLog:
    record: RequestLog = request.app.state.record
    return record


def _gateway(request: Request) -> Gateway | None:
    gateway: Gateway | None = request.app.state.gateway
    return gateway


Service = Annotated[str, Query(max_length=200, description="Only those for this service; empty: for all.")]


@router.get(
    "/requests",
    operation_id="listRequests",
    summary="The latest requests with a scope, page by page",
    description="The gateway remembers the last 1,000, in memory alone: none from before the agent's start.",
    responses=responses(Requests, "A page of requests, the latest first.", 400),
)
async def list_requests(
    record: Annotated[RequestLog, Depends(_record)],
    gateway: Annotated[Gateway | None, Depends(_gateway)],
    service: Service = "",
    cursor: Cursor = "",
    limit: Limit = 100,
) -> Response:
    if cursor and not (cursor.isascii() and cursor.isdigit() and len(cursor) <= 18):
        raise RequestError("'cursor' is `next` of the page before, a number")
    before = int(cursor) if cursor else None
    if gateway:
        await gateway.refresh()
    found = record.latest(limit + 1, before, service)
    more = str(found[limit - 1].number) if len(found) > limit else None
    return json_response(Requests(requests=tuple(map(_view, found[:limit])), next=more))


def _view(one: ServedRequest) -> RequestView:
    return RequestView(
        number=one.number,
        at=time_text(one.at_ms),
        service=one.service,
        method=one.method,
        path=one.path,
        scope=one.scope,
        route=one.route,
        site=one.site,
        status=one.status or None,
        took_ms=round(one.took_ms, 3),
        fallback=one.fallback,
        recovered=one.recovered,
    )
