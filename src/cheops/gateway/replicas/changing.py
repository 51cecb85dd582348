"""Creates, updates and deletes of what is replicated: each becomes an operation of the log."""

import os
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace

from cheops.backends.http_ids import RANDOM_BYTES, meta_id_of, meta_ids_in, new_meta_id
from cheops.backends.http_paths import canonical, filled, item_of, split_target, trimmed
from cheops.backends.http_request import (
    BASE_REQUEST,
    CREATE,
    NAMING,
    Request,
    command_of,
    credentials_of,
    end_to_end,
    operation_type,
    with_body,
)
from cheops.backends.http_to_local import NotHereError
from cheops.backends.http_to_meta import ToMeta
from cheops.config.replication import BASE, PATCH, ReplicationConfig, type_name
from cheops.engine.replica import Replica
from cheops.gateway.replicas.answering import answer_to
from cheops.gateway.replicas.errors import NoReplicantError
from cheops.gateway.replicas.forwarding import hand_on
from cheops.gateway.replicas.guarding import Guarding
from cheops.gateway.replicas.preferences import Preferences, preferences_of
from cheops.gateway.replicas.reading import Reading
from cheops.gateway.replicas.spooling import spooled
from cheops.gateway.replicas.streams import form_of, translated
from cheops.gateway.replicas.submitting import Change, same_before, sites_of, submit, told_before
from cheops.gateway.replicas.targets import Target
from cheops.gateway.replicas.whereabouts import Whereabouts
from cheops.gateway.routing import scope_of
from cheops.gateway.seam import Head, Incoming, Outgoing, Services, first, without
from cheops.log.operation import Kind
from cheops.node.node import Node
from cheops.plugins import scope_functions
from cheops.scope.functions import Functions
from cheops.scope.tree import Scope


