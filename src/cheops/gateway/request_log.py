"""Counters of requests for /metrics, and the latest requests with a scope."""

import time
from collections import Counter, deque
from itertools import islice
from typing import Annotated, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from cheops.schema import doc
from cheops.security.audit import time_text

KEPT = 1_000
_MAX_TEXT = 500  # clients choose these texts, so their length must be limited, too
_MAX_METHOD = 32

RouteKind: TypeAlias = Literal["local", "forward", "in-turn", "replicate", "gather", "dry-run", "refused"]


class ServedRequest(Struct, frozen=True, kw_only=True):
    """A request with a scope, as the gateway of this site served it."""

    number: Annotated[int, doc("Its number among the requests with a scope since the agent's start.", 17)] = 0
    at: Annotated[str, doc("When the response was complete.", "2026-11-16T05:13:59.120Z")]
    service: Annotated[str, doc("The service it was for.", "image")]
    method: Annotated[str, doc("Its method.", "GET")]
    path: Annotated[str, doc("Its path, without the query, which may hold secrets.", "/v2/images")]
    scope: Annotated[str, doc("Its scope.", "{image: site2 ; site1}")]
    route: Annotated[
        RouteKind,
        doc(
            "Served here, forwarded to a site, tried at several sites in turn, replicated, read at several sites at "
            "once (`%`), only tried out, or refused.",
            "in-turn",
        ),
    ]
    site: Annotated[str, doc("The site that served it, or failed to.", "site1")]
    status: Annotated[int | None, doc("The status of the response; null: the client left before there was one.", 200)]
    took_ms: Annotated[float, doc("The time from its head to the end of the response.", 4.25)]
    fallback: Annotated[
        str, doc("The sites that were tried before, and why they failed; empty: none.", "site2: 503")
    ] = ""
    parts: Annotated[
        str,
        doc(
            "Of a read over several sites (`%`): its parts, and the status of each.",
            "site1; status=200, site2; status=503",
        ),
    ] = ""
    recovered: Annotated[
        bool,
        doc("Whether the application sent it, and a carrier gave it the scope of the request that caused it.", False),
    ] = False


class RequestLog:
    """Counters since the start, and the latest requests with a scope."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # service, route, status class
        self.fallbacks: Counter[str] = Counter()  # by service
        self.recovered: Counter[str] = Counter()  # by service
        self.unknown_calls: Counter[str] = Counter()  # calls of the application without a known scope, by service
        self.last_unknown_call_s: dict[str, float] = {}
        self.refused: Counter[int] = Counter()  # invalid requests, by status
        self._recent: deque[ServedRequest] = deque(maxlen=KEPT)
        self._scoped = 0

    def served(self, one: ServedRequest) -> None:
        self.requests[one.service, one.route, f"{(one.status or 0) // 100}xx"] += 1
        if one.fallback:
            self.fallbacks[one.service] += 1
        if one.recovered:
            self.recovered[one.service] += 1
        if one.scope:
            self.remember(one)

    def count_unknown_calls(self, service: str, calls: int) -> None:
        self.unknown_calls[service] += calls
        self.last_unknown_call_s[service] = time.time()

    def remember(self, one: ServedRequest) -> None:
        """Log a request that HAProxy has counted already."""
        self._scoped += 1
        self._recent.append(replace(one, number=self._scoped))

    def latest(self, most: int, before: int | None = None, service: str = "") -> list[ServedRequest]:
        """Requests with a scope, the latest first: those before a number, and of one service."""
        found = (
            one
            for one in reversed(self._recent)
            if (before is None or one.number < before) and service in ("", one.service)
        )
        return list(islice(found, most))


class RequestTrace(Struct):
    """Collects what is known about a request while it is served."""

    service: str
    method: str
    target: str
    scope: str = ""
    route: RouteKind = "refused"
    site: str = ""
    status: int = 0
    fallback: str = ""
    parts: str = ""
    recovered: bool = False
    began_s: float = 0.0

    def served_request(self) -> ServedRequest:
        return ServedRequest(
            at=time_text(time.time()),
            service=self.service,
            method=self.method[:_MAX_METHOD],
            path=self.target.partition("?")[0][:_MAX_TEXT],
            scope=self.scope[:_MAX_TEXT],
            route=self.route,
            site=self.site,
            status=self.status or None,
            took_ms=round((time.monotonic() - self.began_s) * 1000, 3),
            fallback=self.fallback[:_MAX_TEXT],
            parts=self.parts[:_MAX_TEXT],
            recovered=self.recovered,
        )
