"""One site as a state machine: `Site.step(event, now_ms)` returns effects. No await, no clock, no randomness, no I/O.

The asyncio agent (cheops.node) and the simulator (cheops.sim) drive the very same code. It imports `cheops.log`, and
nothing that does I/O; import-linter keeps it so.

**Events in** (events.py). A client submits an operation (`Submitted`) or goes away (`ClientLeft`); a run has ended
(`Ran`); a peer sent a message (`Received`), came up or went down (`PeerUp`, `PeerDown`); documents that the engine
requested are loaded (`Loaded`, `Enumerated`); matrices came from another database (`MatricesReceived`); somebody looks
at a resource (`Queried`); the operator decided something (`Resolved`, `Retried`, `SitesRemoved`); time has passed
(`Tick`, about ten times per second). After a start the first event is `Recovered`.

**Effects out.** `Save` documents, `Run` commands on the local application, `Send` a message to a peer, `Answer` a
client, `Notify` an operator, `Load` a resource, `Enumerate` the resources of a peer. The driver reports what came of
`Run`, `Load` and `Enumerate` with an event; the others have no reply.

**Order and durability.** A step has at most one `Save`, which comes first; it is durable as a whole or not at all.
Saves become durable in the order of the steps. No other effect begins before the `Save` of its own step and all earlier
ones are durable. All safety rests on this: nothing is run, sent or answered before what it depends on is on disk. A
driver may make several saves durable at once, and may begin a `Load` early, since it only reads; `Run`, `Send` and
`Answer` begin in the order of the steps. A `Run` may take long; other steps go on meanwhile. There is one at a time per
resource.

**Duties of the driver.** For each `Run` there is at most one `Ran`, with one outcome or more; after a crash there is
none. `Loaded` holds the effect of every `Save` before its `Load`. The peer of `Received` is authenticated, or empty for
documents that came by another database.

**What may be lost.** Messages may be lost, delayed, reordered and duplicated; ticks may be late. The process may stop
between any two effects. The clock of the site may be wrong and may jump.

A site takes an operation of a client, runs it, and sends it to the other site of the resource:

    >>> from cheops.engine.events import Loaded, Outcome, Ran, Result, Submitted
    >>> from cheops.engine.settings import Settings
    >>> from cheops.engine.site import Site
    >>> from cheops.log.operation import Command, Origin
    >>> site = Site(Origin("site1", "incarnation-1"), Settings())

    >>> submitted = Submitted("request-1", "counter", "set", Command("SET counter 5"), sites=("site1", "site2"))
    >>> site.step(submitted, now_ms=1_000)  # the resource is not in memory
    [Load(resource='counter')]

    >>> save, answer, run = site.step(Loaded("counter", ()), now_ms=1_001)  # the store has nothing of it: it is new
    >>> [type(document).__name__ for document in save.documents]  # `Started`: so that a crash during the run is seen
    ['SiteClock', 'Operation', 'Started', 'Ledger']
    >>> answer.stage, str(answer.op)
    (<Stage.ACCEPTED: 'accepted'>, 'site1:1')
    >>> [step.payload.line for step in run.steps]
    ['SET counter 5']

    >>> save, answer, send = site.step(Ran("counter", run.n, (Outcome(Result.OK, "OK"),)), now_ms=1_020)
    >>> [type(document).__name__ for document in save.documents], save.forget  # with its verdict, and the reply
    (['Operation', 'Reply'], (('started', 'counter'),))
    >>> answer.stage, answer.status
    (<Stage.DECIDED: 'decided'>, <Status.OK: 'OK'>)
    >>> send.peer, [str(op.id) for op in send.message.ops]  # sent again with later ticks until site2 acknowledges it
    ('site2', ['site1:1'])

Where to read on: status.py has the life of an operation on one page; site.py dispatches events; replica.py lists the
owners of a resource's state; scheduler.py decides what to run and outcome.py what follows from it; exchange.py is the
protocol between sites, hub.py how all hear of all, catch_up.py how a site gets what it lacks; evidence.py says what
is known of the other sites; retention.py decides what is forgotten; steadiness.py when a tick has nothing to do.
"""
