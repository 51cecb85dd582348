"""Models of sites, invitations, and the links of the demo."""

from typing import Annotated

from msgspec import Struct

from cheops.schema import doc


class Wiring(Struct, frozen=True, kw_only=True):
    """Which sites of the demo are cut from each other."""

    on: Annotated[bool, doc("Whether this agent is in demo mode, and sites can be cut off.", False)]
    cut: Annotated[tuple[tuple[str, ...], ...], doc("Pairs of sites without a way to each other.", [])]


class InviteRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site that is to become part of the mesh."""

    site: Annotated[str, doc("Its name.", "site4", min_length=1, max_length=128)]
    addresses: Annotated[
        tuple[str, ...],
        doc("Hosts that its certificate may be for although another site has them too.", [], max_length=32),
    ] = ()
    valid_for_s: Annotated[
        float, doc("How long the invitation holds, in seconds; an hour.", 3600.0, ge=1, le=604_800)
    ] = 3600.0


class Invitation(Struct, frozen=True, kw_only=True):
    """A site that may join, once."""

    site: Annotated[str, doc("Its name.", "site4")]
    code: Annotated[str, doc("For 'cheops site join' at that site. A secret.", "cheops-join-lNo…")]
    expires_ms: Annotated[int, doc("Until when, in milliseconds since 1970.", 1_794_816_000_000)]


class SiteView(Struct, frozen=True, kw_only=True):
    """One site, as the agent that was asked knows it."""

    name: Annotated[str, doc("Its name.", "site2")]
    url: Annotated[str, doc("Where its agent is.", "http://10.0.0.2:8079")]
    state: Annotated[str, doc("up, suspect, down, unknown or forgotten.", "up")]
    here: Annotated[bool, doc("Whether this is the agent that answers.", False)]
    as_of_s: Annotated[float | None, doc("How old the evidence for `state` is; null: none.", 0.4)]
    rtt_ms: Annotated[float | None, doc("The round-trip time, smoothed.", 12.5)]
    rtt_measured: Annotated[bool, doc("Measured from here; false: estimated or not known.", True)]
    incarnation: Annotated[str | None, doc("Of its store: another one means an empty disk.", "6f1c9a")]
    version: Annotated[str, doc("The version of its agent; empty if not known.", "0.1.0")]
    services: Annotated[tuple[str, ...], doc("The services it offers.", ["image"])]
    clock_offset_ms: Annotated[float | None, doc("How far its clock is ahead of ours.", -3.0)]
    problems: Annotated[tuple[str, ...], doc("What an operator should know of it.", [])]
    resources: Annotated[int, doc("Of how many resources that are known here it is, or was, on the list.", 12)] = 0
    pending: Annotated[
        int,
        doc("Operations of resources at work here that it is not known to have dealt with.", 0),
    ] = 0


class Distance(Struct, frozen=True, kw_only=True):
    """How far two other sites are from each other."""

    one: Annotated[str, doc("The one.", "site2")]
    other: Annotated[str, doc("The other.", "site3")]
    rtt_ms: Annotated[float, doc("The round-trip time, measured there or estimated.", 21.0)]


class Sites(Struct, frozen=True, kw_only=True):
    """All sites that are known, this one and forgotten ones included."""

    here: Annotated[str, doc("The site that answers.", "site1")]
    sites: Annotated[tuple[SiteView, ...], doc("Sorted by name.")]
    problems: Annotated[tuple[str, ...], doc("What an operator should know of the whole.", [])]
    distances: Annotated[
        tuple[Distance, ...],
        doc("Between others, as far as known; none where there are more than 60."),
    ] = ()


class Ping(Struct, frozen=True, kw_only=True):
    """How one question to a site went."""

    site: Annotated[str, doc("Whom.", "site2")]
    url: Annotated[str, doc("Where it was asked.", "http://10.0.0.2:8079")]
    ok: Annotated[bool, doc("Whether it answered, and as the site that was meant.", True)]
    took_ms: Annotated[float, doc("How long that took.", 11.2)]
    answers_as: Annotated[str | None, doc("The name it answered with.", "site2")]
    detail: Annotated[str, doc("What went wrong, if something did.", "")]


class Forgotten(Struct, frozen=True, kw_only=True):
    """A site that was removed from the mesh."""

    site: Annotated[str, doc("Which.", "site3")]
    resources: Annotated[
        tuple[str, ...],
        doc("Resources that have it on their list. They count without it, unless it is admitted again.", []),
    ]
