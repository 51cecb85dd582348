"""An event: something that happened at a site, as the feed, the API and all receivers of notifications get it.

`id` identifies what happened. It is the same however often, and by whichever site, the event is reported, so receivers
can drop repetitions. A field that does not apply has its default, and is left out of the JSON.
"""

from datetime import UTC, datetime
from typing import Annotated

import msgspec

from cheops.log.operation import Status
from cheops.schema import doc

MAX_TEXT_CHARACTERS = 4_000  # of a detail or an output: an event is a note, not an archive


class SiteResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of an operation at one site, in a summary."""

    site: Annotated[str, doc("The site.", "site2")]
    status: Annotated[Status, doc("The outcome there.", "OK")]
    detail: Annotated[str, doc("Why it failed, or other details.", "")] = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. Fields that do not apply are left out."""

    place: Annotated[
        str, doc("The position in the feed, for `Last-Event-ID` and `since`: continue after this event.", "6f1c9a-118")
    ] = ""
    id: Annotated[
        str,
        doc("Identifies what happened; the same at every site that reports it.", "ran:reply/counter/site2/9f31c0/4"),
    ]
    # Text, not the enumeration of kinds: an older client must be able to read the events of a newer agent.
    kind: Annotated[str, doc("What happened: a kind of docs/notifications.md, or `reset`.", "ran")]
    time: Annotated[str, doc("When the reporting agent saw it.", "2026-11-16T01:41:31.885Z")]
    site: Annotated[str, doc("Where it happened.", "site2")]
    resource: Annotated[str, doc("The resource.", "counter")] = ""
    resource_type: Annotated[str, doc("The type of the resource.", "counter")] = ""
    operation: Annotated[str, doc("The operation.", "site1:3")] = ""
    type: Annotated[str, doc("The type of the operation.", "inc")] = ""
    status: Annotated[Status | None, doc("The outcome of the operation.", "OK")] = None
    detail: Annotated[str, doc("Other details.", "")] = ""
    output: Annotated[str, doc("What the command printed.", "13")] = ""
    sites: Annotated[
        tuple[str, ...], doc("The new list of sites of a resource; or the sites that are up or down.", [])
    ] = ()
    results: Annotated[tuple[SiteResult, ...], doc("Of a summary: the outcome at each site.", [])] = ()
    complete: Annotated[bool, doc("false: a summary without the outcome of some sites.", True)] = True
    sequence: Annotated[int, doc("Its number in the journal of the reporting site.", 118)] = 0
    teller: Annotated[str, doc("The site that reports it.", "site1")] = ""


def shown_time(at_ms: int) -> str:
    """`2026-11-16T01:41:31.885Z`."""
    return datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def cut(text: str) -> str:
    """A text from outside, as much of it as goes into an event."""
    more = len(text) - MAX_TEXT_CHARACTERS
    return text if more <= 0 else f"{text[:MAX_TEXT_CHARACTERS]}[cheops: {more} more characters]"


def encoded(event: Event) -> bytes:
    return msgspec.json.encode(event)


_decoder = msgspec.json.Decoder(Event)


def decoded(body: bytes) -> Event:
    return _decoder.decode(body)
