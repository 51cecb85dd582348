"""What a client says about how to answer it: for how many sites to wait, how long, and what to do where a
resource exists already. Pure.
"""

import re
from dataclasses import dataclass
from enum import StrEnum

from cheops.config.replication import EXISTS
from cheops.gateway.replicas.errors import ReplicationRequestError
from cheops.gateway.seam import Head, every, first
from cheops.text import printable, shortened

DEFAULT_WAIT_S = 30.0
MAX_WAIT_S = 3600.0
MAX_KEY_CHARACTERS = 255
_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,6})\"?\s*(?:$|[,;])", re.IGNORECASE)
_ASYNC = re.compile(r"(?:^|[,;])\s*respond-async\s*(?:$|[,;])", re.IGNORECASE)


class Wait(StrEnum):
    FIRST = "first"
    QUORUM = "quorum"
    ALL = "all"

    def needed(self, sites: int) -> int:
        return {Wait.FIRST: 1, Wait.QUORUM: sites // 2 + 1, Wait.ALL: sites}[self]


@dataclass(frozen=True, slots=True)
class Preferences:
    wait: Wait = Wait.FIRST
    wait_s: float = DEFAULT_WAIT_S
    exists: str = ""
    key: str = ""


def preferences_of(head: Head) -> Preferences:
    """Raises ReplicationRequestError."""
    return Preferences(
        Wait(_one_of(head, "Cheops-Wait", tuple(Wait)) or Wait.FIRST),
        _wait_s(", ".join(every(head, "Prefer"))),
        _one_of(head, "Cheops-Exists", EXISTS),
        _key(first(head, "Idempotency-Key") or ""),
    )


def _one_of(head: Head, name: str, known: tuple[str, ...]) -> str:
    value = (first(head, name) or "").strip().lower()
    if value and value not in known:
        shown = printable(shortened(value))
        raise ReplicationRequestError(f"{name} is one of {', '.join(known)}, not '{shown}'")
    return value


def _wait_s(prefer: str) -> float:
    if found := _WAIT.search(prefer):
        return min(float(found[1]), MAX_WAIT_S)
    return 0.0 if _ASYNC.search(prefer) else DEFAULT_WAIT_S


def _key(key: str) -> str:
    if len(key) > MAX_KEY_CHARACTERS:
        raise ReplicationRequestError(f"an Idempotency-Key has at most {MAX_KEY_CHARACTERS} characters")
    return key
