"""Between sites: who is there, what they send each other, and what a site believes of it.

**The mesh** knows which sites exist, which are up, and how far away they are. It is sans-I/O: `Mesh.tick` gives the
probes that are due, `Mesh.received_probe` the response to a probe of another site, and all of its methods give events
for the engine (`PeerUp`, `PeerDown`). The `Prober` drives it:

    mesh = Mesh(own_record, {"site2": "https://site2:8080"}, now())
    probes, events = mesh.tick(now(), randrange)          # send the probes, pass the events to the engine
    events = mesh.probe_answered(probe.id, heartbeat, now())

    settings -> heartbeat -> proofs -> membership, distances, liveness -> gossip, probes -> views -> mesh -> prober

**Channels**: two agents share one connection, which either side opens (`upgrade`, answered by `endpoint`) and both use.
The `ChannelPool` has one per site. Framing and priorities are sans-I/O, too (`frames`, `outbox`).

    status, body = await pool.request("site2", "identity", b"site3", timeout_s=5, most_bytes=1_000)

    frames -> outbox, streams, inbox -> channel -> upgrade -> relays, tunnels -> channel_pool

**Messages** of the engine go out through `PeerLinks.send` and come in through the `PeerService`, which knows a site by
the certificate of its channel alone. The `DocumentIntake` checks signatures before the engine sees a document. Nothing
is kept for later on either side: the engine knows what each peer has acknowledged, and sends the rest again.

    engine: Send -> links -> channel  ~~~>  channel -> service -> intake -> engine: Received

**Trust**: `proofs` signs and verifies the records of the mesh, `site_keys` holds the certificates of all sites,
`enrollment` issues, renews and rejects them. **Files** that operations name come by the `FileFetcher`, once the engine
has accepted the operation. `couchdb/` is the replication protocol for databases outside the mesh.

This package imports store, security, config and the engine; it does not know the node, the API or the gateway.
"""
