"""Sessions of browsers: who signed in with a token has a cookie that stands for it, and not the token itself.

They live in memory and end with the agent, with their token, or after half a day. A session's id is kept as
its hash, as a token is.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass

from cheops.security.tokens import Token, hash_of, wall_ms

LASTS_S = 12 * 3600
MOST_SESSIONS = 1_000


@dataclass(frozen=True, slots=True)
class Session:
    token: str  # its id
    ends_ms: int


class Sessions:
    def __init__(self, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self._by_hash: dict[str, Session] = {}

    def begun(self, token: Token) -> str:
        """The id of a new session, for the cookie. The oldest one makes room if there are too many."""
        now_ms = self._now_ms()
        self._by_hash = {key: one for key, one in self._by_hash.items() if one.ends_ms > now_ms}
        while len(self._by_hash) >= MOST_SESSIONS:
            del self._by_hash[next(iter(self._by_hash))]
        id_ = secrets.token_urlsafe(32)
        ends_ms = now_ms + LASTS_S * 1_000
        self._by_hash[hash_of(id_)] = Session(token.id, min(ends_ms, token.ends_ms or ends_ms))
        return id_

    def found(self, id_: str) -> Session | None:
        session = self._by_hash.get(hash_of(id_))
        return session if session and session.ends_ms > self._now_ms() else None

    def end(self, id_: str) -> None:
        self._by_hash.pop(hash_of(id_), None)

    def end_all_of(self, token: str) -> None:
        self._by_hash = {key: one for key, one in self._by_hash.items() if one.token != token}
