"""Everything that an agent answers on its one address: the API under /api/v1, forms, probes, and other agents.

A request passes, from the outside in:

    server        sockets, TLS, limits on connections
    guard         authenticates the client, checks its right to the route, records the outcome for the audit log
    app           routes: one for each declared endpoint, and those beside the API
    request       path, parameters and body, checked against the declaration; an error as a problem document (RFC 9457)
    handlers/     one function per endpoint, which returns the model of the response
    submission    for an operation: checks it, and hands it to the engine, or to a site that is involved
    views/        pure functions from a replica of the engine to a model

`endpoints/` declares every endpoint once, and `models/` what requests and responses contain. These two import nothing
of the server, because the clients use them as well. Routes, rights, the OpenAPI document, docs/api.md and the
requests of the clients are derived from the declarations.

`endpoints/__init__.py` lists the steps to add a route with its command, with an example.

This package may import everything below it except the command line and the client: a handler reads the node, the
engine's replicas and the gateway, and changes them only through the node's own methods.
"""
