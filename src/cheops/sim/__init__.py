"""The simulator: many sites in one process, under a virtual clock and a hostile network, with the production engine.

A history is a function of its seed: what clients submit, which messages are lost, delayed or duplicated, which sites
crash between which effects, how wrong their clocks are. At its end everything is healed, and the invariants must hold:
nothing acknowledged is lost, all sites agree, nothing ran twice. A failure can be replayed, and is shrunk to the
smallest profile that still fails. It may import everything up to the agent; it drives `cheops.engine`, and with a
hostile site also the checks of `cheops.peers`, and with HTTP services also `cheops.backends.http`.

    workload        what clients and faults do, by profile
    world           carries out the effects of all sites, with faults, in virtual time
    node            one site: engine, disk, application, clock
    apps            the applications
    invariants      what must hold at the end
    byzantine       a world with a hostile site
    mutator         what the hostile site sends: tactics; forger makes its false documents
    heartbeats      the meshes of all sites, and the hostile site's heartbeats
    wire            messages as bytes: signed, packed, and checked by the receiver
    agreement       what must hold at the honest sites at the end
    http_world      a world whose applications are HTTP services behind gateways
    http_agent      one life of such an agent: the production code of HTTP replication
    http_service    the services
    http_clients    what their clients do
    http_agreement  what must hold at the end: the services are compared
    event_loop      asyncio in virtual time
    simulation      one history, and how it is shrunk and shown
    scripted_world  a world without randomness, driven by tests and by scenario scripts
    script          the language of tests/scenarios/*.txt
    transcript      how scenarios print what happens

    play(seed=7, sites=3, profile=PROFILES["crashes"]).problems  # () if all invariants hold
"""
