"""What happens: the events of docs/notifications.md, in the same form, each with its place in the feed."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says
from cheops.log.operation import Status


class SiteResult(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of an operation at one site, in a summary."""

    site: Annotated[str, says("Which.", "site2")]
    status: Annotated[Status, says("How it went there.", "OK")]
    detail: Annotated[str, says("Why it failed, or what else is to be said.", "")] = ""


class Event(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that happened. What does not apply is left out."""

    place: Annotated[str, says("For `Last-Event-ID` and `since`: go on after this event.", "6f1c9a-118")]
    id: Annotated[
        str, says("Names what happened; the same wherever it is told.", "ran:reply/counter/site2/9f31c0/4")
    ]
    # Not an enumeration: an older client is to read what a newer agent tells.
    kind: Annotated[str, says("What happened, as docs/notifications.md names it; or `reset`.", "ran")]
    time: Annotated[str, says("When the agent that tells saw it.", "2026-11-16T01:41:31.885Z")]
    site: Annotated[str, says("Where it happened.", "site2")]
    resource: Annotated[str, says("To which resource.", "counter")] = ""
    resource_type: Annotated[str, says("The type of that resource.", "counter")] = ""
    operation: Annotated[str, says("Which operation.", "site1:3")] = ""
    type: Annotated[str, says("The type of that operation.", "inc")] = ""
    status: Annotated[Status | None, says("What became of it.", "OK")] = None
    detail: Annotated[str, says("What else is to be said.", "")] = ""
    output: Annotated[str, says("What the command printed.", "13")] = ""
    sites: Annotated[
        tuple[str, ...], says("Of a resource, where the list changes; or those that are up or down.", [])
    ] = ()
    results: Annotated[tuple[SiteResult, ...], says("Of a summary: the outcome at each site.", [])] = ()
    complete: Annotated[bool, says("false: a summary without word from some sites.", True)] = True
    sequence: Annotated[int, says("Its number in the journal of the site that tells.", 118)] = 0
    teller: Annotated[str, says("The site that tells.", "site1")] = ""


class Changes(Struct, frozen=True, kw_only=True):
    """What happened after a place in the feed, and from where to go on."""

    events: Annotated[tuple[Event, ...], says("In their order.")]
    last: Annotated[str, says("`since` of the next question.", "6f1c9a-118")]
    reset: Annotated[bool, says("Some that were asked for are gone: look at the state anew.", False)]
