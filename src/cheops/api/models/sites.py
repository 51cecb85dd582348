"""Sites as an agent sees them."""

from typing import Annotated

from msgspec import Struct

from cheops.api.models.says import says


class SiteView(Struct, frozen=True, kw_only=True):
    """One site, as the agent that was asked knows it."""

    name: Annotated[str, says("Its name.", "site2")]
    url: Annotated[str, says("Where its agent is.", "http://10.0.0.2:8079")]
    state: Annotated[str, says("up, suspect, down, unknown or forgotten.", "up")]
    here: Annotated[bool, says("Whether this is the agent that answers.", False)]
    as_of_s: Annotated[float | None, says("How old the evidence for `state` is; null: none.", 0.4)]
    rtt_ms: Annotated[float | None, says("The round-trip time, smoothed.", 12.5)]
    rtt_measured: Annotated[bool, says("Measured from here; false: estimated or not known.", True)]
    incarnation: Annotated[str | None, says("Of its store: another one means an empty disk.", "6f1c9a")]
    version: Annotated[str, says("The version of its agent; empty if not known.", "0.1.0")]
    services: Annotated[tuple[str, ...], says("The services it offers.", ["image"])]
    clock_offset_ms: Annotated[float | None, says("How far its clock is ahead of ours.", -3.0)]
    problems: Annotated[tuple[str, ...], says("What an operator should know of it.", [])]
    resources: Annotated[
        int, says("Of how many resources that are known here it is, or was, on the list.", 12)
    ] = 0
    pending: Annotated[
        int,
        says("Operations of resources at work here that it is not known to have dealt with.", 0),
    ] = 0


class Distance(Struct, frozen=True, kw_only=True):
    """How far two other sites are from each other."""

    one: Annotated[str, says("The one.", "site2")]
    other: Annotated[str, says("The other.", "site3")]
    rtt_ms: Annotated[float, says("The round-trip time, measured there or estimated.", 21.0)]


class Sites(Struct, frozen=True, kw_only=True):
    """All sites that are known, this one and forgotten ones included."""

    here: Annotated[str, says("The site that answers.", "site1")]
    sites: Annotated[tuple[SiteView, ...], says("Sorted by name.")]
    problems: Annotated[tuple[str, ...], says("What an operator should know of the whole.", [])]
    distances: Annotated[
        tuple[Distance, ...],
        says("Between others, as far as known; none where there are more than 60."),
    ] = ()


class Ping(Struct, frozen=True, kw_only=True):
    """How one question to a site went."""

    site: Annotated[str, says("Whom.", "site2")]
    url: Annotated[str, says("Where it was asked.", "http://10.0.0.2:8079")]
    ok: Annotated[bool, says("Whether it answered, and as the site that was meant.", True)]
    took_ms: Annotated[float, says("How long that took.", 11.2)]
    answers_as: Annotated[str | None, says("The name it answered with.", "site2")]
    detail: Annotated[str, says("What went wrong, if something did.", "")]


class Forgotten(Struct, frozen=True, kw_only=True):
    """A site that was removed from the mesh."""

    site: Annotated[str, says("Which.", "site3")]
    resources: Annotated[
        tuple[str, ...],
        says("Resources that have it on their list. They count without it, unless it is admitted again.", []),
    ]
