"""Access tokens of people and programs, and the browser sessions that are opened with them.

A token is `cheops_` and 32 random bytes. Only its SHA-256 is stored, and it is looked up by that hash: a guesser
cannot choose a hash, so the time of a lookup reveals nothing. All tokens are in one note of the store, which is
small: their number is limited.

A browser that signed in has a cookie with a session id, not the token itself. Sessions live in memory and end
with the agent, with their token, or after half a day. A session id is stored as its hash, as a token is.
"""

import asyncio
import base64
import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from cheops.bounded import BoundedMap
from cheops.errors import ClientError
from cheops.security.principal import Kind, Principal, Reach, Role
from cheops.text import printable, shortened

NOTE = "tokens"
PREFIX = "cheops_"
MOST_TOKENS = 1_000
MOST_NAMES = 100  # in each limit of a token
MAX_NAME = 100
MAX_SECRET = 200  # characters; anything longer is not read
_BYTES = 32
_SECRET = re.compile(rf"{PREFIX}[A-Za-z0-9_-]{{43}}")


class BadTokenError(ClientError):
    """A secret is not that of a valid token of this site."""

    status = 401

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason=reason)


class Token(Struct, frozen=True):
    id: str
    name: str
    role: Role
    reach: Reach
    made_ms: int
    ends_ms: int | None  # None: never
    made_by: str
    hash: str

    @property
    def principal(self) -> Principal:
        return Principal(Kind.TOKEN, self.name, self.role, self.reach, self.id)


def new_secret() -> str:
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(_BYTES)).rstrip(b"=").decode()


def hash_of(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "replace")).hexdigest()


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Tokens:
    """The tokens of a site, by hash. Immutable: a change gives a new set, which counts once it is saved."""

    def __init__(self, tokens: Iterable[Token] = (), now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self._by_hash = {token.hash: token for token in tokens}

    def __iter__(self) -> Iterator[Token]:
        return iter(sorted(self._by_hash.values(), key=lambda token: token.made_ms))

    def __len__(self) -> int:
        return len(self._by_hash)

    def with_secret(self, secret: str) -> Token:
        """The token with this secret; raises BadTokenError."""
        # A malformed secret, which may be long, is not even hashed. The response is the same as to an unknown one.
        digest = hash_of(secret) if _SECRET.fullmatch(secret) else ""
        token = self._by_hash.get(digest)
        if token is None or not hmac.compare_digest(token.hash, digest):
            raise BadTokenError(
                "this is no token of this site, or it was revoked; 'cheops token create' creates one",
                "unknown token",
            )
        if not self.is_good(token):
            raise BadTokenError(f"the token '{token.name}' has expired; create a new one", "expired token")
        return token

    def is_good(self, token: Token) -> bool:
        return token.ends_ms is None or self._now_ms() < token.ends_ms

    def by_id(self, id_: str) -> Token | None:
        return next((token for token in self._by_hash.values() if token.id == id_), None)

    def named(self, text: str) -> Token:
        """By id or by name; raises ClientError."""
        token = self.by_id(text) or next((t for t in self._by_hash.values() if t.name == text), None)
        if token is None:
            raise ClientError(f"there is no token '{printable(shortened(text))}' at this site", status=404)
        return token

    # -- changes -------------------------------------------------------------------------------------------

    def add(  # noqa: PLR0913, PLR0917 - the properties of a token
        self, name: str, role: Role, reach: Reach, lasts_ms: int | None, made_by: str, secret: str
    ) -> "tuple[Tokens, Token]":
        """The set with one more token; raises ClientError. Expired tokens are removed."""
        kept = [token for token in self._by_hash.values() if self.is_good(token)]
        _check_name(name)
        if any(token.name == name for token in kept):
            raise ClientError(f"there is a token '{name}' already: revoke it first, or choose another name", status=409)
        if len(kept) >= MOST_TOKENS:
            raise ClientError(f"there are {len(kept)} tokens already: revoke some that are not used", status=409)
        now_ms = self._now_ms()
        ends_ms = None if lasts_ms is None else now_ms + lasts_ms
        token = Token(self._new_id(), name, role, _checked(reach), now_ms, ends_ms, made_by, hash_of(secret))
        return Tokens([*kept, token], self._now_ms), token

    def without(self, token: Token) -> "Tokens":
        return Tokens((one for one in self._by_hash.values() if one.id != token.id), self._now_ms)

    def _new_id(self) -> str:
        while self.by_id(id_ := secrets.token_hex(4)):
            pass
        return id_

    # -- notes ---------------------------------------------------------------------------------------------

    def note(self) -> dict[str, Any]:
        return {"tokens": [_plain(token) for token in self]}

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None, now_ms: Callable[[], int] = wall_ms) -> "Tokens":
        return cls(map(_token, (note or {}).get("tokens", ())), now_ms)


