"""Who may ask what: every route and method of the agent's address, and the right that it needs.

What has no entry here is refused to everybody, and an application with such a route of its own is not even
made. A test walks through all routes.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from cheops.gateway.replicas import whereabouts
from cheops.node import fetching, origins, renewing
from cheops.security.principal import Role
from cheops.sync import heart, links

BASE = "/api/v1"


@dataclass(frozen=True, slots=True)
class Right:
    """What it takes to ask this."""

    role: Role | None = None  # of people and programs; None: it is not for them
    sites: bool = False  # whether other sites may
    is_open: bool = False  # whether anybody may
    whole: bool = False  # not with a token that is limited: it is about the site as a whole
    writes: bool = False  # noted in the audit log also where it is done
    resource: str = ""  # the part of the path that names a resource


_ANYBODY = Right(is_open=True)
_SITES = Right(sites=True)
_LOOK = Right(Role.VIEWER)
_LOOK_AT = Right(Role.VIEWER, resource="id")
_LOOK_AT_ALL = Right(Role.VIEWER, whole=True)
_CHANGE = Right(Role.OPERATOR, writes=True, resource="id")
_HAND_ON = Right(Role.OPERATOR, sites=True, writes=True, resource="id")  # by sites: what their clients asked
_RULE = Right(Role.ADMIN, whole=True, writes=True)
_RULE_READING = Right(Role.ADMIN, whole=True)

_COUCH = (
    *("/", "/{db}", "/{db}/", "/{db}/_changes", "/{db}/_revs_diff", "/{db}/_bulk_get", "/{db}/_bulk_docs"),
    *("/{db}/_ensure_full_commit", "/{db}/_local/{id:path}", "/{db}/{id:path}"),
)
_API: Mapping[tuple[str, str], Right] = {
    ("GET", "/openapi.json"): _LOOK,
    ("GET", "/healthz"): _ANYBODY,
    ("GET", "/readyz"): _ANYBODY,
    ("GET", "/check"): _LOOK_AT_ALL,
    # resources
    ("GET", "/resources"): _LOOK,
    ("GET", "/resources/{id}"): _LOOK_AT,
    ("GET", "/resources/{id}/status"): _LOOK_AT,
    ("GET", "/resources/{id}/explain"): _LOOK_AT,
    ("GET", "/resources/{id}/log"): _LOOK_AT,
    ("GET", "/resources/{id}/lanes"): _LOOK_AT,
    ("GET", "/resources/{id}/matrix"): _LOOK_AT,
    ("GET", "/resources/{id}/operations"): _LOOK_AT,
    ("GET", "/resources/{id}/operations/{op}"): _LOOK_AT,
    ("GET", "/resources/{id}/events"): _LOOK_AT,
    ("GET", "/resources/{id}/changes"): _LOOK_AT,
    ("POST", "/resources/{id}/verify"): _LOOK_AT,
    ("POST", "/resources/{id}/dry-run"): _LOOK_AT,
    ("GET", "/types"): _LOOK,
    ("GET", "/types/{name}/matrix"): _LOOK,
    ("GET", "/scope"): _LOOK,
    ("POST", "/resources/{id}/operations"): _HAND_ON,
    ("POST", "/resources/{id}/resolve"): _HAND_ON,
    ("DELETE", "/resources/{id}"): _CHANGE,
    ("PUT", "/resources/{id}/sites"): _CHANGE,
    ("POST", "/resources/{id}/sites"): _CHANGE,
    # replicants
    ("GET", "/replicants"): _LOOK,
    ("GET", "/replicants/{id}"): _LOOK_AT,
    ("PUT", "/replicants/{id}/local-id"): _CHANGE,
    ("GET", "/requests"): _LOOK_AT_ALL,
    ("GET", "/flows"): _LOOK_AT_ALL,
    # what happens
    ("GET", "/events"): _LOOK,
    ("GET", "/changes"): _LOOK,
    # sites
    ("GET", "/sites"): _LOOK,
    ("GET", "/sites/{name}"): _LOOK,
    ("POST", "/sites/{name}/ping"): _LOOK,
    ("POST", "/sites/{name}/admit"): _RULE,
    ("DELETE", "/sites/{name}"): _RULE,
    ("POST", "/invitations"): _RULE,
    ("GET", "/demo/wires"): _LOOK,
    ("PUT", "/demo/wires/{name}"): _RULE,
    ("DELETE", "/demo/wires/{name}"): _RULE,
    # who may ask
    ("GET", "/tokens"): _RULE_READING,
    ("POST", "/tokens"): _RULE,
    ("DELETE", "/tokens/{token}"): _RULE,
    ("GET", "/audit"): _RULE_READING,
    ("GET", "/session"): _LOOK,
    ("POST", "/session"): Right(is_open=True, writes=True),
    ("DELETE", "/session"): Right(Role.VIEWER, writes=True),
}

RIGHTS: Mapping[tuple[str, str], Right] = {
    **{(method, f"{BASE}{path}"): right for (method, path), right in _API.items()},
    ("POST", "/exec/{id:path}"): _HAND_ON,
    ("POST", "/show/{id:path}"): _LOOK_AT,
    ("GET", "/healthz"): _ANYBODY,
    ("GET", "/readyz"): _ANYBODY,
    ("GET", "/metrics"): _LOOK_AT_ALL,
    # between agents
    ("POST", f"/{heart.PATH}"): _SITES,
    ("POST", f"/{links.DATABASE}/_bulk_docs"): _SITES,  # live messages, with a header that marks them
    ("GET", f"/{fetching.PATH}/{{hash}}"): _SITES,
    ("GET", f"/{origins.PATH}/{{site:path}}"): _SITES,
    ("POST", "/peer/show"): _SITES,
    ("GET", f"/{whereabouts.PATH}/{{id}}"): _SITES,
    ("POST", f"/{renewing.PATH}"): _SITES,
    # newcomers, who have no certificate yet: the code of their invitation counts
    ("GET", "/join/authority"): _ANYBODY,
    ("POST", "/join"): Right(is_open=True, writes=True),
    # CouchDB's protocol: all documents of the site, as they are. Agents use nothing of it among themselves.
    **{("GET", f"/db{path}"): _RULE_READING for path in _COUCH},
    **{(method, f"/db{path}"): _RULE for method in ("POST", "PUT", "DELETE") for path in _COUCH[1:]},
}


def right_to(method: str, template: str) -> Right | None:
    """What it takes to ask a route; None: nobody may."""
    return RIGHTS.get(("GET" if method == "HEAD" else method, template))
