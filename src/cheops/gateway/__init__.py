"""The gateway: an HTTP/1.1 proxy in front of the services of a site, which routes each request by its scope.

    $ curl http://site1:8080/images -H 'Scope: {image: site2}'
    HTTP/1.1 200 OK
    Cheops-Site: site2

A request takes this path, one module after the other:

    server              accepts the connection
    client_connection   reads and checks one head after the other
    handler             one request from its head to the end of its response
    request             finds the service, the sender and the scope
    routing             decides: Local, Forward(site), InTurn(targets), Replicate(route). Pure
    dispatcher          sends it to one target, and to the next one if that fails and it is safe
    upstream            one request and its response on a connection of the pool (`connection`)
    responses           relays the response, or sends one of the gateway's own

Comes in: bytes of clients, of the local application (its own calls, whose scope `carriers` recovers) and of other
gateways (`peers` decides whether they are). Goes out: requests to the services of this site and to other gateways.
A request whose route has `&`, or that names a replicated resource, goes to a `Replication` (see `interfaces`), which
backends.http implements; this package does not import it.

Three rules hold everywhere:

- A request is sent to a second target only if the first certainly did nothing, or if it may be repeated.
  `UpstreamError.may_have_had_effect` carries that knowledge.
- What two programs could read differently is refused, not repaired.
- A body is never held as a whole, and a slow reader slows down the sender.

With HAProxy installed, `haproxy` has it forward everything that needs no decision; the agent sees the first request
with a scope, and what only it can do. This package may import node and everything below; api imports it.
"""
