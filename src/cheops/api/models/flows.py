"""Who forwards requests to services, and which scopes it knows by heart."""

from typing import Annotated, Literal

from msgspec import Struct

from cheops.api.models.says import says

FlowRoute = Literal["local", "forward", "in-turn"]
Plane = Literal["haproxy", "builtin", "none"]


class FlowView(Struct, frozen=True, kw_only=True):
    """What becomes of requests to a service that have a scope, without asking the agent."""

    service: Annotated[str, says("The service.", "image")]
    scope: Annotated[str, says("The scope, as clients write it.", "site2")]
    route: Annotated[
        FlowRoute,
        says("Served here, sent to a site, or tried at a site first, and then by the agent.", "forward"),
    ]
    site: Annotated[str, says("Which site is asked first.", "site2")]


class Flows(Struct, frozen=True, kw_only=True):
    """The data plane of a site, and a page of its flows."""

    plane: Annotated[
        Plane,
        says(
            "HAProxy; the agent's own proxy, which needs no flows; or none, where no service listens.",
            "haproxy",
        ),
    ]
    ok: Annotated[bool, says("Whether it works.", True)]
    trouble: Annotated[str, says("What is wrong with it, if something is.", "")]
    total: Annotated[int, says("How many flows there are.", 2)]
    carried: Annotated[
        int, says("How many values of carriers it knows the scope of, for calls of the application.", 0)
    ]
    fast: Annotated[int, says("Requests that HAProxy served alone, since the agent's start.", 98_214)]
    slow: Annotated[int, says("Requests that it handed to the agent.", 12)]
    reloads: Annotated[int, says("How often it was given another configuration.", 1)]
    restarts: Annotated[int, says("How often it had ended, and was started again.", 0)]
    flows: Annotated[tuple[FlowView, ...], says("Those of this page, the latest first.")]
    next: Annotated[str | None, says("Where the next page begins (`cursor`); null: this is the last.", None)]
