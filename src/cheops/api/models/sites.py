"""Models of sites, invitations, and the links of the demo."""

from typing import Annotated

from msgspec import Struct

from cheops.schema import doc


class Wiring(Struct, frozen=True, kw_only=True):
    """Which sites of the demo are cut off from each other."""

    on: Annotated[bool, doc("Whether this agent is in demo mode, so that sites can be cut off.", False)]
    cut: Annotated[tuple[tuple[str, ...], ...], doc("Pairs of sites that are cut off from each other.", [])]


class InviteRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site to invite to the mesh."""

    site: Annotated[str, doc("Its name.", "site4", min_length=1, max_length=128)]
    addresses: Annotated[
        tuple[str, ...],
        doc("Hosts that its certificate may name even if another site has them too.", [], max_length=32),
    ] = ()
    valid_for_s: Annotated[float, doc("How long the invitation is valid, in seconds.", 3600.0, ge=1, le=604_800)] = (
        3600.0
    )


class Invitation(Struct, frozen=True, kw_only=True):
    """An invitation, which a site can use once."""

    site: Annotated[str, doc("Its name.", "site4")]
    code: Annotated[str, doc("The code for 'cheops site join' at that site. It is a secret.", "cheops-join-lNo…")]
    expires_ms: Annotated[int, doc("When it expires, in milliseconds since 1970.", 1_794_816_000_000)]


class SiteView(Struct, frozen=True, kw_only=True):
    """A site, as this agent knows it."""

    name: Annotated[str, doc("Its name.", "site2")]
    url: Annotated[str, doc("The address of its agent.", "http://10.0.0.2:8079")]
    state: Annotated[str, doc("up, suspect, down, unknown or forgotten.", "up")]
    here: Annotated[bool, doc("Whether this is the agent's own site.", False)]
    as_of_s: Annotated[float | None, doc("How many seconds old the evidence for `state` is; null: there is none.", 0.4)]
    rtt_ms: Annotated[float | None, doc("The round-trip time, smoothed.", 12.5)]
    rtt_measured: Annotated[bool, doc("Whether it was measured from here; false: estimated or not known.", True)]
    incarnation: Annotated[
        str | None,
        doc("The incarnation of its store, which changes when the site starts with an empty disk.", "6f1c9a"),
    ]
    version: Annotated[str, doc("The version of its agent; empty if not known.", "0.1.0")]
    services: Annotated[tuple[str, ...], doc("The services it offers.", ["image"])]
    clock_offset_ms: Annotated[float | None, doc("How far its clock is ahead of this site's clock.", -3.0)]
    problems: Annotated[tuple[str, ...], doc("Problems that an operator should know about.", [])]
    resources: Annotated[int, doc("The number of resources known here that list it, or once listed it.", 12)] = 0
    pending: Annotated[
        int,
        doc("The number of operations, of resources in memory here, that it is not known to have settled.", 0),
    ] = 0


class Distance(Struct, frozen=True, kw_only=True):
    """The distance between two other sites."""

    one: Annotated[str, doc("One site.", "site2")]
    other: Annotated[str, doc("The other site.", "site3")]
    rtt_ms: Annotated[float, doc("The round-trip time, measured there or estimated.", 21.0)]


class Sites(Struct, frozen=True, kw_only=True):
    """All known sites, including this one and forgotten ones."""

    here: Annotated[str, doc("This agent's site.", "site1")]
    sites: Annotated[tuple[SiteView, ...], doc("The entries, sorted by name.")]
    problems: Annotated[tuple[str, ...], doc("Problems of the whole mesh that an operator should know about.", [])]
    distances: Annotated[
        tuple[Distance, ...],
        doc("Between other sites, as far as known; empty if there are more than 60 sites."),
    ] = ()


class Ping(Struct, frozen=True, kw_only=True):
    """The outcome of one request to a site."""

    site: Annotated[str, doc("The site.", "site2")]
    url: Annotated[str, doc("The address of the request.", "http://10.0.0.2:8079")]
    ok: Annotated[bool, doc("Whether the right site responded.", True)]
    took_ms: Annotated[float, doc("How long the response took.", 11.2)]
    answers_as: Annotated[str | None, doc("The name in the response.", "site2")]
    detail: Annotated[str, doc("What went wrong; empty: nothing.", "")]


class Forgotten(Struct, frozen=True, kw_only=True):
    """A site that was removed from the mesh."""

    site: Annotated[str, doc("The site.", "site3")]
    resources: Annotated[
        tuple[str, ...],
        doc("Resources that list it. Their status ignores it, unless it is admitted again.", []),
    ]
