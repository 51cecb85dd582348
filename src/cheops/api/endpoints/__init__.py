"""The API under /api/v1: every endpoint, declared once.

A declaration has the method, the path, the right that a client needs, the parameters, the models of request and
response, the statuses of problems, and what the reference says. Everything else is derived from it: the route and the
validation of requests (`api.app`), the table of rights (`api.permissions`), the OpenAPI document (`api.openapi`),
the tables of docs/api.md, and the requests of both clients (`cheops.client`).

To add a route with its command:

1. Declare the endpoint here, and its models in `cheops.api.models`:

       PING_SITE = Endpoint(
           name="pingSite", method="POST", path="/sites/{name}/ping", right=READ, tag="sites",
           summary="Send a request to a site, and measure the response time", response=Ping, problems=(400, 404),
       )

2. Write the handler in the module of `cheops.api.handlers` for its subject. mypy compares it with the declaration:

       @handles(PING_SITE)
       async def ping_site(request: ApiRequest) -> Ping: ...

3. Write the command, with `agent.call(PING_SITE, name)`. A method of its own in `cheops.client.methods` is for what
   programs use too.

`pytest tests/api/test_openapi.py --update-reference` rewrites the tables of docs/api.md.

These modules import nothing of the server: the command line uses them, and must start fast.
"""

from typing import Any

from cheops.api.endpoints import resources, site
from cheops.api.endpoints.declaration import BASE, Endpoint

# In the order of their declaration, in which the reference lists them.
ENDPOINTS: tuple[Endpoint[Any, Any, Any], ...] = tuple(
    value for module in (resources, site) for value in vars(module).values() if isinstance(value, Endpoint)
)

TAGS = {
    "resources": "What the application manages, at one or several sites.",
    "operations": "Changes of resources.",
    "replicants": "Resources of HTTP services, at several sites.",
    "requests": "Requests that the gateway served.",
    "scopes": "Where requests would be executed.",
    "sites": "The sites of the mesh.",
    "events": "Events as they happen.",
    "access": "Tokens, sessions and the audit log.",
    "agent": "The health of the agent itself.",
    "demo": "In demo mode: cut sites off and join them again.",
}

# What the last parameter of a path means, and an example.
PATH_PARAMETERS = {
    "/resources/{id}": ("The id of the resource, percent-encoded.", "counter"),
    "/resources/{id}/operations/{op}": ("The operation: site and number.", "site1:3"),
    "/replicants/{id}": ("The meta-id of the replicant.", "c4e095a1-a357-8d5c-85fc-1e35020baf87"),
    "/types/{name}": ("The name of the resource type, percent-encoded.", "counter"),
    "/sites/{name}": ("The name of the site, percent-encoded.", "site2"),
    "/demo/wires/{name}": ("The name of the site, percent-encoded.", "site2"),
    "/tokens/{token}": ("The id or the name of the token, percent-encoded.", "ci"),
}

__all__ = ["BASE", "ENDPOINTS", "PATH_PARAMETERS", "TAGS", "Endpoint"]
