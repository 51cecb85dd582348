"""Counters of requests for /metrics, and the latest requests with a scope."""

import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import Literal, TypeAlias

KEPT = 1_000
_MOST_TEXT = 500
_MOST_METHOD = 32

RouteKind: TypeAlias = Literal["local", "forward", "in-turn", "replicate", "dry-run", "refused"]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request as it is remembered. The path is without its query, which may hold secrets. A status of 0:
    the client left before there was an answer."""

    at_ms: int
    service: str
    method: str
    path: str
    scope: str
    route: RouteKind
    site: str  # who answered
    status: int
    took_ms: float
    fallback: str = ""
    recovered: bool = False
    number: int = 0  # among those with a scope


class RequestLog:
    """Counts since the start, and a bounded ring of what had a scope."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # service, route, status class
        self.fallbacks: Counter[str] = Counter()  # by service
        self.recovered: Counter[str] = Counter()  # by service
        self.refused: Counter[int] = Counter()  # what was no request at all, by status
        self._recent: deque[ServedRequest] = deque(maxlen=KEPT)
        self._scoped = 0

    def served(self, one: ServedRequest) -> None:
        self.requests[one.service, one.route, f"{one.status // 100}xx"] += 1
        if one.fallback:
            self.fallbacks[one.service] += 1
        if one.recovered:
            self.recovered[one.service] += 1
        if one.scope:
            self.remember(one)

    def remember(self, one: ServedRequest) -> None:
        """Without counting it: that was done elsewhere."""
        self._scoped += 1
        self._recent.append(replace(one, number=self._scoped))

    def latest(self, most: int, before: int | None = None, service: str = "") -> list[ServedRequest]:
        """Those with a scope, the latest first: before that of a number, and for one service."""
        found = (
            one
            for one in reversed(self._recent)
            if (before is None or one.number < before) and service in ("", one.service)
        )
        return list(islice(found, most))


@dataclass(slots=True)
class RequestTrace:
    """What is learned of a request while it is served."""

    service: str
    method: str
    target: str
    scope: str = ""
    route: RouteKind = "refused"
    site: str = ""
    status: int = 0
    fallback: str = ""
    recovered: bool = False
    began_s: float = 0.0

    def told(self) -> ServedRequest:
        took_ms = (time.monotonic() - self.began_s) * 1000
        path = self.target.partition("?")[0][:_MOST_TEXT]
        return ServedRequest(
            int(time.time() * 1000), self.service, self.method[:_MOST_METHOD], path, self.scope[:_MOST_TEXT],
            self.route, self.site, self.status, took_ms, self.fallback[:_MOST_TEXT], self.recovered,
        )  # fmt: skip
