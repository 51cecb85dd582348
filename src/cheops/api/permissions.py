"""Permissions: the right that each route needs, and the resources that a client or another site may read and change."""

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
    """The client is authenticated, but has no right to do this. `reason` is a fixed text for each kind of refusal."""

    status = 403

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message, reason=reason)


def principal_of(request: Request) -> Principal:
    principal: Principal = request.scope.get("state", {}).get("principal", NOBODY)
    return principal


def may_see(by: Principal, replica: Replica) -> bool:
    """Whether a client may see a resource."""
    return _has_type(by, replica.type.name) and by.reach.sees(sites_of(replica))


def may_see_event(node: Node, by: Principal, event: Event) -> bool:
    """Whether a client may see an event."""
    if not by.is_limited:
        return True
    if not event.resource:
        return by.reach.sees(event.sites or (event.site,))
    # Only from memory: a stream must not load a resource from the store for each of its events.
    replica = node.pump.site.replicas.get(event.resource)
    rtype = event.resource_type or (replica.type.name if replica else "")
    sites = (event.site, *event.sites, *(sites_of(replica) if replica else ()))
    return _has_type(by, rtype) and by.reach.sees(sites)


async def check_resource(node: Node, by: Principal, id_: str, *, writes: bool) -> None:
    """Raises ForbiddenError if a client may not read, or change, a resource. A resource that is not known here passes:
    for a new one `submission` checks type and sites, and otherwise there is nothing to see."""
    if not by.is_limited and by.kind is not Kind.PEER:
        return
    replica = await node.pump.replica(id_)
    if not is_known(replica):
        return
    if writes or by.kind is Kind.PEER:
        check_change(node, by, replica, replica.type.name, sites_of(replica))
    elif not may_see(by, replica):
        where = f"of type '{replica.type.name}', at {in_words(sites_of(replica) or replica.history.site_list)}"
        raise _beyond_limits(by, f"'{printable(shortened(id_))}' is {where}")


def check_change(node: Node, by: Principal, replica: Replica, rtype: str, sites: Collection[str]) -> None:
    """Raises ForbiddenError if a client may not run an operation on a resource of this type at these sites."""
    if by.kind is Kind.PEER:
        check_involved(node, by, replica, rtype)
    check_type(by, rtype)
    check_sites(by, sites)


def check_sites(by: Principal, sites: Collection[str]) -> None:
    """Raises ForbiddenError if a client may not change resources at these sites."""
    if beyond := by.reach.beyond(sites):
        raise _beyond_limits(by, f"the resource is at {listed(beyond)} too")


def check_type(by: Principal, rtype: str) -> None:
    if not _has_type(by, rtype):
        service = service_of(rtype)
        what = f"service '{service}'" if service else f"type '{rtype}'"
        raise _beyond_limits(by, f"the resource is of {what}")


def check_site(by: Principal, site: str) -> None:
    if not by.reach.sees((site,)):
        raise _beyond_limits(by, f"this is about '{printable(shortened(site))}'")


def check_involved(node: Node, by: Principal, replica: Replica, rtype: str = "") -> None:
    """Raises ForbiddenError if another site is not involved in a resource, and may not forward requests for it."""
    if by.name in sites_of(replica):
        return
    rtype = replica.type.name or rtype
    if rtype and may_forward(node, by.name, rtype):
        return
    raise ForbiddenError(
        f"{by.name} is not one of the sites of '{printable(shortened(replica.resource))}', so {node.name} does nothing "
        f"with it on its behalf; send it to {node.name} ({node.config.advertise}), or set "
        f"'types.{rtype or 'NAME'}.policy.operate: mesh' at all sites",
        "site not involved",
    )


def may_forward(node: Node, site: str, rtype: str) -> bool:
    """Whether a site may forward operations on resources of this type that do not involve it."""
    policy = node.pump.site.settings.policy_of(rtype)
    operate = policy.operate if policy else SiteGroup.MESH
    return site in operate if isinstance(operate, tuple) else operate is SiteGroup.MESH


def require_role(by: Principal, role: Role, what: str) -> None:
    """Raises ForbiddenError unless a client has the role. Sites have no roles: they are judged by the resource."""
    if by.kind is not Kind.PEER and not by.may(role):
        raise ForbiddenError(f"{what} needs the role {role.value}, and {_role_of(by)}", "wrong role")


def _has_type(by: Principal, rtype: str) -> bool:
    return by.reach.has_type(rtype, service_of(rtype) if rtype else None)


def _beyond_limits(by: Principal, what: str) -> ForbiddenError:
    reach = by.reach
    limits = {"types": reach.types, "services": reach.services, "sites": reach.sites}
    limited = [f"{name} {listed(sorted(names))}" for name, names in limits.items() if names is not None]
    token = f"the token '{by.name}'" if by.kind is Kind.TOKEN else "the client's token"
    return ForbiddenError(f"{what}, and {token} is limited to {in_words(limited)}", "beyond the token's limits")


def _role_of(by: Principal) -> str:
    role = by.role.value if by.role else "nobody"
    return f"the token '{by.name}' has the role {role}" if by.kind is Kind.TOKEN else f"{by} is {role}"


_COUCH = (
    *("/", "/{db}", "/{db}/", "/{db}/_changes", "/{db}/_revs_diff", "/{db}/_bulk_get", "/{db}/_bulk_docs"),
    *("/{db}/_ensure_full_commit", "/{db}/_local/{id:path}", "/{db}/{id:path}"),
)
SITES_ONLY_PATH, SITES_ONLY_METHODS = "/peer/{rest:path}", ("GET", "POST", "PUT", "DELETE")
# Endpoints declare theirs; the routes beside the API have them here. The guard refuses to build a route without one.
RIGHTS: Mapping[tuple[str, str], Right] = {
    **{(endpoint.method, endpoint.template): endpoint.right for endpoint in ENDPOINTS},
    ("GET", f"{BASE}/openapi.json"): READ,
    ("POST", "/exec/{id:path}"): FORWARDABLE,
    ("POST", "/show/{id:path}"): READ_RESOURCE,
    ("GET", "/healthz"): ANYONE,
    ("GET", "/readyz"): ANYONE,
    ("GET", "/metrics"): READ_SITE,
    # Clients that try what is for sites (peers/endpoint.py) are refused, counted and named in the audit log.
    **{(method, SITES_ONLY_PATH): Right() for method in SITES_ONLY_METHODS},
    # A new site has no certificate yet: the secret in its invitation authenticates it.
    ("GET", "/join/authority"): ANYONE,
    ("POST", "/join"): Right(is_open=True, writes=True),
    # CouchDB's protocol gives access to all documents of the site. Agents do not use it among themselves.
    **{("GET", f"/db{path}"): ADMIN_READ for path in _COUCH},
    **{(method, f"/db{path}"): ADMIN for method in ("POST", "PUT", "DELETE") for path in _COUCH[1:]},
}


def right_to(method: str, template: str) -> Right | None:
    """The right that a route needs; None: no client may use it."""
    return RIGHTS.get(("GET" if method == "HEAD" else method, template))
