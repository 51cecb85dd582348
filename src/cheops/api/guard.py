"""Middleware before all routes: authenticates the client, checks its right to the route, and records the outcome.

The right is checked behind the router, by the route that answers: so no second reading of the path can differ from
the router's. A route without a right cannot be built.

The audit log gets all changes and all refusals. Of their content it gets only names: a resource, a type, an operation.
"""

import asyncio
import time
from collections.abc import Callable, Iterable
from urllib.parse import unquote

from msgspec import Struct
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cheops.api.authenticator import SAFE, Authenticator, RequestHeaders, RequestInfo, UnauthorizedError
from cheops.api.endpoints.declaration import Right
from cheops.api.permissions import ForbiddenError, check_resource, principal_of, require_role, right_to
from cheops.api.request import error_response, problem
from cheops.api.submission import HOP_HEADER, RequestError, check_names
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.endpoint import rejection_response
from cheops.peers.enrollment import FORGED_SENDER, connection_rejection
from cheops.security.audit import AuditEntry, audit_text
from cheops.security.principal import NOBODY, Kind, Principal
from cheops.security.refusals import REFUSED_STATUSES, reason_of
from cheops.security.tokens import BadTokenError, wall_ms
from cheops.text import printable, shortened

# -- what the audit log and the counters of refusals record ----------------------------------------------------


_OPERATION = b"cheops-operation"


class AuditRecord(Struct):
    """One request, as the audit log describes it. The guard creates it; the route and the handler complete it."""

    method: str
    source: str
    who: Principal = NOBODY
    route: str = ""  # the template of the path, as in the table of rights
    writes: bool = False
    resource: str = ""
    operation: str = ""
    reason: str = ""  # why it is refused: a fixed text for each kind of refusal
    is_counted: bool = False  # the refusal is in the counters already
    is_recorded: bool = False


