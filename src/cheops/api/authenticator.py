"""Authenticates a request: from its connection and headers to a principal, with limits on how often.

In this order, the first that applies decides: the certificate of another site on the connection, a token, a browser's
session, the user at the other end of the Unix socket. With `security: none` every program on this machine is accepted,
unless a web page of another origin makes a browser send the request.

A site that forwards a request sends the limits of the client's token along. They can only narrow what it may do.
"""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote, unquote, urlsplit

import msgspec

from cheops.api.permissions import ForbiddenError
from cheops.config.address import address_of_url
from cheops.errors import ClientError
from cheops.node.node import Node
from cheops.security.principal import EVERYWHERE, NOBODY, OPEN, Kind, Principal, Reach, local, narrowed, peer
from cheops.security.refusals import RateLimiter, address_key
from cheops.security.tokens import MAX_SECRET, BadTokenError, Token

LIMITS_HEADER = "Cheops-Limits"
COOKIE = "__Host-cheops"  # browsers accept this prefix only with Secure, and from this very host
CSRF_HEADER = b"cheops-session"  # a page of another origin cannot make a browser send it
SAFE = frozenset(("GET", "HEAD", "OPTIONS"))
_MAX_LIMITS_BYTES = 64 * 1024
_BAD_RATE, _BAD_BURST = 1.0, 10.0  # wrong tokens from one address: per second, and at once
_BEARER = "bearer "
_LIMITS = LIMITS_HEADER.lower().encode()


