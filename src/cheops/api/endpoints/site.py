"""Endpoints of a site: the mesh, events, access (tokens, sessions, audit), the agent itself, and the demo."""

from typing import Annotated

from msgspec import Struct

from cheops.api.endpoints.declaration import (
    ADMIN,
    ADMIN_READ,
    ANYONE,
    EVENT_STREAM,
    READ,
    READ_RESOURCE,
    READ_SITE,
    Endpoint,
    Right,
    header,
)
from cheops.api.models.site import (
    CHECK_GROUPS,
    AuditLog,
    Changes,
    Checks,
    Clocks,
    Decided,
    Health,
    Invitation,
    InviteRequest,
    MadeToken,
    NewToken,
    Notifications,
    Ping,
    Session,
    SignedDecision,
    SignIn,
    Sites,
    SiteView,
    TokenList,
    TokenView,
    Wiring,
)
from cheops.notify.event import Event
from cheops.schema import doc
from cheops.security.principal import Role

MAX_EVENTS = 1_000  # in one response
MAX_EVENTS_WAIT_S = 300.0
MAX_AUDIT_LINES = 1_000
_MAX_POSITION = 100

# -- sites ------------------------------------------------------------------------------------------------------


class ForgetParameters(Struct, frozen=True, kw_only=True):
    force: Annotated[bool, doc("Forget it whatever its state, and even if resources list it.")] = False


LIST_SITES = Endpoint(
    name="listSites",
    method="GET",
    path="/sites",
    right=READ,
    tag="sites",
    summary="List all known sites, with their state",
    response=Sites,
    success="The sites.",
)
GET_SITE = Endpoint(
    name="getSite",
    method="GET",
    path="/sites/{name}",
    right=READ,
    tag="sites",
    summary="Get a site",
    response=SiteView,
    success="The site.",
    problems=(400, 404),
)
FORGET_SITE = Endpoint(
    name="forgetSite",
    method="DELETE",
    path="/sites/{name}",
    right=ADMIN,
    tag="sites",
    summary="Remove a site from the mesh for good; the other sites are informed",
    description="Refused for a site that is up, or that resources still list, unless `force` is set. With security on, "
    "only a site with the authority's key can do it. The response comes when all sites that are up have confirmed it, "
    "but after 4 seconds at most.",
    parameters=ForgetParameters,
    response=Decided,
    success="The site is forgotten here.",
    problems=(400, 404, 409, 503),
)
PING_SITE = Endpoint(
    name="pingSite",
    method="POST",
    path="/sites/{name}/ping",
    right=READ,
    tag="sites",
    summary="Send a request to a site now, and measure the response time",
    response=Ping,
    success="The outcome.",
    problems=(400, 404),
)
ADMIT_SITE = Endpoint(
    name="admitSite",
    method="POST",
    path="/sites/{name}/admit",
    right=ADMIN,
    tag="sites",
    summary="Admit a forgotten site again",
    description="With security on, only a site with the authority's key can do it, and the site needs a new "
    "certificate.",
    response=Decided,
    success="The site is admitted here.",
    problems=(400, 404, 409, 503),
)
DECIDE_SITE = Endpoint(
    name="decideSite",
    method="POST",
    path="/sites/{name}/decision",
    right=ADMIN,
    tag="sites",
    summary="Pass on a decision about a site that was signed with the authority's key elsewhere",
    description="For `cheops site forget` and `admit` with `--ca`. `force` is as for `forgetSite`.",
    parameters=ForgetParameters,
    body=SignedDecision,
    response=Decided,
    success="The decision is in force here.",
    problems=(400, 403, 404, 409, 503),
)
INVITE_SITE = Endpoint(
    name="inviteSite",
    method="POST",
    path="/invitations",
    right=ADMIN,
    tag="sites",
    summary="Invite a new site: create a code with which it can get its certificate once",
    description="Only at a site that has the authority's key (`security.ca_key`).",
    body=InviteRequest,
    response=Invitation,
    success="The invitation.",
    problems=(400, 409, 503),
)

