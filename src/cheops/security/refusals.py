"""Refusals, counted by reason and by sender; and limits on how often a sender may send requests.

`/metrics` and `cheops check` show the counters. A reason is a few words, the same for all refusals of its kind (`future
stamp`, `wrong signature`). The sender and the detail may come from anywhere, so everything is bounded: the senders of
one reason beyond a number are counted together as `OTHERS`.
"""

import time
from collections.abc import Callable
from http import HTTPStatus
from threading import Lock

from msgspec import Struct

from cheops.bounded import BoundedMap
from cheops.errors import CheopsError
from cheops.security.audit import AuditEntry, AuditWriter, audit_text
from cheops.text import printable, shortened

# HTTP statuses that say that a request was refused, rather than wrong or failed.
REFUSED_STATUSES = frozenset((401, 403, 408, 413, 421, 429, 431, 507))
COMMAND_NOT_ALLOWED = "command not allowed"
AGAINST_POLICY = "against the policy"
OTHERS = "others"
NOBODY = ""  # an unknown sender
_MOST_REASONS = 100
_MOST_SENDERS = 50  # of one reason: each is a time series in /metrics
_MOST_DETAIL = 300  # characters
MOST_BUCKETS = 10_000


def reason_of(error: CheopsError) -> str:
    """The label of a refusal: `command not allowed`. It holds nothing that was sent, so that senders cannot choose it.

    Operators have alerts on these labels, so each is spelled out where the error is declared or raised.
    """
    return error.reason or HTTPStatus(error.status).phrase.lower()


class Refused(Struct, frozen=True):
    """How often one sender was refused for one reason, and the last time."""

    reason: str
    who: str
    times: int
    last_s: float  # seconds since 1970
    detail: str


class Refusals:
    """Counts since the agent started. Thread-safe."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = Lock()
        self._by_reason: dict[str, dict[str, Refused]] = {}

    def count(self, reason: str, who: str = NOBODY, detail: str = "", times: int = 1) -> None:
        """Count a refusal. `who` is a site, the name of a token, an address …"""
        reason, who = printable(shortened(reason)), printable(shortened(who))
        detail = printable(shortened(detail, _MOST_DETAIL))
        with self._lock:
            if reason not in self._by_reason and len(self._by_reason) >= _MOST_REASONS:
                reason = OTHERS
            senders = self._by_reason.setdefault(reason, {})
            if who not in senders and len(senders) >= _MOST_SENDERS:
                who = OTHERS
            before = senders[who].times if who in senders else 0
            senders[who] = Refused(reason, who, before + times, self._now_s(), detail)

    def all(self) -> list[Refused]:
        """Sorted by reason and sender."""
        with self._lock:
            rows = [one for senders in self._by_reason.values() for one in senders.values()]
        return sorted(rows, key=lambda one: (one.reason, one.who))

    def total(self, reason: str | None = None) -> int:
        """How often, for one reason or for all of them."""
        return sum(one.times for one in self.all() if reason in (None, one.reason))


class RefusalLog:
    """Records what this site refuses to other sites: in the counters, and in the audit log."""

    def __init__(self, refusals: Refusals, audit: AuditWriter) -> None:
        self._refusals = refusals
        self._audit = audit

    def document(self, reason: str, site: str, what: str = "", resource: str = "", detail: str = "") -> None:
        """Record that a document which a site sent or made is not accepted, or not carried out here."""
        self._refusals.count(reason, site, f"{what} of '{resource}': {detail}" if what else detail)
        self._audit.refused(
            AuditEntry(
                at=self._audit.now(),
                who=audit_text(f"peer:{site}" if site else "nobody"),
                source=audit_text(site),
                what="document",
                resource=audit_text(resource),
                operation=audit_text(what),
                outcome="refused",
                reason=reason,
            )
        )

    def request(  # noqa: PLR0913, PLR0917 - who, from where, and why
        self, reason: str, site: str, address: str, detail: str = "", status: int = 403, what: str = "connection"
    ) -> None:
        """Record that a request is refused; or a connection, before any request."""
        self._refusals.count(reason, site or address, detail)
        self._audit.refused(
            AuditEntry(
                at=self._audit.now(),
                who=audit_text(f"peer:{site}" if site else "nobody"),
                source=address,
                what=what,
                outcome="refused",
                status=status,
                reason=reason,
            )
        )


class RateLimiter:
    """Limits how often each sender may send a request: a bucket of `burst` requests, refilled at `rate` per second.

    The number of buckets is bounded. The least recently used one is dropped; it would be full by now.
    """

    def __init__(self, rate: float, burst: float, now_s: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._now_s = now_s
        self._buckets: BoundedMap[str, tuple[float, float]] = BoundedMap(MOST_BUCKETS)  # requests left, as of when

    def take(self, sender: str) -> float:
        """Count one request. Returns 0 if it is within the limit, else the seconds until the next one is."""
        now_s = self._now_s()
        left, at_s = self._buckets.get(sender, (self._burst, now_s))
        left = min(self._burst, left + (now_s - at_s) * self._rate)
        wait_s = 0.0 if left >= 1 else (1 - left) / self._rate
        self._buckets[sender] = (left if wait_s else left - 1, now_s)
        return wait_s

    def __len__(self) -> int:
        return len(self._buckets)


def address_key(address: str) -> str:
    """The sender to limit if nothing but the address of a client is known."""
    return f"address {address}"