class Changing:
    def __init__(self, node: Node, services: Services, reading: Reading, whereabouts: Whereabouts) -> None:
        self._node = node
        self._services = services
        self._reading = reading
        self._whereabouts = whereabouts
        self._runner = node.replicants.runner
        self._functions = scope_functions()
        self._guarding = Guarding(node, reading)

    async def create(
        self, service: str, incoming: Incoming, sites: tuple[str, ...], within: str = ""
    ) -> Outgoing:
        """A POST to a collection, or a PUT (MKCOL, MKCALENDAR) to a path that nothing is known of. `within`:
        the replicated collection that a named thing is in."""
        if self._node.name not in sites:
            return await self.hand_on(service, incoming, sites)
        config, preferences = self._config(service), preferences_of(incoming.head)
        sent = self._public_path(service, incoming.head)
        path = trimmed(sent)
        if incoming.head.method in NAMING:
            meta_id = meta_id_of("path", service, path)
            target = Target(meta_id, sent, path, is_named=True, within=within)
            return await self._submit(service, incoming, target, preferences, sites)
        meta_id = (
            meta_id_of("key", service, path, preferences.key)
            if preferences.key
            else new_meta_id(self._node.name, os.urandom(RANDOM_BYTES))
        )
        target = Target(meta_id, sent, item_of(path, config.items))
        return await self._submit(service, incoming, target, preferences, sites, creates=True)

    async def change(self, service: str, incoming: Incoming, target: Target) -> Outgoing:
        """An update or a deletion of something that is there."""
        sites = await self._whereabouts.known_here(target.meta_id)
        if self._node.name not in sites:
            sites = sites or await self._whereabouts.sites_of(target.meta_id)
            if not sites:
                raise NoReplicantError(f"no site that can be asked now knows of {target.meta_id}")
            return await self.hand_on(service, incoming, sites)
        replica = await self._node.pump.replica(target.meta_id)
        if replica.type.name != type_name(service):
            raise NoReplicantError(f"{target.meta_id} is of {replica.type.name}, not of {type_name(service)}")
        if not (target.is_named and incoming.head.method == "PUT"):
            await self._reading.refuse_deleted(target)
        return await self._submit(service, incoming, target, preferences_of(incoming.head), None)

    async def hand_on(self, service: str, incoming: Incoming, sites: tuple[str, ...]) -> Outgoing:
        """To one of these sites: this one is none of them."""
        head = sent = self._reading.for_peers(service, incoming.head)
        most_s = int(self._config(service).timeout_s)  # after that nobody here would wait for the other site
        if preferences_of(head).wait_s > most_s:
            head = replace(head, headers=(*without(head.headers, "Prefer"), ("Prefer", f"wait={most_s}")))
        answer = await hand_on(self._node, self._services, service, incoming, head, sites)
        return self._reading.told(incoming, sent, answer)

    # -- one operation -------------------------------------------------------------------------------------

    async def _submit(  # noqa: PLR0913 - a request and all that is known of it
        self,
        service: str,
        incoming: Incoming,
        target: Target,
        preferences: Preferences,
        sites: tuple[str, ...] | None,
        *,
        creates: bool = False,
    ) -> Outgoing:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._guarding.held(service, incoming, target))
            pins = stack.enter_context(ExitStack())
            request, file_hash = await self._request(
                service, incoming, target, preferences, pins, creates=creates
            )
            command = command_of(request, file_hash)
            replica = await self._node.pump.replica(target.meta_id)
            if before := same_before(replica, command):
                told = await told_before(self._node, target.meta_id, before, preferences)
            else:
                is_new = not sites_of(replica)
                type_, kind = _type_and_kind(incoming.head, target, creates=creates)
                if type_ == PATCH:
                    await self._lay_base(service, replica)
                change = Change(
                    target.meta_id,
                    type_name(service),
                    type_,
                    command,
                    kind,
                    sites if is_new else None,
                    self._config(service).matrix if is_new else None,
                )
                told = await submit(self._node, change, preferences)
        location = (
            filled(target.item, target.meta_id) if creates and self._is_there(target, told.decided) else ""
        )
        return answer_to(told, target.meta_id, self._node.config.advertise, location)

    def _is_there(self, target: Target, decided: object) -> bool:
        """Whether it has, or will have, an id: an action that was replicated has none."""
        return decided is None or target.meta_id in self._runner.copies.index.copies

    async def _request(  # noqa: PLR0913 - as above
        self,
        service: str,
        incoming: Incoming,
        target: Target,
        preferences: Preferences,
        pins: ExitStack,
        *,
        creates: bool,
    ) -> tuple[Request, str]:
        """The request as all sites get it, and the hash of its body where that is a file."""
        head, config = incoming.head, self._config(service)
        _, query = split_target(head.target)
        body = incoming.body()
        if form_of(head):
            body = translated(body, ToMeta(self._reading.answering(service, head)))
        spool = await spooled(self._node, body, pins)
        passes = config.credentials == "pass"
        credentials = credentials_of(head.headers, config)
        request = Request(
            method=head.method,
            path=target.path,
            query=self._public_query(query),
            headers=end_to_end(head.headers, config),
            file_bytes=spool.size if spool.file_hash else None,
            item=target.item if _names_item(head, target, creates=creates) else "",
            named=target.is_named,
            within=target.within,
            exists=preferences.exists,
            key=preferences.key,
            ticket="" if passes else self._runner.tickets.issue(credentials),
            scope=_of_others(first(head, "Scope"), service, self._functions),
        )
        if not spool.file_hash:
            request = with_body(request, spool.inline)
        self._check_references(request, target)
        return request, spool.file_hash

    def _check_references(self, request: Request, target: Target) -> None:
        """What a request speaks of must be here; at other sites it may still be on its way."""
        headers = " ".join(value for _, value in request.headers)
        for meta_id in meta_ids_in(f"{request.path} {request.query} {headers} {request.text}"):
            if meta_id != target.meta_id and meta_id not in self._runner.copies.index.copies:
                raise NotHereError(meta_id)

    async def _lay_base(self, service: str, replica: Replica) -> None:
        """Before the first PATCH: from where PATCHes can be run again, should they meet others."""
        matrix = replica.matrix
        if not matrix.replaces(BASE, PATCH):
            return
        if any(matrix.replaces(op.key, PATCH) for op in (*replica.history.effective, *replica.drafts)):
            return
        change = Change(replica.resource, type_name(service), BASE, command_of(BASE_REQUEST))
        await submit(self._node, change, Preferences(wait_s=0.0))

    # -- words ---------------------------------------------------------------------------------------------

    def _config(self, service: str) -> ReplicationConfig:
        return self._node.config.services[service].replication

    def _public_path(self, service: str, head: Head) -> str:
        path, _ = split_target(head.target)
        return self._runner.copies.index.path_with_meta_ids(service, canonical(path))

    def _public_query(self, query: str) -> str:
        """Values that are local ids beyond doubt become meta-ids."""
        parts = (part.partition("=") for part in query.split("&"))
        known = self._runner.copies.index.anywhere
        return "&".join(f"{name}{sign}{known(value) or value}" for name, sign, value in parts)


def _of_others(header: str | None, service: str, functions: Functions) -> str:
    """What a scope says of other services, for the calls that the application makes to them. Its own is done
    at each site by that site's instance, and what it asks of itself is not replicated once more."""
    scope = scope_of([header] if header else [], service, functions)
    kept = tuple(one for one in scope.bindings if one.service != service) if scope else ()
    return str(Scope(kept)) if kept else ""


def _type_and_kind(head: Head, target: Target, *, creates: bool) -> tuple[str, Kind]:
    if creates:
        return CREATE, Kind.NORMAL
    type_ = operation_type(head.method, target.sub_path, first(head, "Content-Type") or "")
    is_deletion = head.method == "DELETE" and not target.sub_path
    return type_, Kind.DELETE if is_deletion else Kind.NORMAL


def _names_item(head: Head, target: Target, *, creates: bool) -> bool:
    """Whether an operation says where its resource is: one that makes it be there, or be gone."""
    if creates:
        return True
    return not target.sub_path and (head.method == "DELETE" or (target.is_named and head.method in NAMING))
