"""Creates, updates and deletes of replicated resources: each becomes an operation of the log.

`replication` decides that a request is a change; `submission` hands the operation to the engine and waits for it.
"""

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, ExitStack
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from cheops.backends.http.backend import answer_key, http_backend
from cheops.backends.http.conditions import NOT_FOR_READING, ConditionGuard
from cheops.backends.http.deletions import contained
from cheops.backends.http.identity import ClientIdentifier
from cheops.backends.http.ids import RANDOM_BYTES, MetaIdTranslator, NoCopyError, meta_id_of, new_meta_id
from cheops.backends.http.interpretation import MAX_BODY_BYTES, WHOLE, refuse_unreadable
from cheops.backends.http.locations import Locations, nearest_first
from cheops.backends.http.order import (
    RecentChanges,
    after,
    check_needed,
    known_to,
    named_in,
    needed_by,
    pending_above,
    touched,
)
from cheops.backends.http.paths import canonical, filled, item_of, split_target, trimmed
from cheops.backends.http.payload import (
    BASE_REQUEST,
    NAMING,
    KeptResponse,
    Request,
    check_request,
    command_of,
    credentials_of,
    end_to_end,
    is_json,
    operation_type,
    with_body,
)
from cheops.backends.http.reads import ReadHandler
from cheops.backends.http.request import (
    Preferences,
    Target,
    preferences_of,
    refuse_encoded,
    refuse_other_type,
)
from cheops.backends.http.rules import check_rules
from cheops.backends.http.secrets import check_headers, check_query, without_secrets
from cheops.backends.http.signature import refuse_signed_chunks
from cheops.backends.http.spool import noting_ids, spool
from cheops.backends.http.submission import (
    Change,
    SubmissionResult,
    find_previous,
    repeated_answer,
    response_to,
    sites_of,
    submit,
    wait_for_previous,
)
from cheops.backends.http.translation import form_of, translate_body
from cheops.backends.http.turns import Turns
from cheops.config.services import BASE, CREATE, EXISTS, PATCH, ReplicationConfig, ServiceConfig, type_name
from cheops.engine.replica import Replica
from cheops.errors import CheopsError, ClientError
from cheops.gateway.headers import RequestHead, first, without
from cheops.gateway.interfaces import IncomingRequest, Response, UpstreamError, UpstreamServices, close_body
from cheops.gateway.routing import parse_scope
from cheops.log.operation import Kind
from cheops.node.node import Node
from cheops.plugins import scope_functions
from cheops.scope.functions import Functions
from cheops.scope.tree import Scope
from cheops.text import in_words

RandomBytes: TypeAlias = Callable[[int], bytes]
_NO_COPY = 503  # from another site: its service cannot decide, so nothing was done


class _OneTimeBody:
    """A body that can be read once; `is_begun` says whether it was."""

    def __init__(self, incoming: IncomingRequest) -> None:
        self._incoming = incoming
        self.is_begun = False

    async def pieces(self) -> AsyncIterator[bytes]:
        self.is_begun = True
        async for piece in self._incoming.body():
            yield piece


async def forward_change(  # noqa: PLR0913, PLR0917 - where from, where to, and what
    node: Node,
    services: UpstreamServices,
    service: str,
    incoming: IncomingRequest,
    head: RequestHead,
    sites: tuple[str, ...],
) -> Response:
    """Forward to the nearest site; to the next one only if that did nothing for certain and the body is unread."""
    if incoming.is_forwarded:
        raise CheopsError(
            f"another site sent this to {node.name}, which is not among the sites of the resource: {in_words(sites)}",
            status=503,
            definite=False,
        )
    body, failed = _OneTimeBody(incoming), []
    for site in nearest_first(node, sites):
        if site == node.name:
            continue
        try:
            pieces = body.pieces() if incoming.size != 0 else None
            response = await services.at(site, service, head, pieces, incoming.forwarding)
        except UpstreamError as error:
            if error.may_have_had_effect or body.is_begun:
                raise
            failed.append(f"{site} ({error.why})")
            continue
        if response.status != _NO_COPY or body.is_begun:
            return response
        await close_body(response.body)
        failed.append(f"{site} ({_NO_COPY})")
    raise CheopsError(
        f"this site, {node.name}, has no copy of the resource, and no site that may have one can serve it now: "
        f"{in_words(failed) if failed else 'there is no other'}",
        status=503,
        definite=False,
    )