def record_outcome(node: Node, record: AuditRecord, status: int, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
    """Record how a request ended, once."""
    if record.is_recorded:
        return
    record.is_recorded = True
    if status in REFUSED_STATUSES:
        if not record.is_counted:
            who = str(record.who) if record.who.name else record.source
            node.refusals.count(record.reason or f"status {status}", who)
        node.audit.refused(_entry(node, record, status, "refused"))
    elif record.writes:
        record.operation = _operation(headers)
        outcome = "done" if status < 400 else "failed" if status >= 500 else "refused"
        node.audit.note(_entry(node, record, status, outcome))


def _entry(node: Node, record: AuditRecord, status: int, outcome: str) -> AuditEntry:
    # Only from memory: a refused request must not make the agent load a resource from the store.
    replica = node.pump.site.replicas.get(record.resource) if record.resource else None
    return AuditEntry(
        at=node.audit.now(),
        who=audit_text(str(record.who)),
        source=record.source,
        what=f"{record.method} {record.route or 'unknown path'}",
        resource=audit_text(record.resource),
        type=replica.type.name if replica else "",
        operation=record.operation,
        outcome=outcome,
        status=status,
        reason=record.reason,
    )


def _operation(headers: Iterable[tuple[bytes, bytes]]) -> str:
    return next((audit_text(unquote(value.decode("latin-1"))) for name, value in headers if name == _OPERATION), "")


# -- connections and tokens ----------------------------------------------------------------------------------------


class ConnectionGuard:
    """Before the whole web side: refuses sites that may not connect, and requests that name a false sender."""

    def __init__(self, node: Node, app: ASGIApp) -> None:
        self._node = node
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._node.keyring and (refusal := self._refusal(scope)):
            await refusal(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        state, client = scope.get("state", {}), scope.get("client")
        address, log = str(client[0]) if client else "", self._node.refusal_log
        if rejection := connection_rejection(self._node.mesh, state, time.time()):
            log.request(rejection.reason, rejection.site, address, rejection.detail)
            return rejection_response(rejection)
        # A client that sets this header would stop the forwarding of its request, in the name of a site.
        hop = Headers(scope=scope).get(HOP_HEADER)
        if hop is not None and unquote(hop) != state.get("peer"):
            log.request(FORGED_SENDER, state.get("peer") or "", address, f"{HOP_HEADER}: {hop}")
            name = printable(shortened(unquote(hop)))
            return problem(403, f"only '{name}' itself, with its certificate, may forward requests in its name")
        return None


class Guard:
    """Middleware. Everything below finds in `state`: `principal`, `audit_record` and `authenticator`."""

    def __init__(self, app: ASGIApp, node: Node) -> None:
        self._app = app
        self._node = node
        self._authenticator = Authenticator(node)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = scope.setdefault("state", {})
        request = request_info(scope)
        record = AuditRecord(request.method, request.address)
        state.update(audit_record=record, authenticator=self._authenticator)
        response = _ResponseWatch(self._node, record, scope, send)
        try:
            record.who = state["principal"] = self._authenticator.identify(request)
        except CheopsError as error:
            record.reason = reason_of(error)
            await error_response(error)(scope, receive, response.send)
            return
        try:
            if record.who.token:
                await self._serve_while_valid(record.who, scope, receive, response)
            else:
                await self._app(scope, receive, response.send)
        except BaseException:
            record_outcome(self._node, record, 500)
            raise

    async def _serve_while_valid(
        self, who: Principal, scope: Scope, receive: Receive, response: "_ResponseWatch"
    ) -> None:
        """A stream ends when its token is revoked or expires."""
        ended = self._node.accounts.ended(who.token)
        token = self._node.accounts.tokens.by_id(who.token)
        ends_ms = token.ends_ms if token else None

        is_read = False

        async def receive_or_end() -> Message:
            """After the body only streams still receive, to notice that the client has left. The end of the token
            looks the same to them."""
            nonlocal is_read
            if not is_read:
                first = await receive()
                is_read = not first.get("more_body")
                return first
            # Whichever comes first: the client leaves, the token is revoked, or it expires (the timeout).
            waiting = [asyncio.ensure_future(receive()), asyncio.ensure_future(ended.wait())]
            left_s = None if ends_ms is None else max(0.0, (ends_ms - wall_ms()) / 1000)
            try:
                await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in waiting:
                    one.cancel()
            message: Message = waiting[0].result() if waiting[0].done() else {"type": "http.disconnect"}  # type: ignore[assignment]
            return message

        response.is_good = lambda: self._node.accounts.is_good(who.token)
        await self._app(scope, receive_or_end, response.send)
        await response.finish()


class _ResponseWatch:
    """Passes a response on, records its outcome, and withholds it if the token has ended meanwhile."""

    def __init__(self, node: Node, record: AuditRecord, scope: Scope, send: Send) -> None:
        self.is_begun = False
        self.is_good: Callable[[], bool] = lambda: True
        self._is_over = False
        self._is_withheld = False
        self._node = node
        self._record = record
        self._scope = scope
        self._send = send

    async def send(self, message: Message) -> None:
        if self._is_withheld:
            return
        if message["type"] == "http.response.start":
            # Only reads are withheld. A change has happened by now, and its client must learn the outcome.
            if self._scope["method"] in SAFE and not self.is_good():
                await self._withhold()
                return
            self.is_begun = True
            record_outcome(self._node, self._record, message["status"], message["headers"])
        elif not message.get("more_body"):
            self._is_over = True
        await self._send(message)

    async def _withhold(self) -> None:
        """Respond as if the token, which was revoked meanwhile, had been wrong from the start."""
        self._is_withheld = self.is_begun = True
        self._record.reason = "unknown token"
        record_outcome(self._node, self._record, 401)
        refusal = error_response(BadTokenError("the token was revoked, or has expired", "unknown token"))
        await self._send({"type": "http.response.start", "status": 401, "headers": refusal.raw_headers})
        await self._send({"type": "http.response.body", "body": bytes(refusal.body)})

    async def finish(self) -> None:
        """End a stream properly that the end of its token has cut short."""
        if self.is_begun and not self._is_over and not self._is_withheld:
            await self.send({"type": "http.response.body", "body": b"", "more_body": False})


def request_info(scope: Scope) -> RequestInfo:
    headers = RequestHeaders(scope["headers"])
    state = scope.get("state", {})
    client = scope.get("client")
    address = "unix" if state.get("local_uid") is not None else client[0] if client else "?"
    return RequestInfo(scope["method"], scope.get("scheme", "http"), headers, state, address)


# -- permission ------------------------------------------------------------------------------------------


def guarded(node: Node, routes: Iterable[BaseRoute], prefix: str = "") -> list[BaseRoute]:
    """The same routes, each behind the right that it needs; raises CheopsError."""
    checked = list(routes)
    for route in checked:
        if isinstance(route, Route):
            template = f"{prefix}{route.path}"
            for method in route.methods or ():
                if right_to(method, template) is None:
                    raise CheopsError(f"{method} {template} has no entry in the table of rights")
            route.app = _CheckedRoute(node, template, route.app)
        elif isinstance(route, Mount) and route.routes:
            guarded(node, route.routes, f"{prefix}{route.path}")
    return checked


class _CheckedRoute:
    """The application of one route, behind the right that the route needs."""

    def __init__(self, node: Node, template: str, app: ASGIApp) -> None:
        self._node = node
        self._template = template
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await permit(self._node, Request(scope), self._template)
        await self._app(scope, receive, send)


async def permit(node: Node, request: Request, template: str) -> None:
    """Check that the client may use a route; raises UnauthorizedError or ForbiddenError."""
    right, who = right_to(request.method, template), principal_of(request)
    record: AuditRecord | None = request.scope.get("state", {}).get("audit_record")
    if record:
        record.route = template
        record.writes = right is not None and right.writes
        record.resource = _resource(request, right) if right and right.resource else ""
    try:
        await _check(node, template, right, who, record.resource if record else "")
    except (UnauthorizedError, ForbiddenError) as error:
        if record:
            record.reason = error.reason
        raise


async def _check(node: Node, template: str, right: Right | None, who: Principal, resource: str) -> None:
    if right is None:
        raise ForbiddenError("no client may use this", "no such right")
    if right.is_open:
        return
    # A setting of the site, so the table of rights cannot have it.
    if template == "/metrics" and node.config.clients.open_metrics:
        return
    if who.kind is Kind.NOBODY:
        raise UnauthorizedError(
            "show a token of this site: 'Authorization: Bearer cheops_…' (CHEOPS_TOKEN or --token-file); "
            "'cheops token create' on the site's own machine makes one"
        )
    if who.kind is Kind.PEER:
        _check_site(right, who)
    elif who.kind is Kind.OPEN:
        pass  # any program on this machine, within the limits that a forwarding site sends along
    elif right.role is None:
        raise ForbiddenError("this is for the agents of other sites, by their certificates", "not a site")
    else:
        require_role(who, right.role, "this")
        if right.whole and who.is_limited:
            raise ForbiddenError(
                f"this is about the site as a whole, and the token '{who.name}' is limited to a part of it",
                "beyond the token's limits",
            )
    if resource:
        await check_resource(node, who, resource, writes=right.writes)


def _check_site(right: Right, who: Principal) -> None:
    if not right.sites:
        raise ForbiddenError(
            f"{who.name} is a site, and this is for people and programs, with a token", "not for sites"
        )


def _resource(request: Request, right: Right) -> str:
    """The resource that the path names; empty if the name is invalid, which the route itself reports."""
    text = str(request.path_params.get(right.resource, ""))
    resource = unquote(text) if request.scope["path"].startswith("/api/") else text
    try:
        check_names(resource)
    except RequestError:
        return ""
    return resource