def _check_name(name: str) -> None:
    if not name.strip() or name != name.strip() or len(name) > MAX_NAME or not name.isprintable():
        raise ClientError(f"a token's name has 1 to {MAX_NAME} printable characters", status=409)


def _checked(reach: Reach) -> Reach:
    for what, names in (("types", reach.types), ("services", reach.services), ("sites", reach.sites)):
        if names is not None and not 1 <= len(names) <= MOST_NAMES:
            raise ClientError(f"'{what}' takes 1 to {MOST_NAMES} names; leave it out for no limit", status=409)
    return replace(reach)


def _plain(token: Token) -> dict[str, Any]:
    limits = {"types": token.reach.types, "services": token.reach.services, "sites": token.reach.sites}
    return {
        "id": token.id,
        "name": token.name,
        "role": token.role.value,
        "made_ms": token.made_ms,
        "ends_ms": token.ends_ms,
        "made_by": token.made_by,
        "hash": token.hash,
        **{name: sorted(limit) for name, limit in limits.items() if limit is not None},
    }


def _token(plain: Mapping[str, Any]) -> Token:
    limits = {name: frozenset(plain[name]) for name in ("types", "services", "sites") if name in plain}
    return Token(
        plain["id"],
        plain["name"],
        Role(plain["role"]),
        Reach(**limits),
        plain["made_ms"],
        plain["ends_ms"],
        plain["made_by"],
        plain["hash"],
    )


LASTS_S = 12 * 3600
MOST_SESSIONS = 1_000


class Session(Struct, frozen=True):
    token: str  # its id
    ends_ms: int


class Sessions:
    def __init__(self, now_ms: Callable[[], int] = wall_ms) -> None:
        self._now_ms = now_ms
        self._by_hash: BoundedMap[str, Session] = BoundedMap(MOST_SESSIONS)

    def start(self, token: Token) -> str:
        """The id of a new session, for the cookie. Beyond the limit the oldest session ends."""
        now_ms = self._now_ms()
        id_ = secrets.token_urlsafe(32)
        ends_ms = now_ms + LASTS_S * 1_000
        self._by_hash[hash_of(id_)] = Session(token.id, min(ends_ms, token.ends_ms or ends_ms))
        return id_

    def get(self, id_: str) -> Session | None:
        session = self._by_hash.get(hash_of(id_))
        return session if session and session.ends_ms > self._now_ms() else None

    def end(self, id_: str) -> None:
        self._by_hash.pop(hash_of(id_), None)

    def end_all_of(self, token: str) -> None:
        for key in [key for key, session in self._by_hash.items() if session.token == token]:
            del self._by_hash[key]


SaveNote = Callable[[dict[str, Any]], Awaitable[None]]


class Accounts:
    """Belongs to one event loop. `save` makes the note of all tokens durable, or raises StoreError."""

    def __init__(self, tokens: Tokens, save: SaveNote) -> None:
        self.tokens = tokens
        self.sessions = Sessions()
        self._save = save
        self._lock = asyncio.Lock()
        self._ended: dict[str, asyncio.Event] = {}  # by token id, for requests that were begun with it

    async def create(
        self, name: str, role: Role, reach: Reach, lasts_ms: int | None, made_by: str
    ) -> tuple[Token, str]:
        """A new token, and its secret, which is shown only once."""
        secret = new_secret()
        # Saved before it is used: a token that was handed out must survive a crash.
        async with self._lock:
            changed, token = self.tokens.add(name, role, reach, lasts_ms, made_by, secret)
            await self._save(changed.note())
            self.tokens = changed
        return token, secret

    async def revoke(self, named: str) -> Token:
        async with self._lock:
            token = self.tokens.named(named)
            changed = self.tokens.without(token)
            self.tokens = changed  # at once: even if it cannot be saved, the token is invalid while this agent runs
            self.sessions.end_all_of(token.id)
            if ended := self._ended.pop(token.id, None):
                ended.set()
            await self._save(changed.note())
        return token

    def session_of(self, id_: str) -> Token:
        """The token of a session; raises BadTokenError."""
        session = self.sessions.get(id_)
        token = self.tokens.by_id(session.token) if session else None
        if token is None or not self.tokens.is_good(token):
            raise BadTokenError("the session is over; sign in again", "ended session")
        return token

    # Long requests, such as event streams, end with their token: the guard waits for this event.
    def ended(self, token: str) -> asyncio.Event:
        """An event that is set when the token is revoked."""
        return self._ended.setdefault(token, asyncio.Event())

    def is_good(self, id_: str) -> bool:
        token = self.tokens.by_id(id_)
        return token is not None and self.tokens.is_good(token)
