"""Requests of sessions: those that open one, use it, complete it and abort it.

opens       runs at this site. The handle in its response is recorded, with the sites of the scope
uses        runs at this site, and is recorded
completes   becomes one operation of the resource that the rule names. At this site it is the client's own request;
            other sites repeat the whole session, with a handle of their own (session_replay.py)
aborts      runs at this site; the record is deleted

While a session is open, nothing of it is replicated. A session is known only at the site where it was opened, and at
the one that sent the opening there. A request with `&` whose handle is not known is refused: it would change the
service at one site only.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import parse_qsl, unquote

from msgspec.structs import replace

from cheops.backends.http.changes import ChangeHandler
from cheops.backends.http.ids import meta_id_of
from cheops.backends.http.interpretation import Meaning, failure, id_at, meaning_of, paths_at
from cheops.backends.http.locations import Locations, nearest_first
from cheops.backends.http.paths import canonical, joined, split_target
from cheops.backends.http.payload import Request, end_to_end
from cheops.backends.http.reads import ReadHandler
from cheops.backends.http.request import Target
from cheops.backends.http.secrets import without_secrets
from cheops.backends.http.sender import read_pieces
from cheops.backends.http.session_content import content_of, head_of
from cheops.backends.http.sessions import FOLDER, Opening, OpenSessions, Session, Step
from cheops.backends.http.spool import write_body
from cheops.backends.http.translation import iterate_body
from cheops.config.request_rules import SAFE_METHODS
from cheops.config.service_rules import Rule, references
from cheops.config.services import ServiceConfig
from cheops.config.session_rules import SessionRole, SessionStep
from cheops.errors import CheopsError, ClientError
from cheops.gateway.headers import RequestHead, first
from cheops.gateway.interfaces import IncomingRequest, Response, UpstreamError, close_body
from cheops.node.node import Node
from cheops.scope.route import Replicas
from cheops.text import in_words, printable, shortened

_MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # of a request that opens or completes a session, and of the response
_ACCEPTED = 202


class HeldRequest:
    """A request whose body was read before; implements `IncomingRequest`."""

    def __init__(self, incoming: IncomingRequest, head: RequestHead, body: bytes | Path, size: int) -> None:
        self.head = head
        self.peer = incoming.peer
        self.forwarding = incoming.forwarding
        self.is_forwarded = incoming.is_forwarded
        self.size: int | None = size
        self.held = body

    async def body(self) -> AsyncIterator[bytes]:
        if isinstance(self.held, Path):
            async for piece in read_pieces(self.held):
                yield piece
        elif self.held:
            yield self.held


class CompleteSession(HeldRequest):
    """The request that completes a session, with the whole of it as its body."""

    def __init__(self, incoming: IncomingRequest, head: bytes, bodies: list[bytes | Path]) -> None:
        super().__init__(incoming, incoming.head, b"", 1)
        self.size = None
        self._parts = head, bodies

    def body(self) -> AsyncIterator[bytes]:
        return content_of(*self._parts)


class SessionHandler:
    """Follows the sessions of the clients of this site."""

    def __init__(self, node: Node, reads: ReadHandler, changes: ChangeHandler, locations: Locations) -> None:
        self._node = node
        self._reads = reads
        self._changes = changes
        self._locations = locations
        self._sessions = OpenSessions(node.config.data / FOLDER, node.files)

    async def handle(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, rule: Rule, values: dict[str, str]
    ) -> Response:
        """Raises ClientError, UpstreamError. `rule` has a place in a session."""
        assert rule.step is not None  # noqa: S101 - see above
        if rule.step.role is SessionRole.OPENS:
            return await self._open(service, incoming, route, rule, values)
        session = self._sessions.find(service, rule.step.session, _handle(rule, values))
        if session is None:
            return await self._without_session(service, incoming, route, rule)
        if session.opening.site != self._node.name:
            return await self._elsewhere(service, incoming, session, rule)
        return await self._in_session(service, incoming, route, session, rule)

    def knows(self, service: str, rule: Rule, values: dict[str, str]) -> bool:
        """Whether a request has the handle of a session that is open. Raises ClientError for one that has expired."""
        if rule.step is None or rule.step.session not in values:
            return False
        return self._sessions.find(service, rule.step.session, _handle(rule, values)) is not None

    async def _in_session(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, session: Session, rule: Rule
    ) -> Response:
        """A request of a session that is open here."""
        assert rule.step is not None  # noqa: S101 - its caller has looked
        if route is not None and set(route.sites) != set(session.opening.sites):
            raise ClientError(
                f"this session was opened for {in_words(session.opening.sites)}, and the scope of this request is "
                f"{' & '.join(route.sites)}: all requests of a session have the same sites",
                status=409,
            )
        if incoming.head.method in SAFE_METHODS:
            return await self._reads.local(service, incoming.head, incoming)
        if rule.step.role is SessionRole.USES:
            return await self._use(service, incoming, session, rule.step)
        if rule.step.role is SessionRole.COMPLETES:
            return await self._complete(service, incoming, session, rule)
        response = await self._reads.local(service, incoming.head, incoming)
        if 200 <= response.status < 300:  # services answer 404 to clients that may not know of the session, too
            await self._sessions.close(session)
        return response

    # -- opening -------------------------------------------------------------------------------------------

    async def _open(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, rule: Rule, values: dict[str, str]
    ) -> Response:
        sites = route.sites if route else await self._sites_of_resource(service, rule, values)
        if not sites:
            return await self._reads.local(service, incoming.head, incoming)
        assert rule.step is not None  # noqa: S101 - its caller has looked
        head = _without_members(incoming.head, rule.step)
        self._changes.check(service, head, None)
        if self._node.name not in sites:
            return await self._open_elsewhere(service, incoming, sites, rule)
        body = await self._message(service, incoming)
        response = await self._reads.local(service, head, HeldRequest(incoming, head, body, len(body)))
        if not 200 <= response.status < 300:
            return response
        response = await _whole(response)
        handle = _handle_in(rule.step, response, service)
        recorded = self._recorded(service, head, rule.step, len(body))
        await self._sessions.open(
            Opening(
                service=service,
                name=rule.step.session,
                handle=handle,
                sites=sites,
                site=self._node.name,
                until_s=time.time() + self._config(service).replication.session_s,
                request=recorded,
                body=body,
            )
        )
        return response

    async def _sites_of_resource(self, service: str, rule: Rule, values: dict[str, str]) -> tuple[str, ...]:
        """The sites of what the session will change, if that is replicated and the opening says what it is."""
        assert rule.step is not None  # noqa: S101 - its caller has looked
        for other in self._config(service).replication.rules:
            if other.step is None or other.step.session != rule.step.session or not other.of:
                continue
            if all(one in values for one in references(other.of)):
                path = paths_at(rule, other.of, values, (), "", None)[0]
                if sites := await self._locations.known_here(meta_id_of("path", service, path)):
                    return sites
        return ()

    async def _open_elsewhere(
        self, service: str, incoming: IncomingRequest, sites: tuple[str, ...], rule: Rule
    ) -> Response:
        """At the nearest site of the scope; later requests of the session go to the same one."""
        assert rule.step is not None  # noqa: S101 - its caller has looked
        site = nearest_first(self._node, sites)[0]
        response = await self._changes.forward(service, incoming, (site,))
        if not 200 <= response.status < 300:
            return response
        response = await _whole(response)
        until_s = time.time() + self._config(service).replication.session_s
        handle = _handle_in(rule.step, response, service)
        await self._sessions.open(
            Opening(service=service, name=rule.step.session, handle=handle, sites=sites, site=site, until_s=until_s)
        )
        return response

    # -- the requests of an open session -------------------------------------------------------------------

    async def _without_session(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, rule: Rule
    ) -> Response:
        assert rule.step is not None  # noqa: S101 - its caller has looked
        name = rule.step.session
        if route is not None:
            raise ClientError(
                f"'{rule}': this site, {self._node.name}, knows no open session ('{name}' of {service}) with this "
                "handle. A session is known at the site where it was opened with a scope with '&'. Open it again, "
                "with this scope, or send the request where it was opened",
                status=404,
            )
        if rule.step.role is SessionRole.COMPLETES:
            meaning = self._meaning(service, incoming)
            if await self._locations.known_here(meaning.meta_id(service)):
                raise ClientError(
                    f"{meaning.item} is replicated, and this session was not opened for its sites: it would change "
                    "one site only. Open it again, with the scope of the resource",
                    status=409,
                )
        return await self._reads.local(service, incoming.head, incoming)

    async def _elsewhere(self, service: str, incoming: IncomingRequest, session: Session, rule: Rule) -> Response:
        if incoming.is_forwarded:
            raise CheopsError(f"this session is at {session.opening.site}", status=503, definite=False)
        response = await self._changes.forward(service, incoming, (session.opening.site,))
        assert rule.step is not None  # noqa: S101 - its caller has looked
        is_end = rule.step.role in (SessionRole.COMPLETES, SessionRole.ABORTS)
        if is_end and 200 <= response.status < 300 and response.status != _ACCEPTED:
            await self._sessions.close(session)
        return response

    async def _use(self, service: str, incoming: IncomingRequest, session: Session, step: SessionStep) -> Response:
        self._changes.check(service, incoming.head, None)
        with session.holding() as held:
            body = await self._spool(service, incoming, session, held)
            return await self._use_body(service, incoming, session, step, *body)

    async def _use_body(  # noqa: PLR0913, PLR0917 - a request's parts
        self, service: str, incoming: IncomingRequest, session: Session, step: SessionStep, hash_: str, size: int
    ) -> Response:
        body = session.files.path(hash_) if hash_ else b""
        recorded = self._recorded(service, incoming.head, step, size)
        try:
            response = await self._reads.local(service, incoming.head, HeldRequest(incoming, incoming.head, body, size))
        except UpstreamError as error:
            if error.may_have_had_effect:
                await self._sessions.add(session, Step(recorded, hash_, is_lost=True))
            raise
        if 200 <= response.status < 300:
            await self._sessions.add(session, Step(recorded, hash_))
        elif response.status >= 500:  # it may have been done
            await self._sessions.add(session, Step(recorded, hash_, is_lost=True))
        return response

    async def _complete(self, service: str, incoming: IncomingRequest, session: Session, rule: Rule) -> Response:
        if lost := session.lost:
            raise ClientError(
                f"nobody knows whether the service has done {lost.method} {printable(shortened(lost.path))} of this "
                "session, so other sites could not repeat it: "
                + ("send that request again, or " if lost.method == "PUT" else "")
                + "begin again",
                status=409,
            )
        meaning = self._meaning(service, incoming)
        meta_id = meaning.meta_id(service)
        sites = await self._locations.known_here(meta_id) or session.opening.sites
        if self._node.name not in sites:
            raise ClientError(
                f"{meaning.item} is replicated at {in_words(sites)}, and not at {self._node.name}, where this session "
                "was opened: begin again, with the scope of the resource",
                status=409,
            )
        assert rule.step is not None and session.opening.request is not None  # noqa: PT018, S101 - it is open here
        body = await self._message(service, incoming)
        last = self._recorded(service, incoming.head, rule.step, len(body))
        requests = [session.opening.request, *(step.request for step in session.steps), last]
        bodies = [session.opening.body, *map(session.body, session.steps), body]
        path = canonical(split_target(incoming.head.target)[0])
        target = Target(
            meta_id, path, meaning.item, meaning.part, is_named=True, meaning=meaning, session=rule.step.session
        )
        complete = CompleteSession(incoming, head_of(requests), bodies)
        with session.holding(*(step.hash for step in session.steps if step.hash)):
            response = await self._changes.change_by_rule(service, complete, target, sites)
        found = response.body if isinstance(response.body, bytes) else b""
        if response.status != _ACCEPTED and failure(rule.ok, response.status, response.headers, found) is None:
            await self._sessions.close(session)
        return response

    # -- parts ---------------------------------------------------------------------------------------------

    def _config(self, service: str) -> ServiceConfig:
        return self._node.config.services[service]

    def _meaning(self, service: str, incoming: IncomingRequest) -> Meaning:
        head = incoming.head
        meaning = meaning_of(self._config(service).replication.rules, head.method, head.target, head.headers, None)
        assert meaning is not None  # noqa: S101 - a rule has matched
        return meaning

    def _recorded(self, service: str, head: RequestHead, step: SessionStep, size: int) -> Request:
        path, query = split_target(head.target)
        return Request(
            method=head.method,
            path=canonical(path),
            query=query,
            headers=end_to_end(head.headers, self._config(service).replication),
            file_bytes=size,
            host=first(head, "Host") or "",
            session=step.session,
        )

    async def _message(self, service: str, incoming: IncomingRequest) -> bytes:
        """The body of a request that opens or completes a session."""
        content = bytearray()
        async for piece in self._checked_body(service, incoming):
            content += piece
            if len(content) > _MAX_MESSAGE_BYTES:
                raise ClientError(
                    f"a request that opens or completes a session has at most {_MAX_MESSAGE_BYTES // 2**20} MiB",
                    status=413,
                )
        return bytes(content)

    def _checked_body(self, service: str, incoming: IncomingRequest) -> AsyncIterator[bytes]:
        content_type = first(incoming.head, "Content-Type") or ""
        return without_secrets(incoming.body(), content_type, self._config(service).replication.secret)

    async def _spool(
        self, service: str, incoming: IncomingRequest, session: Session, held: list[str]
    ) -> tuple[str, int]:
        """Write a body to the folder of its session; its hash, which is in `held` before it is there, and size."""
        if incoming.size == 0:
            return "", 0
        limit_bytes = self._node.config.limits.file_bytes
        writer = await asyncio.to_thread(session.files.begin)
        with writer:
            body, why = self._checked_body(service, incoming), f"this session has more than {limit_bytes:,} bytes"
            await write_body(writer, body, limit_bytes - session.size, why)
            size = writer.size
            if not size:
                return "", 0
            held.append(writer.hash)
            return await asyncio.to_thread(writer.keep), size


def _handle(rule: Rule, values: dict[str, str]) -> str:
    assert rule.step is not None  # noqa: S101 - it has a place in a session
    text = values[rule.step.session]
    return unquote(text) if rule.step.session in rule.in_path else text


def _without_members(head: RequestHead, step: SessionStep) -> RequestHead:
    path, query = split_target(head.target)
    if not step.without or not query:
        return head
    kept = "&".join(part for part in query.split("&") if parse_qsl(part, True)[0][0] not in step.without)
    return replace(head, target=joined(path, kept))


async def _whole(response: Response) -> Response:
    """A response with its body in memory."""
    if isinstance(response.body, bytes):
        return response
    content = bytearray()
    try:
        async for piece in iterate_body(response.body):
            content += piece
            if len(content) > _MAX_MESSAGE_BYTES:
                raise CheopsError("the service opened a session, and its response is too large to be read", status=502)
    finally:
        await close_body(response.body)
    return replace(response, body=bytes(content))


def _handle_in(step: SessionStep, response: Response, service: str) -> str:
    content = response.body if isinstance(response.body, bytes) else b""
    handle = str(id_at(step.id, response.headers, content))
    if not handle:
        raise ClientError(
            f"the service opened a session ('{step.session}' of {service}) at one site, and its response has no handle "
            f"at {step.id}: it cannot be followed, so nothing of it will be replicated",
            status=422,
        )
    return handle
