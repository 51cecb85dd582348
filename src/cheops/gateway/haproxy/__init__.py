"""HAProxy as the data plane: the agent decides once per scope and installs a flow; HAProxy forwards from then on.

    Scope: {image: site2}     a client's first request: HAProxy finds no flow and hands it to the agent
    image.map: %7Bimage...    -> to.image.site2      the agent serves it and installs this entry
    Scope: {image: site2}     all later ones: one lookup in the map, and the agent does not see them

The one rule: HAProxy must never do anything else than the agent would. So whatever could change a decision withdraws
its flow first: a site that goes up or down, changed services or addresses, distances, the first replica of a service.
What HAProxy cannot judge (an unusual head, a body with ids of replicated resources) it hands over to the agent.

    plane           starts and watches it, installs and withdraws flows
    flows           the table of flows, and which changes concern them. Pure but for RouteWatch
    admission       what HAProxy may decide alone: trusted gateways, services without replicas, carriers
    layout          what the configuration depends on, and the names in it. Pure
    configuration, frontends    the files that HAProxy reads, rendered from a layout. Pure
    process         the HAProxy process; it outlives an agent that is killed
    runtime         its command socket, and updates of its maps
    handover        requests that it hands to the agent
    counters        what it served

Imports the rest of gateway but server and handler. docs/adr/0013 says why it is HAProxy, and why in this way.
"""