class _LimitsJson(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    types: list[str] | None = None
    services: list[str] | None = None
    sites: list[str] | None = None


def limits_header(reach: Reach) -> dict[str, str]:
    """The header that carries the limits of a client's token; none for a client without limits."""
    if reach.is_whole:
        return {}
    form = _LimitsJson(*(None if one is None else sorted(one) for one in (reach.types, reach.services, reach.sites)))
    return {LIMITS_HEADER: quote(msgspec.json.encode(form), safe="")}


def read_limits(header: str | None) -> Reach:
    if header is None:
        return EVERYWHERE
    try:
        form = msgspec.json.decode(unquote(header[:_MAX_LIMITS_BYTES]), type=_LimitsJson)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ClientError(f"the header {LIMITS_HEADER} cannot be read") from None
    return Reach(*(None if one is None else frozenset(one) for one in (form.types, form.services, form.sites)))


class UnauthorizedError(ClientError):
    """The request shows no token."""

    status = 401
    reason = "no token"


class TooManyRequestsError(ClientError):
    """Too many requests, or too many wrong tokens."""

    status = 429
    reason = "rate"
    definite = False

    def __init__(self, message: str, wait_s: float) -> None:
        super().__init__(message)
        self.headers = {"Retry-After": str(max(1, round(wait_s + 0.5)))}


class RequestHeaders:
    """The headers of a request. Only those that are read are decoded."""

    def __init__(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self._headers = dict(headers)

    def get(self, name: bytes, default: str | None = None) -> str | None:
        value = self._headers.get(name)
        return default if value is None else value.decode("latin-1")


class RequestInfo(msgspec.Struct, frozen=True):
    """The parts of a request that identify its sender."""

    method: str
    scheme: str
    headers: RequestHeaders
    state: Mapping[str, Any]
    address: str  # where it comes from


class Authenticator:
    """Finds the principal of each request to one node, and limits requests and wrong tokens."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._is_open = not node.config.security.is_on
        self._uids = (0, os.getuid())  # root and the user of the agent administer the site
        self._hosts = frozenset((address_of_url(node.config.advertise).host, node.config.listen.host, "localhost"))
        self._clients = node.client_limiter
        self._sites = node.site_limiter
        self._bad = RateLimiter(_BAD_RATE, _BAD_BURST, time.monotonic)

    def identify(self, request: RequestInfo) -> Principal:
        """The principal of a request; raises BadTokenError, ForbiddenError or TooManyRequestsError."""
        principal = self._principal(request)
        self._check_rate(principal, request.address)
        return principal

    def _principal(self, request: RequestInfo) -> Principal:
        # First: a site that forwards a request acts as itself, and cannot use a token of ours to be more.
        if site := request.state.get("peer"):
            return self._narrowed(peer(site), request)
        if (authorization := request.headers.get(b"authorization")) is not None:
            return self.check_token(_secret(authorization), request.address).principal
        if (id_ := _cookie(request.headers.get(b"cookie") or "")) and (
            principal := self._session_principal(id_, request)
        ):
            return principal
        uid = request.state.get("local_uid")
        if uid is not None:
            return local(uid) if uid in self._uids else NOBODY
        if self._is_open:
            self.check_browser(request)
            return self._narrowed(OPEN, request)
        return NOBODY

    @staticmethod
    def _narrowed(who: Principal, request: RequestInfo) -> Principal:
        """To the limits of the client whose request a site forwards."""
        header = request.headers.get(_LIMITS)
        return who if header is None else narrowed(who, read_limits(header))

    def check_token(self, secret: str, address: str) -> Token:
        """The token with this secret; raises BadTokenError, or TooManyRequestsError after many wrong ones. A right
        token is always accepted: clients behind the same address must not suffer from one that guesses."""
        try:
            return self._node.accounts.tokens.with_secret(secret)
        except BadTokenError:
            self.count_failure(address)
            raise

    def count_failure(self, address: str) -> None:
        """Raises TooManyRequestsError if this address sends too many wrong tokens."""
        if wait_s := self._bad.take(address):
            raise TooManyRequestsError("too many wrong tokens from this address; wait before the next", wait_s)

    def _session_principal(self, id_: str, request: RequestInfo) -> Principal | None:
        """None if the session is over: a browser keeps sending the cookie, and its user must be able to sign in again.
        The cookie may also belong to another agent on the same machine."""
        try:
            token = self._node.accounts.session_of(id_)
        except BadTokenError:
            # Without security the cookie of another agent on this machine is no attempt to guess one.
            if not self._is_open:
                self.count_failure(request.address)
            return None
        if request.method not in SAFE:
            self.check_origin(request, is_required=True)
            if request.headers.get(CSRF_HEADER) is None:
                raise ForbiddenError(
                    "a change by a browser's session needs the header 'Cheops-Session: 1', which only pages "
                    "of this agent can send",
                    "cross-site request",
                )
        return replace(token.principal, by_cookie=True)

    def _check_rate(self, who: Principal, address: str) -> None:
        if who.kind in (Kind.OPEN, Kind.LOCAL):
            return
        buckets = self._sites if who.kind is Kind.PEER else self._clients
        key = {Kind.TOKEN: f"token {who.token}", Kind.PEER: who.name}.get(who.kind, address_key(address))
        if wait_s := buckets.take(key):
            raise TooManyRequestsError("too many requests; wait before the next", wait_s)

    # -- browsers ------------------------------------------------------------------------------------------

    def check_origin(self, request: RequestInfo, *, is_required: bool) -> None:
        """Check that a page of this agent made the browser send the request; raises ForbiddenError."""
        origin = request.headers.get(b"origin")
        if origin is None and not is_required:
            return
        if origin != f"{request.scheme}://{request.headers.get(b'host')}":
            raise ForbiddenError(
                "a web page of another origin made the browser send this: only pages of this agent may",
                "cross-site request",
            )

    def check_browser(self, request: RequestInfo) -> None:
        """With `security: none` a foreign web page could use a browser on this machine: by a form, or by a host name of
        its own that resolves to this machine (DNS rebinding)."""
        self.check_origin(request, is_required=False)
        if request.headers.get(b"sec-fetch-site") not in (None, "none", "same-origin"):
            raise ForbiddenError("a web page of another site made the browser send this", "cross-site request")
        host = request.headers.get(b"host") or ""
        if not _is_own_host(host, self._hosts):
            raise ForbiddenError(
                "'security: none' answers only under this machine's addresses and 'localhost'",
                "foreign host name",
            )


def _secret(authorization: str) -> str:
    if authorization[: len(_BEARER)].lower() != _BEARER or len(authorization) > MAX_SECRET:
        return ""
    return authorization[len(_BEARER) :].strip()


def _cookie(header: str) -> str:
    if COOKIE not in header:
        return ""
    try:
        cookie = SimpleCookie(header).get(COOKIE)
    except CookieError:
        return ""
    return cookie.value if cookie and len(cookie.value) <= MAX_SECRET else ""


@lru_cache(256)
def _is_own_host(header: str, hosts: frozenset[str]) -> bool:
    """Whether a `Host` header names this machine. A request without one does not come from a browser."""
    try:
        host = urlsplit(f"//{header}").hostname or "localhost"
    except ValueError:
        return False
    return host in hosts or _is_ip(host)


def _is_ip(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
