"""The API under /api/v1: every endpoint, declared once.

A declaration has the method, the path, the right that a client needs, the parameters, the models of request and
response, the statuses of problems, and what the reference says. Everything else is derived from it: the route and the
validation of requests (`api.app`), the table of rights (`api.permissions`), the OpenAPI document (`api.openapi`),
the tables of docs/api.md, and the requests of both clients (`cheops.client`).

To add a route with its command (other pages refer to this list):

1. Declare the endpoint in `resources.py` or `site.py`, the modules that `ENDPOINTS` below reads, and its models in
   `cheops.api.models`:

       GET_SITE = Endpoint(
           name="getSite", method="GET", path="/sites/{name}", right=READ, tag="sites",
           summary="One site", response=SiteView, problems=(400, 404),
       )

2. Write the handler in the module of `cheops.api.handlers` for its subject; list a new module in `_SUBJECTS` of
   `cheops.api.app`. mypy compares the handler with the declaration, and the agent does not start without it:

       @handles(GET_SITE)
       async def get_site(request: ApiRequest) -> SiteView: ...

3. Write the command, which calls the endpoint by its declaration. This one is in `cheops.cli.get`, and
   `cheops.cli` says where a command is registered:

       @describe_app.command("site", epilog="Example: cheops describe site site2")
       def site_command(name: SiteArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
           "Show what the agent knows about a site."
           response = agent(url).call(GET_SITE, name)
           emit_answer(output, response, lambda out: _draw_facts(out, _site_facts(response)))

   Add a method to `cheops.client.methods` only for what several callers need, such as other programs.

4. Rewrite the tables of docs/api.md with `pytest tests/api/test_openapi.py --update-reference`, and describe the
   command in docs/cli.md.

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
