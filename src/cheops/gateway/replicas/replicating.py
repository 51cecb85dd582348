"""The replicating half of the gateway: see seam.Replication.

a read             from the replica here, or from the nearest one that can be reached
a create with `&`  an operation that begins a resource; so is one in a replicated collection
an update or a deletion of a replicant, with or without a scope: an operation at all its sites
anything else      to this site's own instance, with ids translated both ways

MOVE and COPY that touch a replicant are refused, and so is what would change replicants by way of something
that holds them and is none: see refusals.py.
"""

from cheops.backends.http_ids import META_ID, meta_id_of
from cheops.backends.http_paths import canonical, is_listed, split_target, trimmed
from cheops.backends.http_request import COLLECTING, NAMING, is_json, media_type
from cheops.gateway.replicas.changing import Changing
from cheops.gateway.replicas.errors import (
    LevelError,
    NoReplicantError,
    ReplicationRequestError,
)
from cheops.gateway.replicas.reading import Reading
from cheops.gateway.replicas.refusals import refuse_moving, refuse_whole
from cheops.gateway.replicas.submitting import is_collection
from cheops.gateway.replicas.targets import Target, target_of
from cheops.gateway.replicas.whereabouts import Whereabouts
from cheops.gateway.seam import Foretold, Head, Incoming, Outgoing, Services, first
from cheops.node.node import Node
from cheops.scope.route import Replicas
from cheops.scope.tree import Consistency
from cheops.text import listed

SAFE = frozenset(("GET", "HEAD", "OPTIONS", "TRACE", "PROPFIND", "REPORT", "SEARCH", "QUERY"))
_FORM = "application/x-www-form-urlencoded"


class Replicating:
    def __init__(self, node: Node, services: Services) -> None:
        self._node = node
        self._copies = node.replicants.runner.copies
        node.replicants.runner.sending.carry = services.carry
        self._whereabouts = Whereabouts(node)
        self._reading = Reading(node, services, self._whereabouts)
        self._changing = Changing(node, services, self._reading, self._whereabouts)

    def concerns(self, service: str, head: Head) -> bool:
        """Where the service has replicas here, every request may name one or list them; where others have,
        one with a body that ids are looked for in; else only one with a meta-id."""
        index = self._copies.index
        if index.has_service(service) or META_ID.search(head.target):
            return True
        if len(index):
            content_type = first(head, "Content-Type") or ""
            if is_json(content_type) or media_type(content_type) == _FORM:
                return True
        return any(META_ID.search(value) for _, value in head.headers)

    async def handle(self, service: str, incoming: Incoming, route: Replicas | None) -> Outgoing:
        if route is not None:
            self._check(service, route)
        head = incoming.head
        target = self._target(service, head, route)
        if target is None:
            return await self._of_nothing_known(service, incoming, route)
        if head.method in SAFE:
            return await self._reading.read(service, incoming, target)
        if head.method in COLLECTING and target.is_named and not target.sub_path:
            return await self._reading.local(service, head, incoming)  # it is there, as the service will say
        if await self._creates_part(service, head, target):
            sites = route.sites if route else await self._whereabouts.sites_of(target.meta_id)
            within = target.meta_id if target.is_named else ""
            return await self._changing.create(service, incoming, sites, within)
        return await self._changing.change(service, incoming, target)

    async def foretell(self, service: str, head: Head, route: Replicas | None) -> Foretold | None:
        """See seam.Replication."""
        if route is not None:
            self._check(service, route)
        target = self._target(service, head, route)
        if target is None:
            return None
        await self._reading.refuse_deleted(target)
        sites = await self._whereabouts.sites_of(target.meta_id)
        if not sites:
            raise NoReplicantError(f"no site that can be asked now knows of {target.meta_id}")
        return Foretold(target.meta_id, sites, goes_everywhere=head.method not in SAFE)

    def to_local(self, _service: str, head: Head) -> Head:
        """See seam.Replication."""
        return self._reading.to_local(head)

    def _target(self, service: str, head: Head, route: Replicas | None) -> Target | None:
        """The replicant that a request speaks of. Raises what is to be said where it must not be done."""
        path, _ = split_target(head.target)
        refuse_moving(self._copies.index, service, head, has_scope=route is not None)
        target = target_of(self._copies.index, service, path)
        if target is None:
            refuse_whole(self._copies.index, service, head)
        return target

    async def _of_nothing_known(self, service: str, incoming: Incoming, route: Replicas | None) -> Outgoing:
        method = incoming.head.method
        if route is None:
            return await self._reading.local(service, incoming.head, incoming)
        if method in SAFE:
            if self._node.name in route.sites:
                return await self._reading.local(service, incoming.head, incoming)
            return await self._reading.at_nearest(service, incoming, route.sites, incoming.head.target)
        if method == "POST" or method in NAMING:
            return await self._changing.create(service, incoming, route.sites)
        if self._node.name not in route.sites:
            return await self._changing.hand_on(service, incoming, route.sites)
        if await self._whereabouts.known_here((target := self._named(service, incoming.head)).meta_id):
            return await self._changing.change(service, incoming, target)  # it is on its way to this site
        raise NoReplicantError(
            f"nothing that is replicated is at {incoming.head.target}, so {method} cannot be done at "
            f"{' & '.join(route.sites)}; without '&' it goes to one site"
        )

    async def _creates_part(self, service: str, head: Head, target: Target) -> bool:
        """Whether things of their own are created below a replicant: as the configuration says (`items`), or
        because it is a collection in which clients give the names."""
        if not target.sub_path:
            return False
        if head.method == "POST":
            return is_listed(target.path, self._node.config.services[service].replication.items)
        if head.method not in NAMING or not target.is_named:
            return False
        return is_collection(await self._node.pump.replica(target.meta_id))

    def _named(self, service: str, head: Head) -> Target:
        """What a client calls so, if there is such a thing."""
        sent = canonical(split_target(head.target)[0])
        path = trimmed(sent)
        return Target(meta_id_of("path", service, path), sent, path, is_named=True)

    def _check(self, service: str, route: Replicas) -> None:
        if route.consistency is not Consistency.EVENTUAL:
            raise LevelError(
                f"the level '{route.consistency.value}' is not there yet for HTTP; without a level replicas "
                "become equal as soon as they can reach each other"
            )
        known = self._node.snapshot().sites
        lacking = [site for site in route.sites if site in known and known[site].lacks(service)]
        if lacking:
            raise ReplicationRequestError(f"there is no service '{service}' at {listed(lacking)}")
