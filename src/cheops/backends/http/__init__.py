"""The HTTP backend: resources of HTTP services, replicated at several sites by repeating requests.

    $ curl -X POST http://site1:8080/images -H 'Scope: site1 & site2' -d '{"name": "ubuntu"}'
    {"id": "c4e095a1-...", "name": "ubuntu"}

The `id` is a *meta-id*, the same at all sites. The service of each site gave its own copy a *local id*, which only
that site knows (`copies`). Everything in the log has meta-ids; everything sent to a service has local ids.

A change, from the client to the services:

    replication     the gateway's `Replication`: which requests concern replicated resources, and what becomes of each
    request         what a client requests: target, preferences, conditions
    changes         a request becomes an operation
    turns           a parent that is being created, and what goes into it: one after the other
    submission      hands the operation to the engine, and waits as long as the client wants
    payload         the operation's payload: an HTTP request as JSON; and what its response means
    backend         the `Backend`: runs the operation at each site
    rules           whether it may be replicated, here and at every other site; `secrets`: what is never written down
    identity        who the client is, so that other sites can run it with that client's rights
    sender          sends it to the service, with local ids and credentials (`credentials`)
    existing        what to do if the service has the resource already
    copies          remembers the local id
    order, moves    what it waits for at other sites; what gives a resource another name

A read: `replication`, `reads`, `translation` (local ids to meta-ids in the response), with `ids` and `paths`.
`locations` finds the sites of a resource that this site does not have.

May import gateway and node, and everything below them. Only api, the agent and the simulator import it.
"""
