"""Handlers of events: a stream of server-sent events, and the same as pages for clients that poll.

Both continue after the position that the client sends (`Last-Event-ID`, `since`), even across a restart of the agent:
they read the site's journal. A client whose position is no longer in the journal gets a `reset`, and must read the
state again.
"""

from collections.abc import AsyncIterator

from msgspec import structs
from starlette.responses import Response, StreamingResponse

from cheops.api.endpoints.declaration import EVENT_STREAM
from cheops.api.endpoints.site import (
    LIST_CHANGES,
    LIST_NOTIFICATIONS,
    LIST_RESOURCE_CHANGES,
    STREAM_EVENTS,
    STREAM_RESOURCE_EVENTS,
    ChangesParameters,
    StreamParameters,
)
from cheops.api.models import to_json
from cheops.api.models.site import Changes, Notifications
from cheops.api.notifications import notification_targets
from cheops.api.permissions import may_see_event
from cheops.api.request import ApiRequest, handles
from cheops.api.views.operations import time_text
from cheops.node.node import Node
from cheops.node.pump import wall_ms
from cheops.notify.event import Event
from cheops.notify.feed import Page, Position
from cheops.security.principal import Principal

_COMMENT_S = 15.0  # of silence before a comment shows that the connection still works


@handles(STREAM_EVENTS)
async def stream_events(request: ApiRequest[StreamParameters]) -> Response:
    return await _stream(request, None)


@handles(STREAM_RESOURCE_EVENTS)
async def stream_resource_events(request: ApiRequest[StreamParameters]) -> Response:
    return await _stream(request, request.id)


@handles(LIST_CHANGES)
async def list_changes(request: ApiRequest[ChangesParameters]) -> Changes:
    return await _changes(request, None)


@handles(LIST_RESOURCE_CHANGES)
async def list_resource_changes(request: ApiRequest[ChangesParameters]) -> Changes:
    return await _changes(request, request.id)


@handles(LIST_NOTIFICATIONS)
async def list_notifications(request: ApiRequest) -> Notifications:
    node = request.node
    await node.notifier.journalled()
    return Notifications(site=node.name, targets=notification_targets(node))


async def _changes(request: ApiRequest[ChangesParameters], resource: str | None) -> Changes:
    node, wanted = request.node, request.parameters
    await node.notifier.journalled()
    page = await node.notifier.feed.read(_position(node, wanted.since), wanted.limit, resource, wanted.wait)
    return Changes(events=tuple(_visible(node, page, request.principal)), last=str(page.last), reset=page.reset)


async def _stream(request: ApiRequest[StreamParameters], resource: str | None) -> Response:
    node, wanted = request.node, request.parameters
    await node.notifier.journalled()
    since = _position(node, wanted.last_event_id or wanted.last)
    # Proxies must neither store the stream nor hold it back.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    content = _messages(node, resource, since, request.principal)
    return StreamingResponse(content, 200, headers, media_type=EVENT_STREAM)


def _position(node: Node, text: str) -> Position:
    return Position.parse(text) if text else node.notifier.feed.end


async def _messages(node: Node, resource: str | None, since: Position, by: Principal) -> AsyncIterator[bytes]:
    yield _comment("here", since)  # at once, so that the client sees that it is connected
    async for page in node.notifier.feed.follow(since, resource, silent_s=_COMMENT_S):
        events = [_reset(node, page)] if page.reset else []
        events += _visible(node, page, by)
        yield b"".join(map(_message, events)) or _comment("still here", page.last)


def _message(event: Event) -> bytes:
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.place.encode(), event.kind.encode(), to_json(event))


def _comment(text: str, position: Position) -> bytes:
    """Not an event, but a browser stores its id, and continues from there when it connects again."""
    return f": {text}\nid: {position}\n\n".encode()


def _visible(node: Node, page: Page, by: Principal) -> list[Event]:
    """The events that a client may see, each with its position in this site's feed."""
    return [
        structs.replace(event, place=str(node.notifier.feed.at(event.sequence)), teller=node.name)
        for event in page.events
        if may_see_event(node, by, event)
    ]


def _reset(node: Node, page: Page) -> Event:
    return Event(
        place=str(page.start),
        id=f"reset:{page.start}",
        kind="reset",
        time=time_text(wall_ms()),
        site=node.name,
        detail="some events are gone: read the state again",
        teller=node.name,
    )
