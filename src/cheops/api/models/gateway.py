"""Models of the gateway: scopes, served requests and flows."""

from typing import Annotated, Any, Literal

from msgspec import Struct

from cheops.gateway.request_log import ServedRequest
from cheops.schema import doc

FlowRoute = Literal["local", "forward", "in-turn"]
Plane = Literal["haproxy", "builtin", "none"]


class FlowView(Struct, frozen=True, kw_only=True):
    """What becomes of requests to a service that have a scope, without asking the agent."""

    service: Annotated[str, doc("The service.", "image")]
    scope: Annotated[str, doc("The scope, as clients write it.", "site2")]
    route: Annotated[
        FlowRoute,
        doc("Served here, sent to a site, or tried at a site first, and then by the agent.", "forward"),
    ]
    site: Annotated[str, doc("Which site is asked first.", "site2")]


class Flows(Struct, frozen=True, kw_only=True):
    """The data plane of a site, and a page of its flows."""

    plane: Annotated[
        Plane,
        doc(
            "HAProxy; the agent's own proxy, which needs no flows; or none, where no service listens.",
            "haproxy",
        ),
    ]
    ok: Annotated[bool, doc("Whether it works.", True)]
    trouble: Annotated[str, doc("What is wrong with it, if something is.", "")]
    total: Annotated[int, doc("How many flows there are.", 2)]
    carried: Annotated[int, doc("How many values of carriers it knows the scope of, for calls of the application.", 0)]
    fast: Annotated[int, doc("Requests that HAProxy served alone, since the agent's start.", 98_214)]
    slow: Annotated[int, doc("Requests that it handed to the agent.", 12)]
    reloads: Annotated[int, doc("How often it was given another configuration.", 1)]
    restarts: Annotated[int, doc("How often it had ended, and was started again.", 0)]
    flows: Annotated[tuple[FlowView, ...], doc("Those of this page, the latest first.")]
    next: Annotated[str | None, doc("Where the next page begins (`cursor`); null: this is the last.", None)]


class Requests(Struct, frozen=True, kw_only=True):
    """A page of requests with a scope, the latest first."""

    requests: Annotated[tuple[ServedRequest, ...], doc("Those of this page.")]
    next: Annotated[
        str | None,
        doc("Where the next page, of older ones, begins (`cursor`); null: this is the last.", None),
    ]


_TREE = {"kind": "otherwise", "parts": [{"kind": "site", "site": "site1"}]}


class ScopeMistake(Struct, frozen=True, kw_only=True):
    """What is wrong with a text, and where."""

    problem: Annotated[str, doc("What.", "unknown site 'site9'")]
    hint: Annotated[str, doc("What would be accepted.", "Sites: site1, site2")]
    text: Annotated[str, doc("The text that the place is in: as typed, or the canonical form.", "site9")]
    start: Annotated[int | None, doc("From which character on, counted from 0; null: no place.", 0)]
    end: Annotated[int | None, doc("Before which.", 5)]


class ScopeSite(Struct, frozen=True, kw_only=True):
    """A site and its part in a route."""

    site: Annotated[str, doc("Which.", "site2")]
    role: Annotated[str, doc("Its part.", "first choice")]
    up: Annotated[bool, doc("Whether it can be reached now.", True)]
    rtt_ms: Annotated[float | None, doc("How far it is from here.", 12.5)]


class ScopeMethod(Struct, frozen=True, kw_only=True):
    """What one kind of request would do."""

    method: Annotated[str, doc("read, create, update or delete.", "read")]
    sites: Annotated[tuple[str, ...], doc("Where it would be executed.", ["site1"])]
    latency_ms: Annotated[float | None, doc("After which the answer is expected.", 12.5)]
    does: Annotated[str, doc("In words.", "asks site1")]


class ScopeService(Struct, frozen=True, kw_only=True):
    """What a scope means for one service."""

    service: Annotated[str | None, doc("Which; null: any.", "image")]
    location: Annotated[str, doc("The location that the scope gives it.", "site1 ; site2")]
    means: Annotated[str, doc("The same with functions replaced by operators.", "site1 ; site2")]
    tree: Annotated[dict[str, Any], doc("How it is understood.", _TREE)]
    route: Annotated[dict[str, Any], doc("Where it leads.", {"kind": "one", "site": "site1"})]
    sites: Annotated[tuple[ScopeSite, ...], doc("In the order in which they are turned to.")]
    methods: Annotated[tuple[ScopeMethod, ...], doc("What each kind of request would do.")]
    notes: Annotated[tuple[str, ...], doc("What else is to be said.", [])]


class ScopeExplanation(Struct, frozen=True, kw_only=True):
    """A scope as this site would understand it now, or what is wrong with it."""

    canonical: Annotated[str | None, doc("The one form of it; null: it is not a scope.", "{image: site1}")]
    here: Annotated[str, doc("The site from which it is seen.", "site1")]
    services: Annotated[tuple[ScopeService, ...], doc("One for each service that it names.")]
    mistake: Annotated[ScopeMistake | None, doc("What is wrong with it; null: nothing.", None)]