# -- events -----------------------------------------------------------------------------------------------------


class StreamParameters(Struct, frozen=True, kw_only=True, rename={"last_event_id": "Last-Event-ID"}):
    last_event_id: Annotated[str, header("Continue after this position.", max_length=_MAX_POSITION)] = ""
    last: Annotated[str, doc("The same, for clients that cannot send headers.", max_length=_MAX_POSITION)] = ""


class ChangesParameters(Struct, frozen=True, kw_only=True):
    since: Annotated[str, doc("Events after this position; empty: from now on.", max_length=_MAX_POSITION)] = ""
    wait: Annotated[float, doc("How many seconds to wait if there is no event yet.", ge=0, le=MAX_EVENTS_WAIT_S)] = 0.0
    limit: Annotated[int, doc("The largest number of events.", ge=1, le=MAX_EVENTS)] = MAX_EVENTS


_STREAM = "Events, each with its position. A comment from time to time shows that the agent is alive."

STREAM_EVENTS = Endpoint(
    name="streamEvents",
    method="GET",
    path="/events",
    right=READ,
    tag="events",
    summary="Follow the events of this agent",
    parameters=StreamParameters,
    response=Event,
    success=_STREAM,
    media_type=EVENT_STREAM,
    problems=(400,),
)
STREAM_RESOURCE_EVENTS = Endpoint(
    name="streamResourceEvents",
    method="GET",
    path="/resources/{id}/events",
    right=READ_RESOURCE,
    tag="events",
    summary="Follow the events of a resource",
    parameters=StreamParameters,
    response=Event,
    success=_STREAM,
    media_type=EVENT_STREAM,
    problems=(400,),
)
LIST_CHANGES = Endpoint(
    name="listChanges",
    method="GET",
    path="/changes",
    right=READ,
    tag="events",
    summary="List the events of this agent after a position",
    parameters=ChangesParameters,
    response=Changes,
    success="The events, and the position after them.",
    problems=(400,),
)
LIST_RESOURCE_CHANGES = Endpoint(
    name="listResourceChanges",
    method="GET",
    path="/resources/{id}/changes",
    right=READ_RESOURCE,
    tag="events",
    summary="List the events of a resource after a position",
    parameters=ChangesParameters,
    response=Changes,
    success="The events, and the position after them.",
    problems=(400,),
)

# -- access -----------------------------------------------------------------------------------------------------


class AuditFilter(Struct, frozen=True, kw_only=True):
    since: Annotated[
        str, doc("From this time on, such as 2026-11-16T01:41; empty: from the beginning.", max_length=40)
    ] = ""
    who: Annotated[str, doc("Only entries of this client, such as token:ci or ci.", max_length=300)] = ""
    outcome: Annotated[str, doc("Only done, refused or failed.", max_length=20)] = ""
    limit: Annotated[int, doc("The largest number of entries.", ge=1, le=MAX_AUDIT_LINES)] = 100


