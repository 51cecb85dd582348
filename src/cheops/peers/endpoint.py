"""Requests of other agents by HTTP: to open a channel, and before there is one.

    GET  /peer/channel          opens a channel (upgrade.py), by which agents send each other everything else
    POST /peer/renewal          a new certificate for a site whose own has ended: it gets no channel
    POST /peer/heartbeat        a heartbeat at an address where another site answers than the one that was meant

All other kinds of requests (requests.py) are answered here in the same way, from the socket to the engine without the
web stack. What a GET names in its path is the body of the request.

A sender is known by the certificate of its connection and by nothing else: tokens, cookies and roles are for clients.
With `security: none` any program on this machine may be any site, but not a web page in a browser.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cheops.errors import CheopsError, ClientError
from cheops.peers.couchdb.requests import read_body
from cheops.peers.enrollment import Rejection, connection_rejection
from cheops.peers.prober import PROBE_PATH
from cheops.peers.renewal import RENEWAL_PATH
from cheops.peers.requests import CHANNEL_PATH, FORMS, PREFIX, Peer, PeerRefusedError, RequestKind, problem_body
from cheops.peers.service import LocalSite, PeerService
from cheops.peers.upgrade import PROTOCOL, names_in, response_head
from cheops.text import printable, shortened

MEMBERSHIP_FIELD = "member"  # of a refusal: the decision about the site that sent the request
TAKE_OVER = "take_over"  # of the state of a connection: gives it to another protocol, after these bytes
# Everything else goes through channels, which bound what one site makes this one read and keep.
_BY_HTTP = frozenset((CHANNEL_PATH, f"/{PROBE_PATH}", f"/{RENEWAL_PATH}"))
_MOST_OF_ONE = 4  # requests of other kinds at a time, of one site: 64 MiB each, and a response that it may not read
_log = logging.getLogger(__name__)


CheckOpen = Callable[[Scope], None]  # raises a CheopsError for the request of a web page; for `security: none`


class PeerEndpoint:
    """ASGI: answers sites below PREFIX, and passes everything else to the web side.

    The web side also refuses clients below PREFIX: it knows their tokens, limits them, and names them in the audit log.
    """

    def __init__(self, site: LocalSite, service: PeerService, check_open: CheckOpen | None, web: ASGIApp) -> None:
        """`check_open` is None with security on."""
        self._site = site
        self._service = service
        self._check_open = check_open
        self._web = web
        self._open: Counter[str] = Counter()  # requests that channels are for, by site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX) or self._is_client(scope):
            await self._web(scope, receive, send)
        elif scope["path"] in _BY_HTTP:
            await self._serve(scope, receive, send)
        else:
            site = scope.get("state", {}).get("peer") or ""
            self._open[site] += 1
            try:
                await self._serve(scope, receive, send)
            finally:
                self._open[site] -= 1
                if not self._open[site]:
                    del self._open[site]

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if scope["path"] == CHANNEL_PATH:
                response = self._open_channel(scope)
            else:
                response = await self._response(scope, receive)
        except ClientDisconnect:
            return
        except CheopsError as error:
            response = self._refuse(scope, error)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            response = problem(500, "this is a bug in Cheops; the agent's log has the details")
        if response is not None:
            await response(scope, receive, send)

    def _open_channel(self, scope: Scope) -> Response | None:
        """Turn a connection into a channel; None if it is one now."""
        if rejection := connection_rejection(self._site.mesh, scope.get("state", {}), time.time()):
            return self._reject(scope, rejection)
        peer, headers = self._peer(scope), Headers(scope=scope)
        if peer.site is not None:
            self._service.take_turn(peer.site)
        if scope["method"] != "GET" or headers.get("upgrade") != PROTOCOL or TAKE_OVER not in scope["state"]:
            response = problem(426, f"this address opens channels between agents; use 'Upgrade: {PROTOCOL}'")
            response.headers.update({"Upgrade": PROTOCOL, "Connection": "Upgrade"})
            return response
        opener, wanted, via = names_in(headers)
        own = self._site.name
        if peer.site not in (None, opener):
            raise PeerRefusedError(f"'{peer.site}' cannot open the channel of another site", "forged sender")
        if wanted != own or opener == own or not opener:
            # No refusal to count: an address may lead to another site than it did.
            about = f"this is {own}, not {printable(shortened(wanted))}" if wanted != own else f"this is {own}, too"
            return problem(421, about)
        channel = self._site.channels.accept(opener, peer, _address(scope), printable(shortened(via)))
        scope["state"][TAKE_OVER](channel, response_head(own))
        self._site.channels.accepted(channel)
        return None

    async def _response(self, scope: Scope, receive: Receive) -> Response:
        # The body comes last: a sender that is unknown or too fast must not make this site read 64 MiB.
        rejection = connection_rejection(self._site.mesh, scope.get("state", {}), time.time())
        # Whether a certificate that has ended gets its renewal is decided by `check_grace`.
        if rejection and not (rejection.is_renewable and _is_renewal(scope)):
            return self._reject(scope, rejection)
        peer = self._peer(scope)
        if peer.site is not None:
            self._service.take_turn(peer.site)
            if self._open[peer.site] > _MOST_OF_ONE:
                raise PeerRefusedError("too many requests at a time; use a channel", "rate", 429, 1.0)
        kind, name = _target(scope)
        form = FORMS[kind]
        body = name.encode() if form.is_named else await read_body(Request(scope, receive), form.max_bytes)
        response = await self._service.handle(peer, kind, body)
        if response.file is not None:
            return FileResponse(response.file)  # supports ranges, so that a broken transfer can continue
        return Response(response.body, response.status, media_type="application/json")

    def _is_client(self, scope: Scope) -> bool:
        """Whether a request comes from anything but a site, as far as its connection shows."""
        state = scope.get("state", {})
        if state.get("peer") or connection_rejection(self._site.mesh, state, time.time()):
            return False  # a site; perhaps one that is refused
        has_token = any(name == b"authorization" for name, _ in scope["headers"])
        return self._check_open is None or has_token or state.get("local_uid") is not None

    def _peer(self, scope: Scope) -> Peer:
        """The sender. Without certificates it may be any program of this machine, but not a web page."""
        state = scope.get("state", {})
        if site := state.get("peer"):
            return Peer(site, state.get("certificate"))
        if self._check_open is not None:
            self._check_open(scope)
        return Peer()

    def _reject(self, scope: Scope, rejection: Rejection) -> Response:
        self._site.refusal_log.request(rejection.reason, rejection.site, _address(scope), rejection.detail)
        return rejection_response(rejection)

    def _refuse(self, scope: Scope, error: CheopsError) -> Response:
        site = scope.get("state", {}).get("peer") or ""
        first = scope["path"].removeprefix(PREFIX).partition("/")[0]
        self._service.record_refusal(error, site, _address(scope), first)
        response = problem(error.status, str(error), fault=error.fault.value, definite=error.definite)
        response.headers.update(getattr(error, "headers", {}))
        return response


def rejection_response(rejection: Rejection) -> Response:
    """The response to a site that is refused. A forgotten site learns of the decision by it."""
    about = rejection.member
    members = {MEMBERSHIP_FIELD: about} if about else {}
    return problem(403, rejection.detail, fault="peer", definite=True, **members)


def problem(status: int, detail: str, **members: Any) -> Response:
    return Response(problem_body(status, detail, **members), status, media_type="application/problem+json")


def _target(scope: Scope) -> tuple[RequestKind, str]:
    first, _, name = scope["path"].removeprefix(PREFIX).partition("/")
    if first not in set(RequestKind):
        raise ClientError("agents have no such request", status=404)
    kind = RequestKind(first)
    if bool(name) != FORMS[kind].is_named:
        raise ClientError("agents have no such request", status=404)
    if scope["method"] != FORMS[kind].method:
        raise ClientError(f"only {FORMS[kind].method} is allowed here", status=405)
    return kind, name


def _is_renewal(scope: Scope) -> bool:
    return (scope["method"], scope["path"]) == ("POST", f"/{RENEWAL_PATH}")


def _address(scope: Scope) -> str:
    client = scope.get("client")
    return "unix" if scope.get("state", {}).get("local_uid") is not None else str(client[0]) if client else ""
