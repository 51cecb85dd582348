"""Requests with a scope that the gateway of a site has served."""

from typing import Annotated, Literal

from msgspec import Struct

from cheops.api.models.says import says

Route = Literal["local", "forward", "in-turn", "replicate", "dry-run", "refused"]


class RequestView(Struct, frozen=True, kw_only=True):
    """A request with a scope, as the gateway of the site that is asked has served it."""

    number: Annotated[int, says("Which it is, since the agent's start.", 17)]
    at: Annotated[str, says("When it was answered.", "2026-11-16T05:13:59.120Z")]
    service: Annotated[str, says("The service that it was for.", "image")]
    method: Annotated[str, says("Its method.", "GET")]
    path: Annotated[str, says("Its path, without the query, which may hold secrets.", "/v2/images")]
    scope: Annotated[str, says("Its scope.", "{image: site2 ; site1}")]
    route: Annotated[
        Route,
        says(
            "Served here, sent to a site, tried at several in turn, replicated, only foretold, or refused.",
            "in-turn",
        ),
    ]
    site: Annotated[str, says("Which site served it, or failed to.", "site1")]
    status: Annotated[
        int | None, says("What the client was answered; null: it left before there was an answer.", 200)
    ]
    took_ms: Annotated[float, says("From its head to the end of its answer.", 4.25)]
    fallback: Annotated[
        str, says("Which sites were tried before, and why they did not do; empty: none.", "site2: 503")
    ]
    recovered: Annotated[
        bool,
        says("Whether the application made it, and its scope is that of the request that caused it.", False),
    ]


class Requests(Struct, frozen=True, kw_only=True):
    """A page of requests with a scope, the latest first."""

    requests: Annotated[tuple[RequestView, ...], says("Those of this page.")]
    next: Annotated[
        str | None,
        says("Where the next page, of older ones, begins (`cursor`); null: this is the last.", None),
    ]
