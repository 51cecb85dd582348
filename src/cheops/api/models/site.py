"""Models of a site: the mesh, access, audit, health, checks, problems and events."""

from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from cheops.notify.event import Event
from cheops.schema import doc
from cheops.security.audit import AuditEntry
from cheops.security.principal import Role


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
    again: Annotated[
        bool, doc("For a site of the mesh that needs new keys: ends its current certificate, at all sites.", False)
    ] = False
    valid_for_s: Annotated[float, doc("How long the invitation is valid, in seconds.", 3600.0, ge=1, le=604_800)] = (
        3600.0
    )


class Invitation(Struct, frozen=True, kw_only=True):
    """An invitation, which a site can use once."""

    site: Annotated[str, doc("Its name.", "site4")]
    code: Annotated[
        str, doc("The code for 'cheops site join' or 'rejoin' at that site. It is a secret.", "cheops-join-lNo…")
    ]
    expires_ms: Annotated[int, doc("When it expires, in milliseconds since 1970.", 1_794_816_000_000)]
    ends_certificates: Annotated[
        bool,
        doc("Whether the site was invited before: every certificate that an earlier code gave is refused now.", True),
    ] = False


class SiteView(Struct, frozen=True, kw_only=True):
    """A site, as this agent knows it."""

    name: Annotated[str, doc("Its name.", "site2")]
    url: Annotated[str, doc("The address of its agent.", "http://10.0.0.2:8079")]
    state: Annotated[str, doc("up, suspect, down, unknown or forgotten.", "up")]
    here: Annotated[bool, doc("Whether this is the agent's own site.", False)]
    as_of_s: Annotated[float | None, doc("How many seconds ago the site was last heard of; null: never.", 0.4)]
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
    decided_ms: Annotated[
        int | None,
        doc("The stamp of the last decision to forget or to admit it, in milliseconds since 1970; null: none.", None),
    ] = None
    resources: Annotated[int, doc("The number of resources known here that list it, or once listed it.", 12)] = 0
    pending: Annotated[
        int | None,
        doc(
            "The number of operations, of resources in memory here, that it had not settled when it last reported; "
            "null: not known of all of them.",
            0,
        ),
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


class SignedDecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decision to forget a site or to admit it again, signed with the authority's key."""

    forgotten: Annotated[bool, doc("Whether the site is forgotten; false: it is admitted again.", True)]
    stamp_ms: Annotated[
        int, doc("When, in milliseconds since 1970. The latest decision counts.", 1_794_816_000_000, ge=0)
    ]
    authority: Annotated[
        str, doc("The beginning of the SHA-256 of the authority's certificate.", "6f1c9a…", max_length=32)
    ]
    signature: Annotated[bytes, doc("The authority's signature, in base64.", "MEUCIQ==", max_length=128)]


class Decided(Struct, frozen=True, kw_only=True):
    """A decision about a site, and what the other sites have answered so far."""

    site: Annotated[str, doc("The site.", "site3")]
    forgotten: Annotated[bool, doc("Whether it is forgotten; false: it is admitted again.", True)]
    resources: Annotated[
        tuple[str, ...],
        doc("Resources that list it. Their status ignores it while it is forgotten.", []),
    ]
    confirmed: Annotated[tuple[str, ...], doc("Other sites that have taken the decision.", ["site1"])]
    waiting: Annotated[
        tuple[str, ...], doc("Sites that are up and have not confirmed it yet: they get it within seconds.", [])
    ]
    unreachable: Annotated[
        tuple[str, ...],
        doc("Sites that cannot be reached. They do not know of it, and get it when they are back.", ["site2"]),
    ]


# -- access -------------------------------------------------------------------------------------------------------


_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Names = Annotated[tuple[_Name, ...], Meta(min_length=1, max_length=100)]


class TokenView(Struct, frozen=True, kw_only=True):
    """A token, without its secret."""

    id: Annotated[str, doc("Its id, which never changes.", "6f1c9a02")]
    name: Annotated[str, doc("Its name: who or what uses it.", "ci")]
    role: Annotated[Role, doc("viewer, operator or admin.", "operator")]
    types: Annotated[tuple[str, ...] | None, doc("The types it is limited to; null: not limited.", ["counter"])]
    services: Annotated[tuple[str, ...] | None, doc("The services it is limited to; null: not limited.", None)]
    sites: Annotated[tuple[str, ...] | None, doc("The sites it is limited to; null: not limited.", None)]
    made_at: Annotated[str, doc("When it was created.", "2026-11-16T01:41:31.885Z")]
    made_by: Annotated[str, doc("Who created it.", "local:uid 0")]
    ends_at: Annotated[str | None, doc("When it expires; null: never.", "2027-02-14T01:41:31.885Z")]
    good: Annotated[bool, doc("Whether it is valid now.", True)]


class TokenList(Struct, frozen=True, kw_only=True):
    """The tokens of this site."""

    tokens: Annotated[tuple[TokenView, ...], doc("The tokens, the oldest first.")]


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create. `types` and `services` are one list: a resource must match one of them. With `sites`, it can
    change only resources that are at no other site."""

    name: Annotated[
        str, doc("Its name: who or what uses it. No two tokens have the same name.", "ci", min_length=1, max_length=100)
    ]
    role: Annotated[Role, doc("viewer reads, operator changes resources, admin does everything.", "operator")]
    types: Annotated[_Names | None, doc("Only resources of these types.", ["counter"])] = None
    services: Annotated[_Names | None, doc("Only resources of these services.", ["image"])] = None
    sites: Annotated[_Names | None, doc("Only resources at these sites.", ["site1"])] = None
    lasts_s: Annotated[
        Annotated[float, Meta(gt=0, le=3.2e9)] | None,
        doc("How long it is valid, in seconds; null: without end.", 7776000.0),
    ] = 90 * 86_400.0


class MadeToken(Struct, frozen=True, kw_only=True):
    """A new token. No other response has its secret."""

    token: Annotated[TokenView, doc("The token.")]
    secret: Annotated[str, doc("The secret, to be sent as `Authorization: Bearer …`.", "cheops_mJ8…")]


class SignIn(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The credentials of a browser."""

    token: Annotated[str, doc("A token of this site.", "cheops_mJ8…", max_length=200)]


class Session(Struct, frozen=True, kw_only=True):
    """The authenticated client, and its rights."""

    kind: Annotated[str, doc("How the client is authenticated: local, token or open.", "token")]
    name: Annotated[str, doc("The name of the token or of the user.", "ci")]
    role: Annotated[Role | None, doc("Its role.", "operator")]
    types: Annotated[tuple[str, ...] | None, doc("The types it is limited to; null: not limited.", None)]
    services: Annotated[tuple[str, ...] | None, doc("The services it is limited to; null: not limited.", None)]
    sites: Annotated[tuple[str, ...] | None, doc("The sites it is limited to; null: not limited.", None)]


class AuditLog(Struct, frozen=True, kw_only=True):
    """Lines of the audit log."""

    entries: Annotated[tuple[AuditEntry, ...], doc("The entries, the newest last.")]
    broken: Annotated[tuple[str, ...], doc("Where lines were changed or are missing.", [])]
    trouble: Annotated[str | None, doc("Why the log cannot be written now; null: it can.", None)]


class Health(Struct, frozen=True, kw_only=True):
    """Whether the agent works (`/healthz`) or accepts operations (`/readyz`)."""

    ok: Annotated[bool, doc("The result.", True)]
    site: Annotated[str, doc("The site; empty for a client without credentials.", "site1")]
    version: Annotated[str, doc("The version of the agent; empty for a client without credentials.", "0.1.0")]
    detail: Annotated[str, doc("The reason, if the result is false.", "")]


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but perhaps not as intended
    FAILED = "failed"


CHECK_GROUPS = (
    "configuration",
    "store",
    "resources",
    "clocks",
    "security",
    "peers",
    "services",
    "backends",
    "notifications",
    "versions",
)


class Check(Struct, frozen=True, kw_only=True):
    """The result of one check."""

    group: Annotated[str, doc(f"{', '.join(CHECK_GROUPS[:-1])} or {CHECK_GROUPS[-1]}.", "peers")]
    name: Annotated[str, doc("The finding in a few words.", "site2 is up")]
    level: Annotated[Level, doc("The result.", "ok")]
    ok: Annotated[bool, doc("Whether it works: the level is ok or warning.", True)]
    detail: Annotated[str, doc("More about it.", "12.5 ms away")]
    hint: Annotated[str, doc("What to do about it; empty if there is nothing to do.", "")]
    anchor: Annotated[str, doc("Where the documentation explains it.", "docs/troubleshooting.md#peers")]


CHECK_DOCUMENT = "docs/troubleshooting.md"


def make_check(group: str, name: str, detail: str, hint: str = "", level: Level | None = None) -> Check:
    """Passes without a hint, since there is nothing to do; with one it fails, unless `level` says otherwise."""
    level = level or (Level.FAILED if hint else Level.OK)
    ok = level is not Level.FAILED
    anchor = f"{CHECK_DOCUMENT}#{group}"
    return Check(group=group, name=name, level=level, ok=ok, detail=detail, hint=hint, anchor=anchor)


class Checks(Struct, frozen=True, kw_only=True):
    """The results of all checks, in groups."""

    site: Annotated[str, doc("The site.", "site1")]
    ok: Annotated[bool, doc("Whether no check failed.", True)]
    checks: Annotated[tuple[Check, ...], doc("The checks, group by group.")]


class PeerClock(Struct, frozen=True, kw_only=True):
    """The clock of another site."""

    site: Annotated[str, doc("The site.", "site2")]
    up: Annotated[bool, doc("Whether it is up; otherwise this is what was last measured.", True)]
    offset_ms: Annotated[float | None, doc("How far it is ahead of the clock here; null: not measured yet.", 12.5)]


class HeldStamps(Struct, frozen=True, kw_only=True):
    """Operations that are refused here because of their stamps."""

    site: Annotated[str, doc("The site that made them.", "site3")]
    times: Annotated[int, doc("How often, since the agent started.", 3)]
    detail: Annotated[str, doc("The last of them.", "the clock of site3 was 58 min ahead of ours …")]


class Clocks(Struct, frozen=True, kw_only=True):
    """The clock of a site beside those of the others, and what its stamps hold back."""

    site: Annotated[str, doc("The site.", "site1")]
    time: Annotated[str, doc("Its time.", "2026-11-16T01:41:31.885Z")]
    majority_offset_ms: Annotated[float | None, doc("How far most sites are ahead of it; null: too few.", 0.5)]
    stamps_ahead_ms: Annotated[float, doc("How far its newest stamp is ahead of the time; at least 0.", 0)]
    allowed_ms: Annotated[float, doc("How far stamps may be ahead: security.clock_skew.", 300_000)]
    is_held_back: Annotated[bool, doc("Whether other sites refuse what this one makes.", False)]
    clocks: Annotated[tuple[PeerClock, ...], doc("The clocks of the other sites.")]
    refused: Annotated[tuple[HeldStamps, ...], doc("What this site refuses because of stamps.")]


class Problem(Struct, frozen=True, kw_only=True):
    """A problem document (RFC 9457)."""

    type: Annotated[str, doc("about:blank: the status is the kind.", "about:blank")]
    title: Annotated[str, doc("The status in words.", "Not Found")]
    status: Annotated[int, doc("The status of the response.", 404)]
    detail: Annotated[str, doc("What is wrong, where, and what to do.", "no such resource is known here")]
    fault: Annotated[str | None, doc("Who can fix it: client, application, peer or us (Cheops).", "client")] = None
    definite: Annotated[bool | None, doc("false: the same request may succeed later.", True)] = None


class NotificationTarget(Struct, frozen=True, kw_only=True):
    """A receiver of notifications, and how its deliveries go."""

    name: Annotated[str, doc("Its name in the configuration file.", "chat")]
    channel: Annotated[str, doc("web hook, command or mail.", "web hook")]
    ok: Annotated[bool, doc("Whether it accepted the last attempt, or there was none.", True)]
    backlog: Annotated[int, doc("Events that it has not got yet; its filters may leave out some of them.", 0)]
    deliveries: Annotated[int, doc("Events that it accepted since the agent started.", 12)]
    failures: Annotated[int, doc("Attempts that failed since the agent started.", 0)]
    failing_since_s: Annotated[float | None, doc("For how many seconds all attempts have failed; null: none.", None)]
    last_success_s: Annotated[
        float | None, doc("How many seconds ago it accepted an event; null: not since the agent started.", 8.5)
    ]
    problem: Annotated[str, doc("Why the last attempt failed; empty if it did not.", "")]


class Notifications(Struct, frozen=True, kw_only=True):
    """The receivers of notifications of a site."""

    site: Annotated[str, doc("The site.", "site1")]
    targets: Annotated[tuple[NotificationTarget, ...], doc("The receivers, as configured.")]


class Changes(Struct, frozen=True, kw_only=True):
    """The events after a position in the feed, and the position to continue from."""

    events: Annotated[tuple[Event, ...], doc("The events, in order.")]
    last: Annotated[str, doc("`since` for the next request.", "6f1c9a-118")]
    reset: Annotated[bool, doc("Some events after the position are gone: read the state again.", False)]
