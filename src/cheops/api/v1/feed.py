"""What happens, as it happens: a stream of server-sent events, and the same for those who would rather ask.

Both go on after the place that they are told (`Last-Event-ID`, `since`), also over a restart of the agent:
they read the site's journal. Who comes too late for it gets a `reset`, and looks at the state anew.
"""

from collections.abc import AsyncIterator
from typing import Annotated

import msgspec
from fastapi import APIRouter, Header, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cheops.api.models import Changes, Event, SiteResult, to_json
from cheops.api.openapi import Document, example_of, problems, responses
from cheops.api.permissions import may_see_event, principal_of
from cheops.api.request import NodeOf, ResourceId, json_response
from cheops.api.views.operations import time_text
from cheops.node.node import Node
from cheops.node.pump import wall_ms
from cheops.notify import events as journalled
from cheops.notify.feed import MAX_PAGE, Page, Position
from cheops.security.principal import Principal

router = APIRouter(tags=["events"])
STREAM = "text/event-stream"
_SIGN_OF_LIFE_S = 15.0
_MOST_WAIT_S = 300.0
_STREAMED: dict[int | str, Document] = {
    200: {
        "description": "Events, each with its place. Now and then a comment shows that the agent is there.",
        "content": {STREAM: {"schema": {"type": "string"}, "example": f"data: {example_of(Event)}"}},
    },
    **problems(400),
}
LastId = Annotated[str, Header(alias="Last-Event-ID", description="Go on after this place.", max_length=100)]
LastQuery = Annotated[
    str, Query(alias="last", description="The same, for those who cannot send headers.", max_length=100)
]
Since = Annotated[str, Query(description="After this place; empty: from now on.", max_length=100)]
WaitFor = Annotated[
    float, Query(ge=0, le=_MOST_WAIT_S, description="How many seconds to wait, where there is nothing yet.")
]
Most = Annotated[int, Query(ge=1, le=MAX_PAGE, description="How many at most.")]


@router.get(
    "/events",
    operation_id="streamEvents",
    summary="What happens at this agent, as it happens",
    responses=_STREAMED,
)
async def stream_events(node: NodeOf, request: Request, last_event_id: LastId = "", last: LastQuery = "") -> Response:
    return _stream(node, None, last_event_id or last, principal_of(request))


@router.get(
    "/resources/{id}/events",
    operation_id="streamResourceEvents",
    summary="What happens to a resource, as it happens",
    responses=_STREAMED,
)
async def stream_resource_events(
    node: NodeOf, request: Request, id_: ResourceId, last_event_id: LastId = "", last: LastQuery = ""
) -> Response:
    return _stream(node, id_, last_event_id or last, principal_of(request))


@router.get(
    "/changes",
    operation_id="listChanges",
    summary="What happened at this agent after a place",
    responses=responses(Changes, "Events, and from where to go on.", 400),
)
async def list_changes(
    node: NodeOf, request: Request, since: Since = "", wait: WaitFor = 0.0, limit: Most = MAX_PAGE
) -> Response:
    return await _changes(node, None, since, wait, limit, principal_of(request))


@router.get(
    "/resources/{id}/changes",
    operation_id="listResourceChanges",
    summary="What happened to a resource after a place",
    responses=responses(Changes, "Events, and from where to go on.", 400),
)
async def list_resource_changes(  # noqa: PLR0913, PLR0917 - one parameter per parameter
    node: NodeOf,
    request: Request,
    id_: ResourceId,
    since: Since = "",
    wait: WaitFor = 0.0,
    limit: Most = MAX_PAGE,
) -> Response:
    return await _changes(node, id_, since, wait, limit, principal_of(request))


def _asked(node: Node, place: str) -> Position:
    return Position.parse(place) if place else node.notifier.feed.end


async def _changes(  # noqa: PLR0913, PLR0917 - what was asked, and by whom
    node: Node, resource: str | None, since: str, wait_s: float, limit: int, who: Principal
) -> Response:
    page = await node.notifier.feed.read(_asked(node, since), limit, resource, wait_s)
    events = tuple(event_view(node, event) for event in page.events if may_see_event(node, who, event))
    return json_response(Changes(events=events, last=str(page.last), reset=page.reset))


def _stream(node: Node, resource: str | None, last: str, who: Principal) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_sent(node, resource, _asked(node, last), who), 200, headers, media_type=STREAM)


async def _sent(node: Node, resource: str | None, since: Position, who: Principal) -> AsyncIterator[bytes]:
    yield _comment("here", since)  # at once, so that the client sees that it is connected
    async for page in node.notifier.feed.follow(since, resource, silent_s=_SIGN_OF_LIFE_S):
        found = [_reset(node, page)] if page.reset else []
        found += [event_view(node, event) for event in page.events if may_see_event(node, who, event)]
        yield b"".join(map(_message, found)) or _comment("still here", page.last)


def _message(event: Event) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.place.encode(), event.kind.encode(), to_json(event))


def _comment(text: str, place: Position) -> bytes:
    """No event. A browser takes the place all the same, and asks from there when it connects again."""
    return f": {text}\nid: {place}\n\n".encode()


def event_view(node: Node, event: journalled.Event) -> Event:
    told = msgspec.structs.asdict(event)
    told["results"] = tuple(SiteResult(**msgspec.structs.asdict(result)) for result in event.results)
    return Event(**told | {"place": str(node.notifier.feed.at(event.sequence)), "teller": node.name})


def _reset(node: Node, page: Page) -> Event:
    return Event(
        place=str(page.start),
        id=f"reset:{page.start}",
        kind="reset",
        time=time_text(wall_ms()),
        site=node.name,
        detail="some events are gone: look at the state anew",
        teller=node.name,
    )
