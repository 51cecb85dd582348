"""The replicating half of the gateway: see seam.Replication.

a read             from the replica here, or from the nearest one that can be reached
a create with `&`  an operation that begins a resource
an update or a deletion of a replicant, with or without a scope: an operation at all its sites
anything else      to this site's own instance, with ids translated both ways
"""

from cheops.backends.http_ids import META_ID
from cheops.backends.http_paths import is_listed, split_target
from cheops.backends.http_request import is_json, media_type
from cheops.gateway.replicas.changing import Changing
from cheops.gateway.replicas.errors import LevelError, NoReplicantError, ReplicationRequestError
from cheops.gateway.replicas.reading import Reading
from cheops.gateway.replicas.targets import Target, target_of
from cheops.gateway.replicas.whereabouts import Whereabouts
from cheops.gateway.seam import Head, Incoming, Outgoing, Services, first
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
        self._whereabouts = Whereabouts(node)
        self._reading = Reading(node, services, self._whereabouts)
        self._changing = Changing(node, services, self._reading, self._whereabouts)

    def concerns(self, service: str, head: Head) -> bool:
        """Where the service has replicas here, every request may name one or list them; where others have,
        one with a body that ids are looked for in; else only one with a meta-id."""
        index = self._copies.index
        if META_ID.search(head.target):
            return True
        if first(head, "Upgrade") is not None:
            return False  # another protocol, of which nothing is known
        if index.has_service(service):
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
        path, _ = split_target(head.target)
        target = target_of(self._copies.index, service, path)
        if target is None:
            return await self._of_nothing_known(service, incoming, route)
        if head.method in SAFE:
            return await self._reading.read(service, incoming, target)
        if self._creates_part(service, head, target):
            sites = route.sites if route else await self._whereabouts.sites_of(target.meta_id)
            return await self._changing.create(service, incoming, sites)
        return await self._changing.change(service, incoming, target)

    async def _of_nothing_known(self, service: str, incoming: Incoming, route: Replicas | None) -> Outgoing:
        method = incoming.head.method
        if route is None:
            return await self._reading.local(service, incoming.head, incoming)
        if method in SAFE:
            if self._node.name in route.sites:
                return await self._reading.local(service, incoming.head, incoming)
            return await self._reading.at_nearest(service, incoming, route.sites, incoming.head.target)
        if method in ("POST", "PUT"):
            return await self._changing.create(service, incoming, route.sites)
        raise NoReplicantError(
            f"nothing that is replicated is at {incoming.head.target}, so {method} cannot be done at "
            f"{' & '.join(route.sites)}; without '&' it goes to one site"
        )

    def _creates_part(self, service: str, head: Head, target: Target) -> bool:
        """Whether things of their own are created below a replicant, as the configuration says (`items`)."""
        items = self._node.config.services[service].replication.items
        return head.method == "POST" and bool(target.sub_path) and is_listed(target.path, items)

    def _check(self, service: str, route: Replicas) -> None:
        if route.consistency is not Consistency.EVENTUAL:
            raise LevelError(
                f"the level '{route.consistency.value}' is not there yet for HTTP; without a level replicas "
                "become equal as soon as they can reach each other"
            )
        known = self._node.snapshot().sites
        lacking = [site for site in route.sites if site in known and service not in known[site].services]
        if lacking:
            raise ReplicationRequestError(f"there is no service '{service}' at {listed(lacking)}")
