"""Who may ask at this site: its tokens, kept in the store, and the sessions that began with one.

A token that is revoked is good for nothing from that moment on: sessions end, and so do streams that were
begun with it.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from cheops.security.principal import Reach, Role
from cheops.security.tokens import BadTokenError, Sessions, Token, Tokens, new_secret

Keep = Callable[[dict[str, Any]], Awaitable[None]]


class Accounts:
    """Belongs to one event loop. `keep` makes the note of all tokens durable, or raises StoreError."""

    def __init__(self, tokens: Tokens, keep: Keep) -> None:
        self.tokens = tokens
        self.sessions = Sessions()
        self._keep = keep
        self._one_at_a_time = asyncio.Lock()
        self._ended: dict[str, asyncio.Event] = {}  # by token, while somebody wants to know

    async def create(
        self, name: str, role: Role, reach: Reach, lasts_ms: int | None, made_by: str
    ) -> tuple[Token, str]:
        """A new token, and the secret that is told once."""
        secret = new_secret()
        async with self._one_at_a_time:
            changed, token = self.tokens.made(name, role, reach, lasts_ms, made_by, secret)
            await self._keep(changed.note())
            self.tokens = changed
        return token, secret

    async def revoke(self, named: str) -> Token:
        async with self._one_at_a_time:
            token = self.tokens.named(named)
            changed = self.tokens.without(token)
            self.tokens = changed  # at once, and for as long as the agent lives even if it cannot be kept
            self.sessions.end_all_of(token.id)
            if ended := self._ended.pop(token.id, None):
                ended.set()
            await self._keep(changed.note())
        return token

    def session_of(self, id_: str) -> Token:
        """The token of a session; raises BadTokenError."""
        session = self.sessions.found(id_)
        token = self.tokens.by_id(session.token) if session else None
        if token is None or not self.tokens.is_good(token):
            raise BadTokenError("the session is over; sign in again", "ended session")
        return token

    def ended(self, token: str) -> asyncio.Event:
        """Is set when the token is revoked."""
        return self._ended.setdefault(token, asyncio.Event())

    def is_good(self, id_: str) -> bool:
        token = self.tokens.by_id(id_)
        return token is not None and self.tokens.is_good(token)
