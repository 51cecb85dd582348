"""Models of the gateway: scopes, served requests and flows."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from cheops.gateway.request_log import ServedRequest
from cheops.schema import doc

FlowRoute = Literal["local", "forward", "in-turn"]
Plane = Literal["haproxy", "builtin", "none"]


class FlowView(Struct, frozen=True, kw_only=True):
    """Where the data plane sends requests to a service with this scope, without the agent."""

    service: Annotated[str, doc("The service.", "image")]
    scope: Annotated[str, doc("The scope, as clients send it.", "site2")]
    route: Annotated[
        FlowRoute,
        doc("Served here, forwarded to a site, or tried at a site first and then by the agent.", "forward"),
    ]
    site: Annotated[str, doc("The site that gets the request first.", "site2")]


class Flows(Struct, frozen=True, kw_only=True):
    """The data plane of a site, and a page of its flows."""

    plane: Annotated[
        Plane,
        doc(
            "HAProxy; the agent's own proxy (builtin), which needs no flows; or none, if no service listens.",
            "haproxy",
        ),
    ]
    ok: Annotated[bool, doc("Whether it works.", True)]
    trouble: Annotated[str, doc("What is wrong with it; empty: nothing.", "")]
    total: Annotated[int, doc("The number of flows.", 2)]
    carried: Annotated[
        int, doc("The number of carrier values whose scope is cached, for requests of the application.", 0)
    ]
    fast: Annotated[int, doc("Requests that HAProxy served without the agent, since the agent's start.", 98_214)]
    slow: Annotated[int, doc("Requests that HAProxy passed to the agent.", 12)]
    reloads: Annotated[int, doc("How often its configuration was replaced.", 1)]
    restarts: Annotated[int, doc("How often it stopped and was started again.", 0)]
    flows: Annotated[tuple[FlowView, ...], doc("The flows of this page, the latest first.")]
    next: Annotated[str | None, doc("The `cursor` of the next page; null: this is the last page.", None)]


class Requests(Struct, frozen=True, kw_only=True):
    """A page of requests with a scope, the latest first."""

    requests: Annotated[tuple[ServedRequest, ...], doc("The entries of this page.")]
    next: Annotated[
        str | None,
        doc("The `cursor` of the next page, with older requests; null: this is the last page.", None),
    ]


_TREE = {"kind": "otherwise", "parts": [{"kind": "site", "site": "site1"}]}


class ScopeMistake(Struct, frozen=True, kw_only=True):
    """What is wrong with a text that should be a scope, and where."""

    problem: Annotated[str, doc("The problem.", "unknown site 'site9'")]
    hint: Annotated[str, doc("What would be valid.", "Sites: site1, site2")]
    text: Annotated[str, doc("The text with the mistake: as sent, or its canonical form.", "site9")]
    start: Annotated[int | None, doc("The first wrong character, counted from 0; null: not at one place.", 0)]
    end: Annotated[int | None, doc("The character after the last wrong one.", 5)]


class ScopeSite(Struct, frozen=True, kw_only=True):
    """A site and its role in a route."""

    site: Annotated[str, doc("The site.", "site2")]
    role: Annotated[str, doc("Its role in the route.", "first choice")]
    up: Annotated[bool, doc("Whether it is reachable now.", True)]
    rtt_ms: Annotated[float | None, doc("The round-trip time from here.", 12.5)]


class ScopeMethod(Struct, frozen=True, kw_only=True):
    """What one kind of request would do."""

    method: Annotated[str, doc("read, create, update or delete.", "read")]
    sites: Annotated[tuple[str, ...], doc("Where it would be executed.", ["site1"])]
    latency_ms: Annotated[float | None, doc("The expected time to the response.", 12.5)]
    does: Annotated[str, doc("The same in words.", "asks site1")]


class ScopeService(Struct, frozen=True, kw_only=True):
    """What a scope means for one service."""

    service: Annotated[str | None, doc("The service; null: any.", "image")]
    location: Annotated[str, doc("The location that the scope gives it.", "site1 ; site2")]
    means: Annotated[str, doc("The same, with functions expanded to operators.", "site1 ; site2")]
    tree: Annotated[dict[str, Any], doc("The syntax tree.", _TREE)]
    route: Annotated[dict[str, Any], doc("The route.", {"kind": "one", "site": "site1"})]
    sites: Annotated[tuple[ScopeSite, ...], doc("The sites, in the order in which they are tried.")]
    methods: Annotated[tuple[ScopeMethod, ...], doc("What each kind of request would do.")]
    notes: Annotated[tuple[str, ...], doc("Other details.", [])]


class ScopeExplanation(Struct, frozen=True, kw_only=True):
    """What a scope means at this site now, or what is wrong with it."""

    canonical: Annotated[str | None, doc("The canonical form; null: the text is not a scope.", "{image: site1}")]
    here: Annotated[str, doc("The site from which the scope is resolved.", "site1")]
    services: Annotated[tuple[ScopeService, ...], doc("One entry for each service in the scope.")]
    mistake: Annotated[ScopeMistake | None, doc("What is wrong with the text; null: nothing.", None)]