LIST_TOKENS = Endpoint(
    name="listTokens",
    method="GET",
    path="/tokens",
    right=ADMIN_READ,
    tag="access",
    summary="List the tokens of this site",
    response=TokenList,
    success="All tokens, including those that have expired.",
)
CREATE_TOKEN = Endpoint(
    name="createToken",
    method="POST",
    path="/tokens",
    right=ADMIN,
    tag="access",
    summary="Create a token; its secret is shown only in this response",
    body=NewToken,
    response=MadeToken,
    success="The token.",
    problems=(400, 409, 413, 503),
)
REVOKE_TOKEN = Endpoint(
    name="revokeToken",
    method="DELETE",
    path="/tokens/{token}",
    right=ADMIN,
    tag="access",
    summary="Revoke a token immediately",
    response=TokenView,
    success="The token that was revoked.",
    problems=(404, 503),
)
WHO_AM_I = Endpoint(
    name="whoAmI",
    method="GET",
    path="/session",
    right=READ,
    tag="access",
    summary="Show who the client is, and its rights",
    response=Session,
    success="The client.",
)
SIGN_IN = Endpoint(
    name="signIn",
    method="POST",
    path="/session",
    right=Right(is_open=True, writes=True),
    tag="access",
    summary="Sign in with a token, and get a cookie in its place",
    description=(
        "The cookie holds the id of a session, not the token. Requests with the cookie that change something need the "
        "header `Cheops-Session: 1`, and must come from a page of this agent."
    ),
    body=SignIn,
    response=Session,
    success="The client.",
    problems=(400, 413),
)
SIGN_OUT = Endpoint(
    name="signOut",
    method="DELETE",
    path="/session",
    right=Right(Role.VIEWER, writes=True),
    tag="access",
    summary="End the session of this cookie",
    response=Session,
    success="The client whose session ended.",
)
READ_AUDIT = Endpoint(
    name="readAudit",
    method="GET",
    path="/audit",
    right=ADMIN_READ,
    tag="access",
    summary="Read the audit log: all changes at this site, and all refusals",
    parameters=AuditFilter,
    response=AuditLog,
    success="The last entries that match.",
)

LIST_NOTIFICATIONS = Endpoint(
    name="listNotifications",
    method="GET",
    path="/notifications",
    right=READ_SITE,
    tag="events",
    summary="List the receivers of notifications, with what waits for each and why it is not delivered",
    response=Notifications,
    success="The receivers.",
)

# -- the agent --------------------------------------------------------------------------------------------------

CHECK = Endpoint(
    name="check",
    method="GET",
    path="/check",
    right=READ_SITE,
    tag="agent",
    summary=f"Check {', '.join(CHECK_GROUPS[:-1])} and {CHECK_GROUPS[-1]}",
    response=Checks,
    success="The result of each check.",
)
GET_CLOCK = Endpoint(
    name="getClock",
    method="GET",
    path="/clock",
    right=READ_SITE,
    tag="agent",
    summary="Show the clock of this site beside those of the others, and what stamps hold back",
    response=Clocks,
    success="The clocks.",
)
CURE_CLOCK = Endpoint(
    name="cureClock",
    method="POST",
    path="/clock/cure",
    right=ADMIN,
    tag="agent",
    summary="Issue again what other sites refuse because of its stamp; the agent starts again",
    response=Clocks,
    success="The clocks; the agent is about to start again.",
    problems=(409,),
)
HEALTH = Endpoint(
    name="health",
    method="GET",
    path="/healthz",
    right=ANYONE,
    tag="agent",
    summary="Show whether the agent works",
    response=Health,
    success="It works.",
    statuses={503: "It does not work."},
)
READINESS = Endpoint(
    name="readiness",
    method="GET",
    path="/readyz",
    right=ANYONE,
    tag="agent",
    summary="Show whether the agent accepts operations",
    response=Health,
    success="It does.",
    statuses={503: "It does not: nothing can be saved."},
)

# -- the demo ---------------------------------------------------------------------------------------------------

GET_WIRES = Endpoint(
    name="getWires",
    method="GET",
    path="/demo/wires",
    right=READ,
    tag="demo",
    summary="Show whether sites can be cut off here, and which are",
    response=Wiring,
    success="The links between the sites.",
    problems=(503,),
)
CUT_SITE = Endpoint(
    name="cutSite",
    method="DELETE",
    path="/demo/wires/{name}",
    right=ADMIN,
    tag="demo",
    summary="Cut a site of the demo off from all others",
    response=Wiring,
    success="The links between the sites.",
    problems=(400, 404, 503),
)
JOIN_SITE = Endpoint(
    name="joinSite",
    method="PUT",
    path="/demo/wires/{name}",
    right=ADMIN,
    tag="demo",
    summary="Join a site of the demo to all others again",
    response=Wiring,
    success="The links between the sites.",
    problems=(400, 404, 503),
)
