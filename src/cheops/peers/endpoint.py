"""Requests of other agents, from the socket to the engine without the web stack.

    POST /peer/heartbeat        a heartbeat, answered by one (prober.py)
    POST /peer/messages         messages of the other site's engine (links.py, intake.py)
    GET  /peer/files/HASH       a file of an operation (links.py)
    GET  /peer/identity/SITE    the certificates of a site (site_keys.py)
    POST /peer/renewal          a new certificate for the sender (renewal.py)
    POST /peer/show             the state of a resource in the local application
    POST /peer/verified         that the applications of a resource differ, or are equal again
    GET  /peer/replicants/ID    the sites of a replicated resource
    POST /peer/documents        documents of a resource, for a site whose disk has damaged its own

A sender is known by the certificate of its connection and by nothing else: tokens, cookies and roles are for clients.
With `security: none` any program on this machine may be any site, but not a web page in a browser.

`PeerService.handle(peer, kind, body)` answers one request, whatever it came by; `PeerEndpoint` is the HTTP side of it.
What a GET names in its path is the body of the request.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cheops.errors import CheopsError, ClientError, Fault
from cheops.peers import heartbeat, links
from cheops.peers.couchdb.requests import read_body
from cheops.peers.enrollment import Enrollment, Rejection, connection_rejection
from cheops.peers.intake import DocumentIntake, Engine
from cheops.peers.mesh import Mesh
from cheops.peers.prober import ForgedSenderError, Prober
from cheops.peers.renewal import RENEWAL_PATH
from cheops.peers.site_keys import SiteKeys
from cheops.security.refusals import REFUSED_STATUSES, RateLimiter, RefusalLog, reason_of
from cheops.store.codec import MAX_MESSAGE_BYTES
from cheops.store.files import FileReferences, FileStore
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.security.certificates import Identity


PREFIX = "/peer/"
MEMBERSHIP_FIELD = "member"  # of a refusal: the decision about the site that sent the request
_NAME_BYTES = 4_096  # far more than any name or hash
_MOST_RECORDED = 200  # invalid documents of one request in the audit log
_log = logging.getLogger(__name__)


class RequestKind(StrEnum):
    """The kinds of requests between agents; also the first part of the path below PREFIX."""

    HEARTBEAT = "heartbeat"
    MESSAGES = "messages"
    FILE = "files"
    IDENTITY = "identity"
    RENEWAL = "renewal"
    SHOW = "show"
    REPLICANT = "replicants"
    VERIFIED = "verified"
    DOCUMENTS = "documents"


class RequestForm(NamedTuple):
    """How a kind of request comes by HTTP."""

    method: str
    max_bytes: int  # of its body
    is_named: bool = False  # the path has one more part, which is the body


FORMS: Mapping[RequestKind, RequestForm] = {
    RequestKind.HEARTBEAT: RequestForm("POST", heartbeat.MAX_BYTES),
    RequestKind.MESSAGES: RequestForm("POST", MAX_MESSAGE_BYTES),
    RequestKind.FILE: RequestForm("GET", _NAME_BYTES, is_named=True),
    RequestKind.IDENTITY: RequestForm("GET", _NAME_BYTES, is_named=True),
    RequestKind.RENEWAL: RequestForm("POST", _NAME_BYTES),
    RequestKind.SHOW: RequestForm("POST", 1024 * 1024),
    RequestKind.REPLICANT: RequestForm("GET", _NAME_BYTES, is_named=True),
    RequestKind.VERIFIED: RequestForm("POST", 64 * 1024),
    RequestKind.DOCUMENTS: RequestForm("POST", 1024 * 1024),
}


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection."""

    site: str | None = None  # by its certificate; None with `security: none`
    identity: "Identity | None" = None


@dataclass(frozen=True, slots=True)
class PeerResponse:
    body: bytes = b""  # JSON
    status: int = 200
    file: Path | None = None  # instead of a body


Handler = Callable[[Peer, bytes], Awaitable[PeerResponse]]


class LocalSite(Protocol):
    """The parts of a site that requests of peers reach. `Node` has them."""

    mesh: Mesh
    prober: Prober
    intake: DocumentIntake
    enrollment: Enrollment
    files: FileStore
    file_references: FileReferences
    refusal_log: RefusalLog
    site_limiter: RateLimiter

    @property
    def engine(self) -> Engine: ...

    @property
    def site_keys(self) -> SiteKeys | None: ...


def json_body(content: object, status: int = 200) -> PeerResponse:
    return PeerResponse(msgspec.json.encode(content), status)


