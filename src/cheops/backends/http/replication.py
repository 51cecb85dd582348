"""The gateway's handler for replicated resources: the first module of this package that a request enters.

read                                from the copy here, or from the nearest one that can be reached
create with `&`                     an operation that begins a resource; also in a replicated collection
update or delete of a replicant     an operation at all its sites, with or without a scope
anything else                       to this site's own instance, with ids translated both ways

MOVE and COPY that touch a replicant are refused, and so are changes of a collection that contains replicants but is
not one itself.
"""

import os

from cheops.backends.http.backend import http_backend
from cheops.backends.http.changes import ChangeHandler, RandomBytes
from cheops.backends.http.explanation import explained
from cheops.backends.http.ids import META_ID, is_meta_id, meta_id_of
from cheops.backends.http.interpretation import (
    WHOLE,
    Meaning,
    refuse_unexplained_query,
)
from cheops.backends.http.interpreter import RequestInterpreter
from cheops.backends.http.locations import Locations
from cheops.backends.http.moves import check_move, current_name, refuse_old_name
from cheops.backends.http.order import check_needed
from cheops.backends.http.paths import ID, canonical, collection_of, filled, is_listed, split_target
from cheops.backends.http.payload import COLLECTING, NAMING, is_json, media_type
from cheops.backends.http.reads import ReadHandler
from cheops.backends.http.request import (
    Target,
    named_target,
    refuse_moving,
    refuse_whole_collection,
    target_of,
)
from cheops.backends.http.session_handler import SessionHandler
from cheops.backends.http.submission import is_collection, is_deleted, sites_of
from cheops.config.request_rules import SAFE_METHODS, first_match
from cheops.config.service_rules import RuleKind
from cheops.errors import ClientError
from cheops.gateway.headers import RequestHead, first
from cheops.gateway.interfaces import DryRunResult, IncomingRequest, Response, RunGuard, UpstreamServices
from cheops.node.node import Node
from cheops.scope.explanation import Method
from cheops.scope.route import Replicas
from cheops.text import printable, shortened

_FORM = "application/x-www-form-urlencoded"
_SEARCHING = ("GET", "HEAD")