_NO_SUCH_METHOD = (405, 501)


class ChangeHandler:
    """Makes an operation of a client's change, or forwards it to a site of the resource."""

    def __init__(
        self,
        node: Node,
        services: UpstreamServices,
        reading: ReadHandler,
        locations: Locations,
        random_bytes: RandomBytes = os.urandom,
    ) -> None:
        self._node = node
        self._services = services
        self._reads = reading
        self._locations = locations
        self._random_bytes = random_bytes
        self._backend = http_backend(node)
        self._functions = scope_functions()
        self._turns = Turns(self._backend.copies, self._backend.context.replica)
        self._condition_guard = ConditionGuard(node, reading)
        self._recent = RecentChanges()
        self._identifier = ClientIdentifier(self._backend.sender.client)

    async def create(
        self, service: str, incoming: IncomingRequest, sites: tuple[str, ...], within: str = ""
    ) -> Response:
        """A POST to a collection, or a PUT (MKCOL, MKCALENDAR) to an unknown path. `within` is the replicated
        collection of a resource whose name the client chose."""
        if self._node.name not in sites:
            return await self.forward(service, incoming, sites)
        config, preferences = self._config(service), preferences_of(incoming.head)
        sent = self.public_path(service, incoming.head)
        path = trimmed(sent)
        if incoming.head.method in NAMING:
            meta_id = meta_id_of("path", service, path)
            target = Target(meta_id, sent, path, is_named=True, within=within)
            return await self._submit(service, incoming, target, preferences, sites)
        meta_id = (
            meta_id_of("key", service, path, preferences.key)
            if preferences.key
            else new_meta_id(self._node.name, self._random_bytes(RANDOM_BYTES))
        )
        target = Target(meta_id, sent, item_of(path, config.items))
        return await self._submit(service, incoming, target, preferences, sites, creates=True)

    async def change(self, service: str, incoming: IncomingRequest, target: Target) -> Response:
        """An update or deletion of an existing resource."""
        sites = await self._locations.known_here(target.meta_id)
        if self._node.name not in sites:
            sites = sites or await self._locations.sites_of(target.meta_id)
            if not sites:
                raise ClientError(f"no reachable site knows {target.meta_id}", status=404)
            return await self.forward(service, incoming, sites)
        replica = await self._node.pump.replica(target.meta_id)
        if replica.type.name != type_name(service):
            raise ClientError(f"{target.meta_id} is of {replica.type.name}, not of {type_name(service)}", status=404)
        if not (target.is_named and incoming.head.method == "PUT"):
            await self._reads.refuse_deleted(target)
        if self._needs_a_copy(incoming, target) and not replica.drafts:
            if incoming.is_forwarded:
                text = f"{self._node.name} has no copy of {target.meta_id} yet, or not any more"
                raise CheopsError(text, status=_NO_COPY, definite=False)
            # The service here cannot say whether this client may do it. One that has the resource can.
            return await self.forward(service, incoming, tuple(site for site in sites if site != self._node.name))
        return await self._submit(service, incoming, target, preferences_of(incoming.head), None)

    async def change_by_rule(
        self, service: str, incoming: IncomingRequest, target: Target, sites: tuple[str, ...]
    ) -> Response:
        """A change of what a rule says; `sites` are those of the resource, or of the scope if it is new."""
        others = tuple(site for site in sites if site != self._node.name)
        if self._node.name not in sites:
            return await self.forward(service, incoming, sites)
        if target.meaning and target.meaning.needs_a_copy and others and not incoming.is_forwarded:
            replica = await self._node.pump.replica(target.meta_id)
            if sites_of(replica) and target.meta_id not in self._backend.copies.index.copies and not replica.drafts:
                # The service here does not have it yet, so it cannot decide; one that has it can.
                return await self.forward(service, incoming, others)
        await check_needed(self._node, service, target.meaning, sites)
        return await self._submit(service, incoming, target, preferences_of(incoming.head), sites)

    def check(self, service: str, head: RequestHead, target: Target | None) -> None:
        """Raises ClientError for a change that must not become an operation; `target` is None for a new resource."""
        if target is None:
            path = self.public_path(service, head)
            target = Target("", path, "")
        self._check(self._node.config.services[service], head, target, preferences_of(head))

    async def forward(self, service: str, incoming: IncomingRequest, sites: tuple[str, ...]) -> Response:
        """Forward to one of these sites; this site is not among them."""
        head = sent = self._reads.for_peers(service, incoming.head)
        most_s = int(self._config(service).timeout_s)  # this gateway does not wait longer for the other site
        if preferences_of(head).wait_s > most_s:
            head = replace(head, headers=(*without(head.headers, "Prefer"), ("Prefer", f"wait={most_s}")))
        response = await forward_change(self._node, self._services, service, incoming, head, sites)
        return self._reads.from_peer(incoming, sent, response)

    # -- one operation -------------------------------------------------------------------------------------

    async def _submit(  # noqa: PLR0913 - a request and all that is known of it
        self,
        service: str,
        incoming: IncomingRequest,
        target: Target,
        preferences: Preferences,
        sites: tuple[str, ...] | None,
        *,
        creates: bool = False,
    ) -> Response:
        config = self._node.config.services[service]
        self._check(config, incoming.head, target, preferences)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._condition_guard.held(service, incoming, target))
            pins = stack.enter_context(ExitStack())
            request, file_hash = await self._request(service, incoming, target, preferences, pins, creates=creates)
            command = command_of(request, file_hash)
            replica = await self._node.pump.replica(target.meta_id)
            if before := find_previous(replica, command):
                if (refusal := await self._refuse_repetition(service, incoming, target)) is not None:
                    return refusal
                result = await wait_for_previous(self._node, target.meta_id, before, preferences)
            else:
                type_, kind = _type_and_kind(incoming.head, target, creates=creates)
                if type_ == PATCH:
                    await self._lay_base(service, replica, sites)
                is_new = not sites_of(replica)
                change = Change(
                    target.meta_id,
                    type_name(service),
                    type_,
                    command,
                    kind,
                    sites if is_new else None,
                    self._config(service).matrix if is_new else None,
                )
                result = await submit(self._node, change, preferences)
        location = filled(target.item, target.meta_id) if creates and self._is_there(target, result.decided) else ""
        answer = self._answer(target, result, is_repeated=bool(before))
        return response_to(result, target.meta_id, self._node.config.advertise, location, answer)

    def _answer(self, target: Target, result: SubmissionResult, *, is_repeated: bool) -> KeptResponse | None:
        """The response that the client gets instead of the one in the log; None if it gets that one."""
        if not is_repeated:  # with the secrets that the log does not have
            return self._backend.tickets.take_answer(answer_key(target.meta_id, str(result.op)))
        return repeated_answer(result, has_copy=target.meta_id in self._backend.copies.index.copies)

    @staticmethod
    def _check(service: ServiceConfig, head: RequestHead, target: Target, preferences: Preferences) -> None:
        """Raises ClientError for what must not become an operation, before anything of its body is read."""
        _, query = split_target(head.target)
        request = Request(
            method=head.method,
            path=target.path,
            item=target.item,
            named=target.is_named,
            headers=end_to_end(head.headers, service.replication),
        )
        check_request(request)
        check_rules(service, request)
        refuse_signed_chunks(head.headers)
        check_query(query, service.replication.secret)
        check_headers(request.headers, service.replication.secret)
        refuse_other_type(head)
        if form_of(head):
            refuse_encoded(head)
        refuse_unreadable(service, first(head, "Content-Type") or "", target.meaning)
        allowed = service.replication.exists
        if service.replication.auth and EXISTS.index(preferences.exists or "abort") > EXISTS.index(allowed):
            raise ClientError(
                f"Cheops-Exists: {preferences.exists} would give the client what is another one's at the other sites; "
                f"services.{service.name}.exists is '{allowed}' there",
                status=403,
            )

    async def _refuse_repetition(self, service: str, incoming: IncomingRequest, target: Target) -> Response | None:
        """The response to a client that repeats an Idempotency-Key, but may not read the resource: the key alone must
        not show what another client was answered. None if it may."""
        if target.meta_id not in self._backend.copies.index.copies:
            return None
        path = target.path if target.is_named else filled(target.item, target.meta_id)
        head = RequestHead("GET", path, without(incoming.head.headers, *NOT_FOR_READING))
        response = await self._reads.local(service, head, incoming, with_body=False)
        if 200 <= response.status < 300 or response.status in _NO_SUCH_METHOD:
            await close_body(response.body)
            return None
        return response

    def _needs_a_copy(self, incoming: IncomingRequest, target: Target) -> bool:
        """Whether a change cannot be decided here: this site has no copy (yet), and the change creates none."""
        creates = target.is_named and not target.sub_path and incoming.head.method in NAMING
        return not creates and target.meta_id not in self._backend.copies.index.copies

    def _is_there(self, target: Target, decided: object) -> bool:
        """Whether the resource has or will have an id: a replicated action creates none."""
        return decided is None or target.meta_id in self._backend.copies.index.copies

    async def _request(  # noqa: PLR0913 - as above
        self,
        service: str,
        incoming: IncomingRequest,
        target: Target,
        preferences: Preferences,
        pins: ExitStack,
        *,
        creates: bool,
    ) -> tuple[Request, str]:
        """The request for all sites, and the hash of its body if that is a file."""
        head, config = incoming.head, self._config(service)
        _, query = split_target(head.target)
        in_body: dict[str, None] = {}  # meta-ids
        body = incoming.body()
        if not target.session:  # what is in a session was looked into before
            body = without_secrets(body, first(head, "Content-Type") or "", config.secret)
        if form_of(head) and not target.session:
            body = translate_body(body, MetaIdTranslator(self._reads.response_ids(service, head)))
            body = noting_ids(body, in_body)
        credentials = credentials_of(head.headers, config)
        client = await self._identifier.identify(self._node.config.services[service], credentials)
        spooled = await spool(self._node, body, pins)
        is_looked_into = config.local_members and is_json(first(head, "Content-Type") or "") and not target.session
        if is_looked_into and spooled.size > MAX_BODY_BYTES:
            raise ClientError(
                f"a JSON body of more than {MAX_BODY_BYTES // 2**20} MiB is not replicated for this service: members "
                "that belong to one site must be removed from it",
                status=413,
            )
        request = Request(
            method=head.method,
            path=target.path,
            query=self._public_query(query),
            headers=end_to_end(head.headers, config),
            file_bytes=spooled.size if spooled.file_hash else None,
            item=target.item if _names_item(head, target, creates=creates) else "",
            named=target.is_named,
            within=target.within,
            exists=preferences.exists,
            key=preferences.key,
            ticket=self._backend.tickets.issue(credentials, always=bool(target.session)),
            scope=_scope_of_others(first(head, "Scope"), service, self._functions),
            client=client,
            kind=target.meaning.kind.value if target.meaning else "",
            part=target.meaning.part if target.meaning else "",
            to=target.meaning.to if target.meaning else "",
            session=target.session,
            host=first(head, "Host") or "",
        )
        if not spooled.file_hash:
            request = with_body(request, spooled.inline)
        named = named_in(request, in_body)
        if missing := next(
            (one for one in named if one not in (target.meta_id, *self._backend.copies.index.copies)), ""
        ):
            raise NoCopyError(missing)  # it must be at this site; other sites may get it later
        turn = self._turns.taken(service, request, await self._node.pump.replica(target.meta_id))
        await self._turns.come(pins.enter_context(turn))
        return await self._with_order(service, request, target, in_body), spooled.file_hash

    async def _with_order(self, service: str, request: Request, target: Target, in_body: Iterable[str]) -> Request:
        """A request with what it comes after at other sites; see order.py."""
        found = touched(self._backend.copies.index, service, request, target.meta_id, in_body)
        pending = pending_above(service, request, self._backend.context.replica)
        others = dict.fromkeys((*found, *needed_by(service, target.meaning), *pending))
        befores = [after(await self._node.pump.replica(one)) for one in others]
        within = contained(self._backend.copies.index, request, target.meta_id)
        contains = [known_to(await self._node.pump.replica(one)) for one in within]
        request = msgspec.structs.replace(request, after=tuple(filter(None, befores)), contains=tuple(contains))
        if not target.is_named or target.item == WHOLE:
            return request
        earlier = []
        for one in self._recent.others(service, target.meta_id):
            replica = await self._node.pump.replica(one)
            before = after(replica)
            if before is not None and one not in others:
                earlier.append(before)
            elif before is None and replica.history.known:
                self._recent.forget(service, one)
        self._recent.note(service, target.meta_id)
        return msgspec.structs.replace(request, earlier=tuple(earlier))

    async def _lay_base(self, service: str, replica: Replica, sites: tuple[str, ...] | None) -> None:
        """Submit a base before the first PATCH: from there PATCHes are replayed if concurrent ones arrive.

        After a PATCH it would come too late: it replaces what is before it, so a site that has not run that PATCH yet
        would never run it.
        """
        is_new = not sites_of(replica)
        matrix = self._config(service).matrix if is_new else replica.matrix
        if not matrix.replaces(BASE, PATCH):
            return
        for op in (*replica.history.effective, *replica.drafts):
            if matrix.replaces(op.key, PATCH) or matrix.replaces(BASE, op.key):
                return
        change = Change(
            replica.resource,
            type_name(service),
            BASE,
            command_of(BASE_REQUEST),
            sites=sites if is_new else None,
            matrix=matrix if is_new else None,
        )
        await submit(self._node, change, Preferences(wait_s=0.0))

    # -- paths ---------------------------------------------------------------------------------------------

    def _config(self, service: str) -> ReplicationConfig:
        return self._node.config.services[service].replication

    def public_path(self, service: str, head: RequestHead) -> str:
        path, _ = split_target(head.target)
        return self._backend.copies.index.path_with_meta_ids(service, canonical(path))

    def _public_query(self, query: str) -> str:
        """The query with meta-ids for values that are certainly local ids."""
        parts = (part.partition("=") for part in query.split("&"))
        known = self._backend.copies.index.anywhere
        return "&".join(f"{name}{sign}{known(value) or value}" for name, sign, value in parts)


