"""False documents of a hostile site: well signed by it where that is possible, and wrong.

A forger knows what its own site's engine knows. It draws everything from its seed.
"""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from msgspec.structs import replace

from cheops.engine.documents import Base, EpochRecord, Message, Snapshot
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, joined
from cheops.log.matrix import Matrix
from cheops.log.operation import (
    MAX_COUNTER,
    MAX_NUMBER,
    Command,
    FileRef,
    Kind,
    MatrixRef,
    Operation,
    Origin,
    Seal,
    Stamp,
    Verdict,
)
from cheops.sim.apps import APPS
from cheops.sim.node import Node
from cheops.sim.wire import Wire
from cheops.sim.workload import reset_line

# Ids that mean another file, an option, or nothing that a terminal shows.
BAD_IDS = ("../../../../x", "/etc/x", "-rf", "a/../../x", "a\nb", "x\x1b[2J", "\u202egnp", "..", "a//b", "x" * 900)
NUMBERS = (0, 1, 2, 3, 7, MAX_COUNTER, MAX_COUNTER, (1 << 31) - 1, MAX_NUMBER - 1, MAX_NUMBER)
_WIPING = (Kind.DELETE, Kind.FORCE, Kind.SITES)  # the command of SITES deletes the copy of a site that leaves
_MOST_INCARNATIONS = 8
_MOST_INVENTED = 60  # operations in one history: an honest site keeps each that it accepts

Tree = Any  # plain data: dictionaries, lists, texts, numbers


