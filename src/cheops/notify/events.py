"""An event: something that happened, as receivers and followers of the feed get it.

`id` names what happened, so it is the same however often, and by whichever site, it is told: receivers drop
what they have had already. `sequence` is its place in the journal of the site that tells.
"""

from datetime import UTC, datetime

import msgspec

from cheops.config.notify import EventKind
from cheops.log.operation import Status

MAX_TEXT_CHARACTERS = 4_000  # of a detail or an output: an event is a note, not an archive


class SiteResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of an operation at one site."""

    site: str
    status: Status
    detail: str = ""


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a field does not apply it is empty, and left out of the JSON."""

    id: str
    kind: EventKind
    time: str
    site: str  # where it happened
    resource: str = ""
    resource_type: str = ""
    operation: str = ""  # site1:3
    type: str = ""  # the operation's
    status: Status | None = None
    detail: str = ""
    output: str = ""
    sites: tuple[str, ...] = ()  # the resource's, where the list begins or changes; or those that are up or down
    results: tuple[SiteResult, ...] = ()  # of a summary
    complete: bool = True  # False: a summary without word from some sites
    sequence: int = 0
    teller: str = ""


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
