"""Backends run operations on the application of one site.

A backend is the only code that knows what a payload means: `redis-cli incr n` to the command backend, a recorded
HTTP request to the HTTP backend, `set n 5` to one that you write. The engine decides *when* something runs and in
which order; a backend runs it and reports what became of it.

    in      `Run`: a resource and the steps to run, in order
    out     one `Outcome` per step that was tried: OK, KO (failed for certain), RETRY (nothing happened, try again),
            MAYBE (it may have had an effect; an operator resolves it)

A resource type names its backend (`types.NAME.backend`; `command` if it names none), and the resources of an HTTP
service belong to `http`. Other code finds the backend of a type in `node.backends` and uses it through the `Backend`
base class, whichever it is. There are two exceptions: the gateway's replication and the API of replicants know the
HTTP backend; and the command runner serves every backend (`context.commands`), and notifications, too.

`command` and `http` are built in. Others come with installed packages, by an entry point of the group
`cheops.backends`:

    [project.entry-points."cheops.backends"]
    kv = "cheops_kv:KvBackend"

    class KvBackend(Backend):
        async def run_step(self, run: Run, step: Step) -> Outcome:
            file = self.context.types[run.rtype].options["file"]  # from `types.NAME.options`
            verb, _, value = step.payload.line.partition(" ")
            ...
            return Outcome(Result.OK, value)

        async def read(self, rtype: str, resource: str, request: str) -> Outcome:
            ...
            return Outcome(Result.OK, state)  # sites are compared by this text

`protocol` has the base class and says what each method must do. It imports the configuration and the engine's data
types, nothing else. docs/backends.md shows how to write a backend; examples/backend-kv is a complete one.
"""