def _scope_of_others(header: str | None, service: str, functions: Functions) -> str:
    """The part of a scope about other services, for the calls that the application makes to them. The service itself
    runs at each site, so its own part must not replicate the call again."""
    scope = parse_scope([header] if header else [], service, functions)
    kept = tuple(one for one in scope.bindings if one.service != service) if scope else ()
    return str(Scope(kept)) if kept else ""


def _type_and_kind(head: RequestHead, target: Target, *, creates: bool) -> tuple[str, Kind]:
    if creates:
        return CREATE, Kind.NORMAL
    if target.meaning and not (target.meaning.type == PATCH and head.method == "PATCH"):
        return target.meaning.type, Kind.DELETE if target.meaning.is_deletion else Kind.NORMAL
    type_ = operation_type(head.method, target.sub_path, first(head, "Content-Type") or "")
    is_deletion = head.method == "DELETE" and not target.sub_path
    return type_, Kind.DELETE if is_deletion else Kind.NORMAL


def _names_item(head: RequestHead, target: Target, *, creates: bool) -> bool:
    """Whether an operation carries the path of its resource: if it creates or deletes it, or may change its id."""
    if creates:
        return True
    if target.meaning:
        return target.is_named or target.meaning.renews_id or target.meaning.is_deletion
    return not target.sub_path and (head.method == "DELETE" or (target.is_named and head.method in NAMING))
