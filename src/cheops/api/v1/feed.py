"""What happens, as it happens: a stream of server-sent events, and the same for those who would rather ask.

Both go on after the event that they are told (`Last-Event-ID`, `since`). The agent remembers a limited
number: who comes too late, or after a restart of the agent, gets a `reset`, and looks at the state anew.
"""

from collections.abc import AsyncIterator
from typing import Annotated

from fastapi import APIRouter, Header, Query
from starlette.responses import Response, StreamingResponse

from cheops.api.models import Changes, Event, to_json
from cheops.api.v1.asking import NodeOf, ResourceId, answered
from cheops.api.v1.documenting import Document, answer, example_of, problems
from cheops.api.views.naming import time_text
from cheops.node.events import Events, Happened
from cheops.node.node import Node
from cheops.node.pump import wall_ms

router = APIRouter(tags=["events"])
STREAM = "text/event-stream"
_SIGN_OF_LIFE_S = 15.0
_BATCH = 500
_MOST_WAIT_S = 300.0
_STREAMED: dict[int | str, Document] = {
    200: {
        "description": "Events, each with its id. A comment now and then shows that the agent is there.",
        "content": {STREAM: {"schema": {"type": "string"}, "example": f"data: {example_of(Event)}"}},
    },
    **problems(),
}
LastId = Annotated[str, Header(alias="Last-Event-ID", description="Go on after this event.", max_length=100)]
LastQuery = Annotated[
    str, Query(alias="last", description="The same, for those who cannot send headers.", max_length=100)
]
Since = Annotated[str, Query(description="After this event; empty: from now on.", max_length=100)]
WaitFor = Annotated[
    float, Query(ge=0, le=_MOST_WAIT_S, description="How many seconds to wait, where there is nothing yet.")
]
Most = Annotated[int, Query(ge=1, le=10_000, description="How many at most.")]


@router.get(
    "/events",
    operation_id="streamEvents",
    summary="What happens at this agent, as it happens",
    responses=_STREAMED,
)
async def stream_events(node: NodeOf, last_event_id: LastId = "", last: LastQuery = "") -> Response:
    return _stream(node, None, last_event_id or last)


@router.get(
    "/resources/{id}/events",
    operation_id="streamResourceEvents",
    summary="What happens to a resource, as it happens",
    responses={**_STREAMED, **problems(400)},
)
async def stream_resource_events(
    node: NodeOf, id_: ResourceId, last_event_id: LastId = "", last: LastQuery = ""
) -> Response:
    return _stream(node, id_, last_event_id or last)


@router.get(
    "/changes",
    operation_id="listChanges",
    summary="What happened at this agent after an event",
    responses=answer(Changes, "Events, and from where to go on."),
)
async def list_changes(node: NodeOf, since: Since = "", wait: WaitFor = 0.0, limit: Most = 1000) -> Response:
    return answered(await _changes(node.events, None, since, wait, limit))


@router.get(
    "/resources/{id}/changes",
    operation_id="listResourceChanges",
    summary="What happened to a resource after an event",
    responses=answer(Changes, "Events, and from where to go on.", 400),
)
async def list_resource_changes(
    node: NodeOf, id_: ResourceId, since: Since = "", wait: WaitFor = 0.0, limit: Most = 1000
) -> Response:
    return answered(await _changes(node.events, id_, since, wait, limit))


def event_view(events: Events, event: Happened) -> Event:
    return Event(
        id=events.name(event.n),
        what=event.what,
        at=time_text(event.at_ms),
        resource=event.resource,
        operation=str(event.op) if event.op else None,
        site=event.site,
        status=str(event.status) if event.status else None,
        detail=event.detail,
    )


def _stream(node: Node, resource: str | None, last: str) -> Response:
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(_events(node.events, resource, last), 200, headers, media_type=STREAM)


async def _events(events: Events, resource: str | None, last: str) -> AsyncIterator[bytes]:
    place = events.place(last) if last else events.last
    if place is None:
        place = events.last
        yield _reset(events, place)
    else:
        yield b": here\n\n"  # so that the client sees at once that it is connected
    while not events.is_closed:
        read = events.after(place, resource, _BATCH)
        if read.lost:
            yield _reset(events, place)
        for event in read.events:
            yield _sent(event_view(events, event))
        place = read.last
        if not await events.more(place, _SIGN_OF_LIFE_S) and not events.is_closed:
            yield b": still here\n\n"


def _sent(event: Event) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.id.encode(), event.what.encode(), to_json(event))


def _reset(events: Events, place: int) -> bytes:
    text = "some events are gone: look at the state anew"
    return _sent(event_view(events, Happened(place, wall_ms(), "reset", detail=text)))


async def _changes(events: Events, resource: str | None, since: str, wait_s: float, limit: int) -> Changes:
    place = events.place(since) if since else events.last
    reset = place is None
    if place is None:
        place = events.last
    read = events.after(place, resource, limit)
    if not read.events and not reset and await events.more(read.last, wait_s):
        read = events.after(read.last, resource, limit)
    found = tuple(event_view(events, event) for event in read.events)
    return Changes(events=found, last=events.name(read.last), reset=reset or read.lost)
