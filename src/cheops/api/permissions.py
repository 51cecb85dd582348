"""Which right a route needs, and which resources a client or another site may see and change."""

from collections.abc import Collection, Mapping

from starlette.requests import Request

from cheops.api.endpoints import BASE, ENDPOINTS
from cheops.api.endpoints.declaration import (
    ADMIN,
    ADMIN_READ,
    ANYONE,
    FORWARDABLE,
    READ,
    READ_RESOURCE,
    READ_SITE,
    Right,
)
from cheops.api.views.operations import sites_of
from cheops.api.views.status import is_known
from cheops.config.services import service_of
from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.log.policy import SiteGroup
from cheops.node.node import Node
from cheops.notify.event import Event
from cheops.security.principal import NOBODY, Kind, Principal, Role
from cheops.text import in_words, listed, printable, shortened


class ForbiddenError(ClientError):
    """Whoever asks is known, and may not. `reason` is the same for all of its kind."""

    status = 403

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


def principal_of(request: Request) -> Principal:
    found: Principal = request.scope.get("state", {}).get("principal", NOBODY)
    return found


def may_see(who: Principal, replica: Replica) -> bool:
    """Whether a resource may be looked at."""
    return _has_type(who, replica.type.name) and who.reach.sees(sites_of(replica))


def may_see_event(node: Node, who: Principal, event: Event) -> bool:
    """Whether somebody may hear of an event."""
    if not who.is_limited:
        return True
    if not event.resource:
        return who.reach.sees(event.sites or (event.site,))
    replica = node.pump.site.replicas.get(event.resource)
    rtype = event.resource_type or (replica.type.name if replica else "")
    sites = (event.site, *event.sites, *(sites_of(replica) if replica else ()))
    return _has_type(who, rtype) and who.reach.sees(sites)


async def check_resource(node: Node, who: Principal, id_: str, *, writes: bool) -> None:
    """Whether somebody may look at a resource, or change it; raises ForbiddenError. What is not known here
    is checked where its type and sites are made out, or there is nothing to see."""
    if not who.is_limited and who.kind is not Kind.PEER:
        return
    replica = await node.pump.replica(id_)
    if not is_known(replica):
        return
    if writes or who.kind is Kind.PEER:
        check_change(node, who, replica, replica.type.name, sites_of(replica))
    elif not may_see(who, replica):
        where = f"of type '{replica.type.name}', at {in_words(sites_of(replica))}"
        raise _beyond_limits(who, f"'{printable(shortened(id_))}' is {where}")


def check_change(node: Node, who: Principal, replica: Replica, rtype: str, sites: Collection[str]) -> None:
    """Whether somebody may have an operation of this type run at these sites; raises ForbiddenError."""
    if who.kind is Kind.PEER:
        check_involved(node, who, replica, rtype)
    check_type(who, rtype)
    check_sites(who, sites)


def check_sites(who: Principal, sites: Collection[str]) -> None:
    """Whether somebody may change what is at these sites; raises ForbiddenError."""
    if beyond := who.reach.beyond(sites):
        raise _beyond_limits(who, f"the resource is at {listed(beyond)} too")


def check_type(who: Principal, rtype: str) -> None:
    if not _has_type(who, rtype):
        service = service_of(rtype)
        what = f"service '{service}'" if service else f"type '{rtype}'"
        raise _beyond_limits(who, f"the resource is of {what}")


def check_site(who: Principal, site: str) -> None:
    if not who.reach.sees((site,)):
        raise _beyond_limits(who, f"this is about '{printable(shortened(site))}'")


def check_involved(node: Node, who: Principal, replica: Replica, rtype: str = "") -> None:
    """Whether another site has to do with a resource; raises ForbiddenError."""
    if who.name in sites_of(replica):
        return
    rtype = replica.type.name or rtype
    if rtype and may_forward(node, who.name, rtype):
        return
    raise ForbiddenError(
        f"{who.name} is not involved in '{printable(shortened(replica.resource))}', so {node.name} does "
        f"nothing with it on its behalf; ask {node.name} itself, or say 'policy: {{operate: mesh}}' for the "
        f"type there",
        "site not involved",
    )


def may_forward(node: Node, site: str, rtype: str) -> bool:
    """Whether a site may hand on operations on resources of this type that do not involve it."""
    policy = node.pump.site.settings.policy_of(rtype)
    operate = policy.operate if policy else SiteGroup.MESH
    return site in operate if isinstance(operate, tuple) else operate is SiteGroup.MESH


def require_role(who: Principal, role: Role, what: str) -> None:
    """For what takes more than its route; raises ForbiddenError. Sites are judged by where they are."""
    if who.kind is not Kind.PEER and not who.may(role):
        raise ForbiddenError(f"{what} needs the role {role.value}, and {_role_of(who)}", "wrong role")


def _has_type(who: Principal, rtype: str) -> bool:
    return who.reach.has_type(rtype, service_of(rtype) if rtype else None)


def _beyond_limits(who: Principal, what: str) -> ForbiddenError:
    reach = who.reach
    limits = {"types": reach.types, "services": reach.services, "sites": reach.sites}
    told = [f"{name} {listed(sorted(found))}" for name, found in limits.items() if found is not None]
    token = f"the token '{who.name}'" if who.kind is Kind.TOKEN else "the token of whoever asked"
    return ForbiddenError(f"{what}, and {token} is limited to {in_words(told)}", "beyond the token's limits")


def _role_of(who: Principal) -> str:
    role = who.role.value if who.role else "nobody"
    return f"the token '{who.name}' has the role {role}" if who.kind is Kind.TOKEN else f"{who} is {role}"


_COUCH = (
    *("/", "/{db}", "/{db}/", "/{db}/_changes", "/{db}/_revs_diff", "/{db}/_bulk_get", "/{db}/_bulk_docs"),
    *("/{db}/_ensure_full_commit", "/{db}/_local/{id:path}", "/{db}/{id:path}"),
)
RIGHTS: Mapping[tuple[str, str], Right] = {
    **{(endpoint.method, endpoint.template): endpoint.right for endpoint in ENDPOINTS},
    ("GET", f"{BASE}/openapi.json"): READ,
    ("POST", "/exec/{id:path}"): FORWARDABLE,
    ("POST", "/show/{id:path}"): READ_RESOURCE,
    ("GET", "/healthz"): ANYONE,
    ("GET", "/readyz"): ANYONE,
    ("GET", "/metrics"): READ_SITE,
    # newcomers, who have no certificate yet: the code of their invitation counts
    ("GET", "/join/authority"): ANYONE,
    ("POST", "/join"): Right(is_open=True, writes=True),
    # CouchDB's protocol: all documents of the site, as they are. Agents use nothing of it among themselves.
    **{("GET", f"/db{path}"): ADMIN_READ for path in _COUCH},
    **{(method, f"/db{path}"): ADMIN for method in ("POST", "PUT", "DELETE") for path in _COUCH[1:]},
}


def right_to(method: str, template: str) -> Right | None:
    """What it takes to ask a route; None: nobody may."""
    return RIGHTS.get(("GET" if method == "HEAD" else method, template))