class PeerService:
    """Answers the requests of other agents. `others` adds the kinds that need more than this package has."""

    def __init__(self, site: LocalSite, others: Mapping[RequestKind, Handler]) -> None:
        self._site = site
        self._handlers: dict[RequestKind, Handler] = {
            RequestKind.HEARTBEAT: self._heartbeat,
            RequestKind.MESSAGES: self._messages,
            RequestKind.FILE: self._file,
            RequestKind.IDENTITY: self._identity,
            RequestKind.RENEWAL: self._renewal,
            **others,
        }

    async def handle(self, peer: Peer, kind: RequestKind, body: bytes) -> PeerResponse:
        """Raises CheopsError for what is refused."""
        return await self._handlers[kind](peer, body)

    async def _heartbeat(self, peer: Peer, body: bytes) -> PeerResponse:
        if peer.identity is not None and self._site.site_keys is not None:
            self._site.site_keys.note_shown(peer.identity)
        return PeerResponse(self._site.prober.answer(body, peer.site))

    async def _messages(self, peer: Peer, body: bytes) -> PeerResponse:
        is_large = len(body) > links.LARGE_BYTES
        sender, messages, refused = await asyncio.to_thread(links.unpack, body) if is_large else links.unpack(body)
        if peer.site not in (None, sender):
            raise ForgedSenderError(f"'{peer.site}' cannot send messages of '{printable(sender)}'")
        if peer.identity is not None and self._site.site_keys is not None:
            # Its signatures are about to be checked, so its certificate must be known first.
            await self._site.site_keys.add(peer.identity)
        for one in refused[:_MOST_RECORDED]:
            self._site.refusal_log.document(links.INVALID, sender, one.id or "a document", detail=one.reason)
        await self._site.intake.take(sender, messages)
        return PeerResponse(status=201)

    async def _file(self, peer: Peer, body: bytes) -> PeerResponse:
        hash_ = body.decode()
        path = self._site.files.path(hash_)
        if not path.exists():
            raise ClientError(f"the file {hash_[:12]}… is not here", status=404)
        if peer.site is not None:
            await self._check_file(peer.site, hash_)
        return PeerResponse(file=path)

    async def _check_file(self, peer: str, hash_: str) -> None:
        """A site gets the files of resources that it is, or was, involved in."""
        if not self._site.file_references.is_complete:
            raise CheopsError(
                "this site is still reading which files belong to which resources; try again",
                status=503,
                definite=False,
                fault=Fault.PEER,
            )
        for resource in self._site.file_references.users(hash_):
            history = (await self._site.engine.replica(resource)).history
            if peer in history.site_list or peer in history.ever_listed:
                return
        raise PeerRefusedError(f"no resource of {peer} has the file {hash_[:12]}…", "site not involved")

    async def _identity(self, _peer: Peer, body: bytes) -> PeerResponse:
        site_keys = self._site.site_keys
        note = await site_keys.note_of(body.decode()) if site_keys else None
        return json_body(note or {"certificates": []}, 200 if note else 404)

    async def _renewal(self, peer: Peer, _body: bytes) -> PeerResponse:
        if peer.identity is None:
            raise ClientError("a certificate is renewed only for the site that shows it")
        site_keys = self._site.site_keys
        newest_ms = await site_keys.newest_ms(peer.identity.site) if site_keys else 0
        return json_body(self._site.enrollment.renew(peer.identity, newest_ms))


class PeerRefusedError(ClientError):
    """A refused request. `reason` is the same for all refusals of its kind."""

    def __init__(self, message: str, reason: str, status: int = 403, wait_s: float | None = None) -> None:
        super().__init__(message, status=status, definite=wait_s is None, reason=reason)
        self.headers = {} if wait_s is None else {"Retry-After": str(max(1, round(wait_s + 0.5)))}


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

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith(PREFIX) or self._is_client(scope):
            await self._web(scope, receive, send)
            return
        try:
            response = await self._response(scope, receive)
        except ClientDisconnect:
            return
        except CheopsError as error:
            response = self._refuse(scope, error)
        except Exception:
            _log.exception("%s %s failed", scope["method"], scope["path"])
            response = problem(500, "this is a bug in Cheops; the agent's log has the details")
        await response(scope, receive, send)

    async def _response(self, scope: Scope, receive: Receive) -> Response:
        # The body comes last: a sender that is unknown or too fast must not make this site read 64 MiB.
        rejection = connection_rejection(self._site.mesh, scope.get("state", {}), time.time())
        # Whether a certificate that has ended gets its renewal is decided by `check_grace`.
        if rejection and not (rejection.is_renewable and _is_renewal(scope)):
            return self._reject(scope, rejection)
        peer = self._peer(scope)
        if peer.site is not None:
            _take(self._site.site_limiter, peer.site)
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
        if error.status in REFUSED_STATUSES:
            site = scope.get("state", {}).get("peer") or ""
            first = scope["path"].removeprefix(PREFIX).partition("/")[0]
            # Only known names: the audit log keeps refusals apart by this text, and a sender must not choose it.
            what = f"{PREFIX}{first if first in set(RequestKind) else '…'}"
            log = self._site.refusal_log
            log.request(reason_of(error), site, _address(scope), str(error), error.status, what)
        response = problem(error.status, str(error), fault=error.fault.value, definite=error.definite)
        response.headers.update(getattr(error, "headers", {}))
        return response


def rejection_response(rejection: Rejection) -> Response:
    """The response to a site that is refused. A forgotten site learns of the decision by it."""
    about = rejection.member
    members = {MEMBERSHIP_FIELD: about} if about else {}
    return problem(403, rejection.detail, fault="peer", definite=True, **members)


def problem(status: int, detail: str, **members: Any) -> Response:
    """Problem details (RFC 9457)."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **members}
    return Response(msgspec.json.encode(body), status, media_type="application/problem+json")


def _take(limiter: RateLimiter, sender: str) -> None:
    if wait_s := limiter.take(sender):
        raise PeerRefusedError("too many requests; wait before the next", "rate", 429, wait_s)


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
