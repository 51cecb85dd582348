"""One running site: the asyncio side of the engine.

`Node` wires the parts of a site together; `node.py` lists them in the order in which they start. The `Pump` drives the
engine: events in, decisions durable, then effects out. `EffectExecutor` carries the effects out, `Backends` runs the
operations, `limits` says when this site accepts none.

    node = Node(read_site(path))
    await node.start()                       # needs no other site
    with node.answers() as answers:
        node.submit(Submitted(request=answers.request, ...))
        first = await answers.next()         # durable, or refused
    await node.stop()

Everything that comes from outside becomes an event: `pump.post(Received(...))`, `pump.post(Ran(...))`. The engine
itself never waits; whatever waits is here, or in the packages below. The API and the gateway use the node, never the
reverse.
"""
