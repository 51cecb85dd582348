"""Between sites: who is there, what they send each other, and what a site believes of it.

**The mesh** knows which sites exist, which are up, and how far away they are. It is sans-I/O: `Mesh.tick` gives the
probes that are due, `Mesh.received_probe` the response to a probe of another site, and all of its methods give events
for the engine (`PeerUp`, `PeerDown`). The `Prober` drives it over HTTP:

    mesh = Mesh(own_record, {"site2": "https://site2:8080"}, now())
    probes, events = mesh.tick(now(), randrange)          # send the probes, pass the events to the engine
    events = mesh.probe_answered(probe.id, heartbeat, now())

    settings -> heartbeat -> membership, distances, liveness -> gossip, probes -> views -> mesh -> prober

**Messages** of the engine go out through `PeerLinks.send` and come in through the `PeerEndpoint`, which knows a site by
its certificate alone. The `DocumentIntake` checks signatures before the engine sees a document. Nothing is kept for
later on either side: the engine knows what each peer has acknowledged, and sends the rest again.

    engine: Send -> links -> client  ~~~>  endpoint -> intake -> engine: Received

**Trust**: `site_keys` holds the certificates of all sites, `enrollment` issues, renews and rejects them. **Files** that
operations name come by the `FileFetcher`, once the engine has accepted the operation. `couchdb/` is the replication
protocol for databases outside the mesh.

This package imports store, security, config and the engine; it does not know the node, the API or the gateway.
"""
