"""What the gateway did: counters for /metrics, and the latest requests with a scope, for people."""

import time
from collections import Counter, deque
from dataclasses import dataclass

KEPT = 1_000
_MOST_TEXT = 500


@dataclass(frozen=True, slots=True)
class Served:
    """A request as it is remembered. The path is without its query, which may hold secrets."""

    at_ms: int
    service: str
    method: str
    path: str
    scope: str
    route: str  # local, forward, in-turn, replicate, refused
    site: str  # who answered
    status: int
    took_ms: float
    fallback: str = ""
    recovered: bool = False


class Record:
    """Counts since the start, and a bounded ring of what had a scope."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, str, str]] = Counter()  # service, route, status class
        self.fallbacks: Counter[str] = Counter()  # by service
        self.recovered: Counter[str] = Counter()  # by service
        self.refused: Counter[int] = Counter()  # what was no request at all, by status
        self.recent: deque[Served] = deque(maxlen=KEPT)

    def served(self, one: Served) -> None:
        self.requests[one.service, one.route, f"{one.status // 100}xx"] += 1
        if one.fallback:
            self.fallbacks[one.service] += 1
        if one.recovered:
            self.recovered[one.service] += 1
        if one.scope:
            self.recent.append(one)


@dataclass(slots=True)
class Story:
    """What is learned of a request while it is served."""

    service: str
    method: str
    target: str
    scope: str = ""
    route: str = "refused"
    site: str = ""
    status: int = 0
    fallback: str = ""
    recovered: bool = False
    began_s: float = 0.0

    def told(self) -> Served:
        took_ms = (time.monotonic() - self.began_s) * 1000
        path = self.target.partition("?")[0][:_MOST_TEXT]
        return Served(
            int(time.time() * 1000), self.service, self.method, path, self.scope[:_MOST_TEXT], self.route,
            self.site, self.status, took_ms, self.fallback, self.recovered,
        )  # fmt: skip