class Forger:
    def __init__(
        self, node: Node, wire: Wire, others: tuple[str, ...], random: Random, now_ms: Callable[[], int]
    ) -> None:
        self._node = node
        self._site = node.name
        self._wire = wire
        self._others = others
        self._random = random
        self._numbers: Counter[tuple[str, Origin]] = Counter()  # of operations that it made up
        self._now_ms = now_ms
        self._roots: list[Stamp] = []  # of seals that it has seen
        self._heard: dict[str, None] = {}  # resources that others have sent something about

    @property
    def now_ms(self) -> int:
        """By the clock of its site."""
        return self._now_ms()

    @property
    def is_exhausted(self) -> bool:
        """Whether it has made up as many operations as a history may have."""
        return self._numbers.total() >= _MOST_INVENTED

    def overhear(self, message: Message) -> None:
        self._heard[message.resource] = None
        self._roots += [op.seal.root for op in message.ops if op.seal and op.seal.root not in self._roots]

    # -- documents -------------------------------------------------------------------------------------

    def changed(self, op: Operation) -> Operation:
        """Another content under the id of an operation of this site, well signed."""
        return self._wire.signed(self.mutated(op), self._site)

    def mutated(self, op: Operation) -> Operation:
        app = APPS.get(op.rtype)
        type_, line = app.invent(self._random) if app else ("set", "set 1")
        stamps = (0, self.now_ms, self.now_ms + 5_000, op.stamp.time_ms - 1, op.stamp.time_ms + 1)
        changes: dict[str, Any] = self._random.choice(
            (
                {"type": type_, "payload": Command(line)},
                {"payload": Command("fail")},
                {"type": type_, "payload": Command(line, (FileRef("f", "0" * 64, self.number(5)),))},
                self._kind(op.rtype, self._random.choice(tuple(Kind)), op.payload),
                {"deps": self.wrong(op.deps)},
                {"stamp": op.stamp._replace(time_ms=max(0, self._random.choice(stamps)))},
                {"stamp": op.stamp._replace(counter=self.number(op.stamp.counter))},
                {"stamp": op.stamp._replace(origin=Origin(self._random.choice(self._others), "1"))},
                {"verdict": self._random.choice(tuple(Verdict))},
                {"sites": self.site_list()},
                {"rtype": self._random.choice((*APPS, "", "other"))},
                {"matrix": op.matrix._replace(hash=Matrix().hash)},
                {"matrix": op.matrix._replace(introduced=op.stamp)},
                {"seal": self.seal(op.resource, op.deps, op.stamp)},
                {"parallel": True},
                {"why": "x" * 100},
            )
        )
        if op.kind in _WIPING and changes.get("payload", op.payload).line != "fail":
            changes |= self._kind(op.rtype, changes.get("kind", op.kind), changes.get("payload", op.payload))
        return replace(op, **changes)

    def operation(self, resource: str, origin: Origin | None = None, **changes: Any) -> Operation:
        """A new operation of this site."""
        origin = origin or self.origin()
        rtype = next((op.rtype for op in self.ops(resource)), self._random.choice(tuple(APPS)))
        app = APPS.get(rtype) or APPS["counter"]
        type_, line = app.invent(self._random)
        before = self._numbers[resource, origin]
        self._numbers[resource, origin] += 1
        deps = joined(self.known(resource), {origin: before} if before else {})
        stamp = Stamp(self.now_ms, 0, origin)
        ref = self._matrix_ref(resource) or MatrixRef(app.matrix.hash, stamp)
        kinds = (Kind.NORMAL,) * 6 + tuple(Kind)
        fields: dict[str, Any] = {"kind": self._random.choice(kinds), "sites": None, **changes}
        fields |= self._kind(rtype, fields["kind"], Command(line))
        if fields["kind"] is Kind.SITES or not deps:
            fields["sites"] = fields["sites"] or self.site_list()
        op = Operation(
            resource,
            rtype,
            type_,
            fields["kind"],
            fields["payload"],
            origin,
            before + 1,
            deps,
            stamp,
            ref,
            fields["sites"],
            verdict=Verdict.OK,
        )
        return self._wire.signed(op, self._site)

    def own_history(self, resource: str) -> tuple[Operation, ...]:
        """The beginning of a resource, by a new store of this site, and a seal of it. Most are stamped early."""
        origin = Origin(self._site, f"h{self._numbers.total()}")
        sites = self._random.choice(((self._site,), (self._site, *self._others), self.site_list()))
        first = replace(self.operation(resource, origin, kind=Kind.NORMAL, sites=sites), deps={}, sites=sites)
        time_ms = self._random.choice((1, 1, self.now_ms - 60_000, self.now_ms))
        stamp = Stamp(time_ms, 0, origin)
        ref = self._random.choice((first.matrix._replace(introduced=stamp), first.matrix))
        first = replace(first, stamp=stamp, matrix=ref)
        later = stamp._replace(counter=1)
        seal = Seal({origin: 1}, self._random.choice((later, later, self.root(later))), (origin,))
        sealing = replace(
            self.operation(resource, origin, kind=Kind.SEAL), deps={origin: 1}, stamp=later, matrix=ref, sites=None
        )
        return tuple(self._wire.signed(op, self._site) for op in (first, replace(sealing, seal=seal)))

    def _kind(self, rtype: str, kind: Kind, payload: Command) -> dict[str, Any]:
        """A kind with a command that does what the kind says. The rules rest on that for every operation, whichever
        site it comes from: no site can see what a command does."""
        app = APPS.get(rtype) or APPS["counter"]
        wipes = kind in _WIPING
        return {"kind": kind, "payload": Command(reset_line(app)) if wipes else payload}

    def about(self, resource: str, ops: tuple[Operation, ...] = ()) -> Message:
        known = self.known(resource)
        matrices = tuple(APPS[op.rtype].matrix for op in ops if op.rtype in APPS)
        return Message(
            resource, self._node.origin.incarnation, ops, matrices=matrices[:1], known=known, settled=known, ask=True
        )

    def snapshot(self, resource: str, known: Vector) -> Snapshot:
        ops = self.ops(resource)
        rtype = ops[0].rtype if ops else "counter"
        write = Command({"counter": "write 666", "file": "set x"}.get(rtype, "set 5"))
        floor = self._random.choice((dict(known), self.wrong(known)))
        stamp = self._random.choice(ops).stamp if ops else Stamp(1, 0, self._node.origin)
        adopted = self._matrix_ref(resource)
        return Snapshot(
            floor,
            self._random.choice(({}, self.wrong(known))),
            self._random.choice((None, Base(self._random.choice((floor, self.wrong(known))), write))),
            self._random.choice((adopted, adopted and adopted._replace(introduced=stamp))),
            self._random.choice(((), (EpochRecord(stamp, self.wrong(known), ()),))),
            self._random.choice((frozenset(), frozenset({stamp}))),
            self._random.choice((None, stamp, self.root(stamp))),
        )

    def seal(self, resource: str, deps: Vector, stamp: Stamp) -> Seal:
        """A claim that all sites have settled what its author knows, or more: in its own name, or in that of others."""
        some = {origin: self._random.randint(1, n) for origin, n in deps.items() if self._random.random() < 0.7}
        stable = self._random.choice((dict(deps), some, self.wrong(deps)))
        replica = self._replica(resource)
        listed = tuple(sorted(replica.history.site_list)) if replica else ()
        sites = self._random.choice(((self._site,), self.site_list(), listed or (self._site,)))
        own = stamp.origin
        origins = (own if site == own.site else Origin(site, "1") for site in sites)
        return Seal(stable, self.root(stamp), tuple(origins))

    def root(self, stamp: Stamp) -> Stamp:
        return self._random.choice((stamp, Stamp(1, 0, self._node.origin), *self._roots))

    def wrong(self, vector: Vector) -> dict[Origin, int]:
        """A vector that is not true: other numbers, other origins, or some left out."""
        wrong = dict(vector)
        for _ in range(self._random.randint(1, 3)):
            honest = Origin(self._random.choice(self._others), self._random.choice(("1", "1", "2")))
            invented = Origin(f"site{self._random.randint(90, 99)}", "1")
            origin = self._random.choice((*vector, honest, honest, invented, self._node.origin))
            if self._random.random() < 0.2:
                wrong.pop(origin, None)
            else:
                wrong[origin] = self.number(wrong.get(origin, 0))
        return wrong

    def number(self, number: int) -> int:
        near = (max(0, number - 1), number + 1, number + 2, number + 10)
        return self._random.choice((*near, *near, *NUMBERS))

    def site_list(self) -> tuple[str, ...]:
        """A list of sites, for the most part with this one on it."""
        some = self._random.sample(self._others, self._random.randint(0, len(self._others)))
        odd = self._random.choice(((), (), (), ("nowhere",), ("../x",), (some[0],) if some else ()))
        own = (self._site,) if self._random.random() < 0.8 else ()
        return (*own, *some, *odd) or (self._site,)

    def origin(self) -> Origin:
        """Of this site: the incarnation that it really has, or one of some that it makes up."""
        return Origin(self._site, f"x{self._random.randint(1, _MOST_INCARNATIONS)}")

    def resource(self) -> str:
        """A resource that this site knows, or has heard of; now and then a new one."""
        own = self._node.site.replicas if self._node.site else {}
        names = sorted({*own, *self._heard})
        if not names or self._random.random() < 0.1:
            return f"made-up-{self._random.randint(0, 2)}"
        return self._random.choice(names)

    def ops(self, resource: str) -> list[Operation]:
        replica = self._replica(resource)
        return list(replica.history.ops.values()) if replica else []

    def known(self, resource: str) -> dict[Origin, int]:
        replica = self._replica(resource)
        return dict(replica.history.known) if replica else {}

    def _matrix_ref(self, resource: str) -> MatrixRef | None:
        replica = self._replica(resource)
        return replica.history.adopted if replica else None

    def _replica(self, resource: str) -> Replica | None:
        return self._node.site.replicas.get(resource) if self._node.site else None

    # -- plain data ------------------------------------------------------------------------------------

    def change_place(self, tree: Tree) -> None:
        """Change one place of plain data, somewhere."""
        node = tree
        while True:
            keys: list[Any] = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not keys:
                return
            key = self._random.choice(keys)
            below = node[key]
            if isinstance(below, dict | list) and below and self._random.random() < 0.9:
                node = below
                continue
            if isinstance(node, dict) and self._random.random() < 0.2:
                del node[key]
            else:
                node[key] = self._other_value(below)
            return

    def _other_value(self, value: Tree) -> Tree:
        if isinstance(value, int) and not isinstance(value, bool) and self._random.random() < 0.7:
            return self._random.choice((value + 1, -1, MAX_NUMBER + 1, *NUMBERS))
        if isinstance(value, str) and self._random.random() < 0.5:
            return self._random.choice((value + "\x00", "", "../x", value * 50, "\ud7ff\u202e"))
        return self._random.choice((None, True, -1, 1.5, "", [], {}, [[[[]]]], {"a": {}}, "x" * 2_000))