class HttpReplication:
    """Implements `Replication` of gateway.interfaces with the HTTP backend."""

    def __init__(self, node: Node, services: UpstreamServices, random_bytes: RandomBytes = os.urandom) -> None:
        self._node = node
        self._backend = http_backend(node)
        self._backend.sender.carry = services.carry
        self._copies = self._backend.copies
        self._locations = Locations(node)
        self._reads = ReadHandler(node, services, self._locations)
        self._changes = ChangeHandler(node, services, self._reads, self._locations, random_bytes)
        self._sessions = SessionHandler(node, self._reads, self._changes, self._locations)
        self._interpreter = RequestInterpreter(
            node, self._copies, self._locations, self._reads.response_ids, self._sessions.knows
        )

    def guard_runs(self, guard: RunGuard | None) -> None:
        self._backend.guard = guard

    def has_copies(self, service: str = "") -> bool:
        index = self._copies.index
        return index.has_service(service) or self._is_watched(service) if service else len(index) > 0

    def concerns(self, service: str, head: RequestHead) -> bool:
        """If the service has replicas here, every request may name or list them. If only other services have, a request
        whose body can contain ids. Otherwise only one with a meta-id in its head."""
        index = self._copies.index
        if index.has_service(service) or META_ID.search(head.target) or self._is_watched(service):
            return True
        if len(index):
            content_type = first(head, "Content-Type") or ""
            if is_json(content_type) or media_type(content_type) == _FORM:
                return True
        return any(META_ID.search(value) for _, value in head.headers)

    async def handle(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> Response:
        incoming, found, meaning = await self._interpreter.interpret(service, incoming, route)
        if found and found[0].step:
            return await self._sessions.handle(service, incoming, route, *found)
        if meaning is not None and meaning.kind is RuleKind.REFUSE:  # of nothing that is replicated
            return await self._reads.local(service, incoming.head, incoming)
        if meaning is not None and (meaning.kind is RuleKind.READ or meaning.item):
            return await self._handle_by_rule(service, incoming, route, meaning)
        return await self._handle_plain(service, incoming, route)

    async def _handle_plain(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> Response:
        """What no rule explains is plain REST."""
        head = incoming.head
        target = self._target(service, head, route)
        if target is None:
            return await self._handle_unknown(service, incoming, route)
        if head.method in SAFE_METHODS:
            return await self._reads.read(service, incoming, target)
        if self._is_for_one_site(service, head, target, route):
            return await self._reads.local(service, head, incoming)
        is_new_collection = head.method in COLLECTING and target.is_named and not target.sub_path
        if is_new_collection or await self._creates_part(service, head, target):
            sites = route.sites if route else await self._locations.sites_of(target.meta_id)
            within = target.meta_id if target.is_named and not is_new_collection else ""
            return await self._changes.create(service, incoming, sites, within)
        return await self._changes.change(service, incoming, target)

    def _is_for_one_site(self, service: str, head: RequestHead, target: Target, route: Replicas | None) -> bool:
        """Whether a change of a replicant goes to the service here, with the client's own credentials."""
        if head.method in COLLECTING and target.is_named and not target.sub_path:
            return not self._is_changing(target)  # it exists, and the service's own response says so
        return route is None and bool(target.sub_path) and self._is_never(service, head.method, target.path)

    def _is_changing(self, target: Target) -> bool:
        """Whether a change of a replicant is under way here: a deletion, say. What comes next must come after it."""
        replica = self._backend.context.replica(target.meta_id)
        return replica is not None and bool(replica.drafts)

    async def _handle_by_rule(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, meaning: Meaning
    ) -> Response:
        if meaning.kind is RuleKind.READ:  # it goes to one site, and is not logged
            if route is None or self._node.name in route.sites:
                return await self._reads.local(service, incoming.head, incoming)
            return await self._reads.at_nearest(service, incoming, route.sites, incoming.head.target)
        if not self._is_of_chosen_name(meaning):
            return await self._change_of_service_id(service, incoming, route, meaning)
        target, sites = await self._named_target(service, incoming.head, route, meaning)
        if not sites:  # nothing of it is replicated
            return await self._reads.local(service, incoming.head, incoming)
        return await self._changes.change_by_rule(service, incoming, target, sites)

    @staticmethod
    def _is_of_chosen_name(meaning: Meaning) -> bool:
        """Whether clients choose the name of what a rule is about; otherwise the service gives an id."""
        is_of_id = meaning.rule is not None and meaning.rule.is_of_service_id and meaning.item != WHOLE
        return meaning.is_named and not is_of_id

    async def _named_target(
        self, service: str, head: RequestHead, route: Replicas | None, meaning: Meaning
    ) -> tuple[Target, tuple[str, ...]]:
        """What a rule is about, and its sites: those of the resource, or of the scope if it is new; none if it is not
        replicated. Raises ClientError."""
        found = self._copies.index.whose_path(service, meaning.item)  # also where it was moved to
        meta_id = found or meaning.meta_id(service)
        path = self._changes.public_path(service, head)
        target = Target(meta_id, path, meaning.item, meaning.part, is_named=True, meaning=meaning)
        sites = await self._locations.known_here(meta_id)
        if not sites and route is None:
            if meaning.kind is RuleKind.MOVE:
                check_move(self._copies.index, service, meta_id, meaning)
            if meaning.is_deletion:
                refuse_whole_collection(self._copies.index, service, head)
            return target, ()  # nothing of it is replicated
        refuse_old_name(service, await self._node.pump.replica(meta_id), meaning)
        if meaning.kind is RuleKind.MOVE:
            if not sites:
                raise _nothing_replicated(meaning.item, head, route)
            check_move(self._copies.index, service, meta_id, meaning)
            if await self._is_taken(service, meta_id, meaning.to):
                raise ClientError(f"a replicated resource is at {meaning.to} already", status=409)
        return target, sites or (route.sites if route else ())

    async def _change_of_service_id(
        self, service: str, incoming: IncomingRequest, route: Replicas | None, meaning: Meaning
    ) -> Response:
        """A change by a rule of what has an id that the service gave: it exists already, or it is not replicated."""
        if target := self._target_of_service_id(service, incoming.head, route, meaning):
            return await self._changes.change(service, incoming, target)
        return await self._reads.local(service, incoming.head, incoming)

    def _refuse_other_place(self, service: str, meaning: Meaning) -> None:
        """Raises ClientError if what a client named has the form of an id of Cheops, and is not what has this id."""
        copy = self._copies.index.copies.get(meaning.meta_id(service))
        if copy is not None and (copy.service, copy.path.lower()) != (service, meaning.item.lower()):
            raise ClientError(
                f"{printable(shortened(meaning.item))} ends with an id that Cheops has given to something else: it is "
                "not replicated under this name",
                status=422,
            )

    def _target_of_service_id(
        self, service: str, head: RequestHead, route: Replicas | None, meaning: Meaning
    ) -> Target | None:
        if not meaning.is_named:
            self._refuse_other_place(service, meaning)
            item, path = f"{collection_of(meaning.item)}/{ID}", self._changes.public_path(service, head)
            return Target(meaning.meta_id(service), path, item, meaning.part, meaning=meaning)
        if route is not None:
            raise _nothing_replicated(meaning.item, head, route)
        return None

    async def _is_taken(self, service: str, meta_id: str, path: str) -> bool:
        """Whether another replicant has a name, here or at another site."""
        other = meta_id_of("path", service, path)
        replica = await self._node.pump.replica(other)
        is_there = bool(sites_of(replica)) and not is_deleted(replica) and current_name(replica) in ("", path)
        return other != meta_id and is_there

    async def dry_run(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> DryRunResult:
        head, config = incoming.head, self._node.config.services[service]
        if route is None and not self.concerns(service, head):  # the service here gets it, whatever the rules say
            return DryRunResult(explained(config, head, await self._interpreter.meaning_or_none(service, incoming)))
        incoming, found, meaning = await self._interpreter.interpret(service, incoming, route)
        if meaning is None and found and (found[0].step or found[0].kind is RuleKind.READ):
            meaning = self._interpreter.meaning(service, incoming)
        about = explained(config, head, meaning)
        if (found and found[0].step) or (meaning is not None and meaning.kind is RuleKind.REFUSE):
            return DryRunResult(about, stays_here=route is None or self._node.name in route.sites)
        if meaning is not None and meaning.kind is RuleKind.READ and head.method not in SAFE_METHODS:
            return DryRunResult(about, effect=Method.READ)
        if meaning is not None and meaning.item:
            return await self._dry_run_by_rule(service, head, route, meaning)
        return await self._dry_run_plain(service, head, route, about)

    async def _dry_run_by_rule(
        self, service: str, head: RequestHead, route: Replicas | None, meaning: Meaning
    ) -> DryRunResult:
        target: Target | None
        sites: tuple[str, ...] = ()
        if self._is_of_chosen_name(meaning):
            target, sites = await self._named_target(service, head, route, meaning)
        elif target := self._target_of_service_id(service, head, route, meaning):
            sites = await self._replicated_at(target)
        about = explained(self._node.config.services[service], head, meaning)
        if target is None or not sites:
            return DryRunResult(about, effect=_effect_of(meaning))
        self._changes.check(service, head, target)
        await check_needed(self._node, service, meaning, sites)
        is_there = bool(await self._locations.known_here(target.meta_id))
        meta_id = target.meta_id if is_there else ""
        about["id"] = target.meta_id  # what was moved keeps its own
        return DryRunResult(about, meta_id, sites, goes_everywhere=True, effect=_effect_of(meaning))

    async def _dry_run_plain(
        self, service: str, head: RequestHead, route: Replicas | None, about: dict[str, object]
    ) -> DryRunResult:
        target, is_change = self._target(service, head, route), head.method not in SAFE_METHODS
        if target is None and route and is_change:
            self._changes.check(service, head, None)
            if head.method != "POST" and head.method not in NAMING and self._node.name in route.sites:
                target = await self._known_by_name(service, head, route)
        if target is None:
            return DryRunResult(about)
        if is_change and self._is_for_one_site(service, head, target, route):
            return DryRunResult(about, stays_here=True)
        if is_change:
            self._changes.check(service, head, target)
        await self._reads.refuse_deleted(target)
        sites = await self._replicated_at(target)
        if about["rule"] is None and not await self._creates_part(service, head, target):
            about = explained(self._node.config.services[service], head, None, target)
        return DryRunResult(about, target.meta_id, sites, goes_everywhere=is_change)

    async def replicant(self, service: str, head: RequestHead) -> DryRunResult | None:
        if not self.concerns(service, head) or not (target := self._target(service, head, None)):
            return None
        sites = await self._replicated_at(target)
        return DryRunResult(None, target.meta_id, sites, goes_everywhere=head.method not in SAFE_METHODS)

    async def _replicated_at(self, target: Target) -> tuple[str, ...]:
        """Raises ClientError if no site that can be reached knows the replicant."""
        sites = await self._locations.sites_of(target.meta_id)
        if not sites:
            raise ClientError(f"no reachable site knows {target.meta_id}", status=404)
        return sites

    def _searches(self, service: str) -> bool:
        return self._node.config.services[service].replication.search

    def _is_watched(self, service: str) -> bool:
        """Whether the agent must see all requests, also before there are replicants."""
        return self._searches(service) or self._interpreter.rules(service).need_all_requests

    def _is_never(self, service: str, method: str, path: str) -> bool:
        never = self._node.config.services[service].replication.never
        return first_match(never, method, canonical(path)) is not None

    def replicant_of(self, service: str, collection: str, name: str) -> tuple[str, bool] | None:
        if is_meta_id(name):
            return name.lower(), False
        index = self._copies.index
        found = index.whose_path(service, filled(f"{collection}/{ID}", name)) if index.has_service(service) else None
        return (found, True) if found and index.copies[found].is_named else None

    async def replicant_sites(self, meta_id: str) -> tuple[str, ...]:
        return await self._locations.known_here(meta_id)

    def with_local_ids(self, _service: str, head: RequestHead) -> RequestHead:
        return self._reads.with_local_ids(head)

    def _target(self, service: str, head: RequestHead, route: Replicas | None) -> Target | None:
        """The replicant that a request names. Raises ClientError for requests that must not be executed."""
        path, _ = split_target(head.target)
        refuse_moving(self._copies.index, service, head, has_scope=route is not None)
        target = target_of(self._copies.index, service, path)
        if target is None:
            refuse_whole_collection(self._copies.index, service, head)
        if head.method not in SAFE_METHODS and (target or (route and head.method in NAMING)):
            refuse_unexplained_query(service, self._interpreter.rules(service), head, target.item if target else path)
        return target

    async def _handle_unknown(self, service: str, incoming: IncomingRequest, route: Replicas | None) -> Response:
        method = incoming.head.method
        if route is None:
            return await self._handle_local(service, incoming)
        if method in SAFE_METHODS:
            if self._node.name in route.sites:
                return await self._reads.local(service, incoming.head, incoming)
            return await self._reads.at_nearest(service, incoming, route.sites, incoming.head.target)
        if method == "POST" or method in NAMING:
            return await self._changes.create(service, incoming, route.sites)
        if self._node.name not in route.sites:
            return await self._changes.forward(service, incoming, route.sites)
        target = await self._known_by_name(service, incoming.head, route)
        return await self._changes.change(service, incoming, target)  # created, but not at this site yet

    async def _known_by_name(self, service: str, head: RequestHead, route: Replicas) -> Target:
        """Raises ClientError if no site has told this one of such a resource."""
        target = named_target(service, head)
        if await self._locations.known_here(target.meta_id):
            return target
        raise _nothing_replicated(head.target, head, route)

    async def _handle_local(self, service: str, incoming: IncomingRequest) -> Response:
        head = incoming.head
        if head.method in _SEARCHING and not incoming.is_forwarded and self._searches(service):
            return await self._reads.local_or_elsewhere(service, incoming, named_target(service, head))
        return await self._reads.local(service, head, incoming)

    async def _creates_part(self, service: str, head: RequestHead, target: Target) -> bool:
        """Whether things of their own are created below a replicant: as the configuration says (`items`), or
        because it is a collection in which clients give the names."""
        if not target.sub_path:
            return False
        if head.method == "POST":
            return is_listed(target.path, self._node.config.services[service].replication.items)
        if head.method not in NAMING or not target.is_named:
            return False
        return is_collection(await self._node.pump.replica(target.meta_id))


def _effect_of(meaning: Meaning) -> Method:
    if meaning.is_deletion:
        return Method.DELETE
    return Method.CREATE if meaning.kind is RuleKind.CREATE else Method.UPDATE


def _nothing_replicated(place: str, head: RequestHead, route: Replicas | None) -> ClientError:
    where = " & ".join(route.sites) if route else "all sites"
    return ClientError(
        f"nothing that is replicated is at {printable(shortened(place))}, so {head.method} cannot be done at {where}; "
        "without '&' it goes to one site",
        status=404,
    )
