"""What was refused, counted by reason and by whom it came from; shown in `/metrics` and `cheops check`.

A reason is a few words, the same for all of its kind (`future stamp`, `wrong signature`): whoever refuses
gives them. Who sent it and what exactly it was may come from anybody, so all of it is bounded: when there are
too many different senders of one reason, those that come later are counted together as `OTHERS`.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock

from cheops.text import printable, shortened

COMMAND_NOT_ALLOWED = "command not allowed"
AGAINST_POLICY = "against the policy"  # told by several
OTHERS = "others"
NOBODY = ""  # where it is not known who sent it
_MOST_REASONS = 100
_MOST_SENDERS = 50  # of one reason
_MOST_DETAIL = 300  # characters


@dataclass(frozen=True, slots=True)
class Refused:
    """How often something was refused to somebody, and the last time of it."""

    reason: str
    who: str
    times: int
    last_s: float  # seconds since 1970
    detail: str


class Refusals:
    """Counts since the agent started. May be told from any thread."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s
        self._lock = Lock()
        self._by_reason: dict[str, dict[str, Refused]] = {}

    def count(self, reason: str, who: str = NOBODY, detail: str = "", times: int = 1) -> None:
        """Something was refused. `who` is a site, the name of a token, an address …"""
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
            found = [one for senders in self._by_reason.values() for one in senders.values()]
        return sorted(found, key=lambda one: (one.reason, one.who))

    def total(self, reason: str | None = None) -> int:
        """How often, for one reason or for all of them."""
        return sum(one.times for one in self.all() if reason in (None, one.reason))
