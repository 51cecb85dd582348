"""What a hostile site sends: mutations of real messages, and messages that it makes up. All of it follows from a seed.

A history uses a few of the tactics below, so that each is tried thoroughly, and alone as well as together with others.
The mutator has the key of its own site and every document that it heard. It can change whatever it likes, but sign only
as itself. A tactic that changes an operation does so for good: the changed operation is what every site is sent from
then on, except with `equivocate`, where it depends on the receiver.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from cheops.engine.documents import Base, EpochRecord, Message, Snapshot
from cheops.errors import CheopsError
from cheops.log.causality import Vector, joined
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import (
    MAX_NUMBER,
    Applied,
    Command,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Reply,
    Seal,
    Stamp,
    Status,
    Verdict,
)
from cheops.sim.apps import APPS
from cheops.sim.node import Node
from cheops.sim.wire import CLOCK_SKEW_S, Wire
from cheops.store import codec

BAD_IDS = ("../../../../x", "/etc/x", "-rf", "a/../../x", "a\nb", "x\x1b[2J", "\u202egnp", "..", "a//b", "x" * 900)
_NUMBERS = (0, 1, 2, 3, 7, 1 << 20, (1 << 31) - 1, MAX_NUMBER - 1, MAX_NUMBER)
_MOST_HEARD = 400
_MOST_INCARNATIONS = 8
_MOST_INVENTED = 60  # operations in one history: an honest site keeps each that it accepts

TACTICS = (
    "drop", "duplicate", "withhold", "claim", "change own operations", "equivocate", "forge", "forge replies",
    "snapshot", "seal", "mutate bytes", "operate", "bad id", "two contents", "lying seal", "far stamp", "flood",
    "matrices", "replay", "unasked snapshot", "own replies",
)  # fmt: skip

Body = tuple[str, bytes]  # a receiver, and what is sent to it
Tree = Any  # plain data: dictionaries, lists, texts, numbers


class Mutator:
    def __init__(self, node: Node, wire: Wire, others: tuple[str, ...], random: Random, spared: frozenset[str]) -> None:
        """It does not use the tactics in `spared`."""
        self._node = node
        self._site = node.name
        self._wire = wire
        self._others = others
        self._random = random
        self._heard: deque[Message] = deque(maxlen=_MOST_HEARD)
        # What an operation of this site is sent as: one version, or two, of which a receiver gets always the same.
        self._versions: dict[tuple[str, OpId], tuple[Operation, ...]] = {}
        self._deaf = frozenset(random.sample(others, random.randint(0, len(others) - 1)))  # they are sent no operations
        self._numbers: Counter[tuple[str, Origin]] = Counter()  # of operations that it made up
        self._injected: Counter[str] = Counter()
        self._now_ms = 0
        mutations: dict[str, Callable[[str, Message], Iterator[Message | bytes]]] = {
            "drop": self._drop,
            "duplicate": self._duplicate,
            "withhold": self._withhold,
            "claim": self._claim,
            "change own operations": self._change_own,
            "equivocate": self._equivocate,
            "forge": self._forge,
            "forge replies": self._forge_replies,
            "snapshot": self._snapshot,
            "seal": self._seal,
            "mutate bytes": self._mutate_bytes,
        }
        inventions: dict[str, Callable[[], Iterator[tuple[str, Message]]]] = {
            "operate": self._operate,
            "bad id": self._operate_on_bad_id,
            "two contents": self._operate_twice,
            "lying seal": self._operate_with_seal,
            "far stamp": self._operate_far_away,
            "flood": self._flood,
            "matrices": self._send_matrices,
            "replay": self._replay,
            "unasked snapshot": self._send_snapshot,
            "own replies": self._reply,
        }
        names = [*mutations, *inventions]
        self.tactics = sorted(set(random.sample(names, random.randint(2, 7))) - spared)
        self._mutations = [(name, mutations[name]) for name in self.tactics if name in mutations]
        self._inventions = [(name, inventions[name]) for name in self.tactics if name in inventions]

    def take_injected(self) -> Counter[str]:
        injected, self._injected = self._injected, Counter()
        return injected

    def overhear(self, message: Message) -> None:
        """A message that an honest site sends to this one."""
        self._heard.append(message)

    def outgoing(self, peer: str, message: Message) -> list[Body]:
        """What is sent instead of a message of this site's engine."""
        message = self._as_sent(peer, message)
        sent: list[Message | bytes] = [message]
        if self._mutations and self._random.random() < 0.5:
            name, mutate = self._random.choice(self._mutations)
            self._injected[f"hostile: {name}"] += 1
            sent = list(mutate(peer, message))
        return [(peer, body) for one in sent if (body := self._packed(one)) is not None]

    def invent(self, now_ms: int) -> list[Body]:
        """What this site sends by itself."""
        self._now_ms = now_ms
        if not self._inventions or self._random.random() < 0.5:
            return []
        name, make = self._random.choice(self._inventions)
        self._injected[f"hostile: {name}"] += 1
        return [(peer, body) for peer, one in make() if (body := self._packed(one)) is not None]

    def _packed(self, message: Message | bytes) -> bytes | None:
        if isinstance(message, bytes):
            return message
        try:
            return self._wire.pack(self._site, message)
        except CheopsError:  # the codec does not even encode it
            return _packed_unchecked(self._site, message)

    # -- mutations of messages -------------------------------------------------------------------------

    def _drop(self, peer: str, message: Message) -> Iterator[Message]:
        del peer, message
        yield from ()

    def _duplicate(self, peer: str, message: Message) -> Iterator[Message]:
        del peer
        yield message
        if self._heard:
            yield self._random.choice(self._heard)
        yield message

    def _withhold(self, peer: str, message: Message) -> Iterator[Message]:
        """Some sites get the replies and the claims, and never the operations."""
        yield replace(message, ops=()) if peer in self._deaf else message

    def _claim(self, peer: str, message: Message) -> Iterator[Message]:
        """Claims about this site that are not true."""
        del peer
        changes: dict[str, Any] = {
            "known": self._wrong(message.known),
            "known_replies": self._wrong(message.known_replies),
            "replies_after": self._wrong(message.replies_after),
            "settled": self._wrong(message.settled),
            "digest": self._random.choice(("", "0" * 16, *(heard.digest for heard in self._heard))),
            "busy": self._random.random() < 0.5,
            "ask": self._random.random() < 0.5,
            "incarnation": self._random.choice(("1", "2", "x" * 999)),
            "wanted": tuple(f"{n:064x}" for n in range(self._random.choice((1, 100)))),
        }
        names = self._random.sample(list(changes), self._random.randint(1, 4))
        yield replace(message, **{name: changes[name] for name in names})

    def _change_own(self, peer: str, message: Message) -> Iterator[Message]:
        for op in message.ops:
            if op.origin.site == self._site and self._random.random() < 0.5:
                self._versions.setdefault((op.resource, op.id), (self._changed(op),))
        yield self._as_sent(peer, message)

    def _equivocate(self, peer: str, message: Message) -> Iterator[Message]:
        for op in message.ops:
            if op.origin.site == self._site and self._random.random() < 0.7:
                self._versions.setdefault((op.resource, op.id), (op, self._changed(op)))
        yield self._as_sent(peer, message)

    def _forge(self, peer: str, message: Message) -> Iterator[Message]:
        """Operations of others, changed: with the signature that they had, with ours, or with none."""
        del peer
        heard = [op for one in self._heard for op in one.ops if op.resource == message.resource]
        if heard:
            op = self._random.choice(heard)
            changed = self._mutated(replace(op, seq=self._random.choice((op.seq, op.seq + 1))))
            changed = self._random.choice(
                (replace(changed, signature=op.signature), self._wire.signed(changed, self._site), _unsigned(changed))
            )
            message = replace(message, ops=(*message.ops, changed))
        yield message

    def _forge_replies(self, peer: str, message: Message) -> Iterator[Message]:
        """Replies in the name of others; and the wrong ones of this site."""
        replies = [reply for one in (*self._heard, message) for reply in one.replies]
        same = [reply for reply in replies if reply.resource == message.resource]
        if same:
            reply = self._random.choice(same)
            changes: dict[str, Any] = self._random.choice(
                (
                    {"n": self._number(reply.n)},
                    {"status": self._random.choice(tuple(Status))},
                    {"replay": True, "applied": tuple(Applied(op.id, op.key) for op in message.ops), "op": None},
                    {"wiped": ("set", "!delete", "")},
                    {"origin": Origin(self._random.choice(self._others), "1")},
                )
            )
            changed = replace(reply, **changes)
            signed = self._random.random() < 0.7
            changed = self._wire.signed(changed, self._site) if signed else changed
            message = replace(message, replies=(*message.replies, changed), replies_after=self._wrong(message.known))
        del peer
        yield message

    def _snapshot(self, peer: str, message: Message) -> Iterator[Message]:
        del peer
        yield replace(message, snapshot=self._made_up_snapshot(message.resource, message.known))

    def _seal(self, peer: str, message: Message) -> Iterator[Message]:
        """An operation of this site gets a seal that claims too much."""
        for op in message.ops:
            if op.origin.site == self._site and (op.resource, op.id) not in self._versions:
                sealed = replace(op, seal=Seal(self._wrong(op.deps), self._root(op.stamp)))
                self._versions[op.resource, op.id] = (self._wire.signed(sealed, self._site),)
        yield self._as_sent(peer, message)

    def _mutate_bytes(self, peer: str, message: Message) -> Iterator[bytes]:
        """The body as plain data, with some places changed: no type holds any more."""
        del peer
        body = self._packed(message)
        if body is not None:
            tree = msgspec.json.decode(body)
            for _ in range(self._random.randint(1, 3)):
                self._change_place(tree)
            yield msgspec.json.encode(tree)

    # -- messages that it makes up ---------------------------------------------------------------------

    def _operate(self) -> Iterator[tuple[str, Message]]:
        op = self._operation(self._resource())
        for peer in self._some_peers():
            yield peer, self._about(op.resource, (op,))

    def _operate_on_bad_id(self) -> Iterator[tuple[str, Message]]:
        """A resource of this site with an id that means another file, or that no terminal shows."""
        op = self._operation(self._random.choice(BAD_IDS), sites=(self._site, *self._others))
        for peer in self._others:
            yield peer, self._about(op.resource, (op,))

    def _operate_twice(self) -> Iterator[tuple[str, Message]]:
        """Two contents under one id."""
        op = self._operation(self._resource())
        other = self._changed(op)
        for place, peer in enumerate(self._others):
            yield peer, self._about(op.resource, ((op, other)[place % 2],))

    def _operate_with_seal(self) -> Iterator[tuple[str, Message]]:
        resource = self._resource()
        op = self._operation(resource, kind=self._random.choice((Kind.SEAL, Kind.NORMAL)))
        seal = Seal(self._wrong(joined(self._known(resource), op.deps)), self._root(op.stamp))
        op = self._wire.signed(replace(op, seal=seal), self._site)
        for peer in self._some_peers():
            yield peer, self._about(resource, (op,))

    def _operate_far_away(self) -> Iterator[tuple[str, Message]]:
        """Stamps at the bounds of time and of the counter."""
        op = self._operation(self._resource())
        ahead_ms = int(CLOCK_SKEW_S * 1_000)
        times = (0, 1, self._now_ms + ahead_ms - 5, self._now_ms + ahead_ms + 5_000, self._now_ms, MAX_NUMBER)
        stamp = Stamp(self._random.choice(times), self._random.choice(_NUMBERS), op.origin)
        op = self._wire.signed(replace(op, stamp=stamp), self._site)
        for peer in self._some_peers():
            yield peer, self._about(op.resource, (op,))

    def _flood(self) -> Iterator[tuple[str, Message]]:
        """Operations that wait for others which nobody ever made."""
        resource = self._resource()
        first = self._operation(resource)
        gap = self._random.randint(1, 5)
        ops = tuple(
            self._wire.signed(replace(first, seq=first.seq + gap + n), self._site) for n in range(self._random.randint(1, 40))
        )
        for peer in self._some_peers():
            yield peer, self._about(resource, ops)

    def _send_matrices(self) -> Iterator[tuple[str, Message]]:
        """Matrices that no operation names."""
        first = self._random.randint(0, 10_000)
        matrices = tuple(Matrix([Entry(f"a{first + n}", "b", Result.TAKE_BOTH)]) for n in range(20))
        for peer in self._some_peers():
            yield peer, replace(self._about(self._resource()), matrices=matrices)

    def _replay(self) -> Iterator[tuple[str, Message]]:
        """Old messages of others, as if they were ours."""
        if self._heard:
            message = self._random.choice(self._heard)
            for peer in self._some_peers():
                yield peer, message

    def _send_snapshot(self) -> Iterator[tuple[str, Message]]:
        resource = self._resource()
        ops = self._ops(resource)
        kept = tuple(self._random.sample(ops, self._random.randint(0, len(ops))))
        snapshot = self._made_up_snapshot(resource, self._known(resource))
        for peer in self._some_peers():
            yield peer, replace(self._about(resource, kept), snapshot=snapshot)

    def _reply(self) -> Iterator[tuple[str, Message]]:
        """Replies of this site to operations that it may never have seen, with numbers that jump."""
        resource = self._resource()
        ops = self._ops(resource)
        op = self._random.choice(ops) if ops else None
        origin = self._origin()
        replies = tuple(
            self._wire.signed(
                Reply(
                    resource=resource,
                    origin=origin,
                    n=self._number(n),
                    op=op.id if op else None,
                    key=op.key if op else "",
                    status=self._random.choice(tuple(Status)),
                ),
                self._site,
            )
            for n in range(1, 4)
        )
        for peer in self._some_peers():
            after = {origin: self._random.choice((0, MAX_NUMBER))}
            yield peer, replace(self._about(resource), replies=replies, replies_after=after)

    # -- parts -----------------------------------------------------------------------------------------

    def _as_sent(self, peer: str, message: Message) -> Message:
        """A message with the versions of this site's operations that a peer gets."""
        place = self._others.index(peer) if peer in self._others else 0
        ops = tuple(
            versions[place % len(versions)] if (versions := self._versions.get((op.resource, op.id))) else op
            for op in message.ops
        )
        return replace(message, ops=ops)

    def _changed(self, op: Operation) -> Operation:
        """Another content under the id of an operation of this site, well signed."""
        return self._wire.signed(self._mutated(op), self._site)

    def _mutated(self, op: Operation) -> Operation:
        app = APPS.get(op.rtype)
        type_, line = app.invent(self._random) if app else ("set", "set 1")
        stamps = (0, self._now_ms, self._now_ms + 5_000, op.stamp.time_ms - 1, op.stamp.time_ms + 1)
        changes: dict[str, Any] = self._random.choice(
            (
                {"type": type_, "payload": Command(line)},
                {"payload": Command("fail")},
                {"payload": Command(line, (("f", "0" * 64),))},
                {"kind": self._random.choice(tuple(Kind))},
                {"deps": self._wrong(op.deps)},
                {"stamp": op.stamp._replace(time_ms=max(0, self._random.choice(stamps)))},
                {"stamp": op.stamp._replace(counter=self._number(op.stamp.counter))},
                {"stamp": op.stamp._replace(origin=Origin(self._random.choice(self._others), "1"))},
                {"verdict": self._random.choice(tuple(Verdict))},
                {"sites": self._list()},
                {"rtype": self._random.choice((*APPS, "", "other"))},
                {"matrix": op.matrix._replace(hash=Matrix().hash)},
                {"matrix": op.matrix._replace(introduced=op.stamp)},
                {"seal": Seal(self._wrong(op.deps), self._root(op.stamp))},
                {"parallel": True},
                {"why": "x" * 100},
            )
        )
        return replace(op, **changes)

    def _operation(self, resource: str, **changes: Any) -> Operation:
        """A new operation of this site."""
        origin = self._origin()
        rtype = next((op.rtype for op in self._ops(resource)), self._random.choice(tuple(APPS)))
        app = APPS.get(rtype) or APPS["counter"]
        type_, line = app.invent(self._random)
        before = self._numbers[resource, origin]
        if self._numbers.total() < _MOST_INVENTED:
            self._numbers[resource, origin] += 1
        deps = joined(self._known(resource), {origin: before} if before else {})
        stamp = Stamp(self._now_ms, 0, origin)
        ref = self._matrix_ref(resource) or MatrixRef(app.matrix.hash, stamp)
        kinds = (Kind.NORMAL,) * 6 + tuple(Kind)
        fields: dict[str, Any] = {"kind": self._random.choice(kinds), "sites": None, **changes}
        if fields["kind"] is Kind.SITES or not deps:
            fields["sites"] = fields["sites"] or self._list()
        op = Operation(
            resource,
            rtype,
            type_,
            fields["kind"],
            Command(line),
            origin,
            before + 1,
            deps,
            stamp,
            ref,
            fields["sites"],
            verdict=Verdict.OK,
        )
        return self._wire.signed(op, self._site)

    def _about(self, resource: str, ops: tuple[Operation, ...] = ()) -> Message:
        known = self._known(resource)
        matrices = tuple(APPS[op.rtype].matrix for op in ops if op.rtype in APPS)
        return Message(
            resource, self._node.origin.incarnation, ops, matrices=matrices[:1], known=known, settled=known, ask=True
        )

    def _made_up_snapshot(self, resource: str, known: Vector) -> Snapshot:
        ops = self._ops(resource)
        rtype = ops[0].rtype if ops else "counter"
        write = Command({"counter": "write 666", "file": "set x"}.get(rtype, "set 5"))
        floor = self._random.choice((dict(known), self._wrong(known)))
        stamp = self._random.choice(ops).stamp if ops else Stamp(1, 0, self._node.origin)
        adopted = self._matrix_ref(resource)
        return Snapshot(
            floor,
            self._random.choice(({}, self._wrong(known))),
            self._random.choice((None, Base(self._random.choice((floor, self._wrong(known))), write))),
            self._random.choice((adopted, adopted and adopted._replace(introduced=stamp))),
            self._random.choice(((), (EpochRecord(stamp, self._wrong(known), ()),))),
            self._random.choice((frozenset(), frozenset({stamp}))),
            self._random.choice((None, stamp, self._root(stamp))),
        )

    def _root(self, stamp: Stamp) -> Stamp:
        roots = [op.seal.root for one in self._heard for op in one.ops if op.seal]
        return self._random.choice((stamp, Stamp(1, 0, self._node.origin), *roots))

    def _wrong(self, vector: Vector) -> dict[Origin, int]:
        """A vector that is not true: other numbers, other origins, or some left out."""
        wrong = dict(vector)
        for _ in range(self._random.randint(1, 3)):
            honest = Origin(self._random.choice(self._others), self._random.choice(("1", "1", "2")))
            invented = Origin(f"site{self._random.randint(90, 99)}", "1")
            origin = self._random.choice((*vector, honest, honest, invented, self._node.origin))
            if self._random.random() < 0.2:
                wrong.pop(origin, None)
            else:
                wrong[origin] = self._number(wrong.get(origin, 0))
        return wrong

    def _number(self, number: int) -> int:
        near = (max(0, number - 1), number + 1, number + 2, number + 10)
        return self._random.choice((*near, *near, *_NUMBERS))

    def _list(self) -> tuple[str, ...]:
        """A list of sites, for the most part with this one on it."""
        some = self._random.sample(self._others, self._random.randint(0, len(self._others)))
        odd = self._random.choice(((), (), (), ("nowhere",), ("../x",), (some[0],) if some else ()))
        own = (self._site,) if self._random.random() < 0.8 else ()
        return tuple((*own, *some, *odd)) or (self._site,)

    def _origin(self) -> Origin:
        """Of this site: the incarnation that it really has, or one of some that it makes up."""
        return Origin(self._site, f"x{self._random.randint(1, _MOST_INCARNATIONS)}")

    def _some_peers(self) -> list[str]:
        return self._random.sample(self._others, self._random.randint(1, len(self._others)))

    def _resource(self) -> str:
        """A resource that this site knows, or has heard of; now and then a new one."""
        own = list(self._node.site.replicas) if self._node.site else []
        heard = [message.resource for message in self._heard]
        names = sorted({*own, *heard})
        if not names or self._random.random() < 0.1:
            return f"made-up-{self._random.randint(0, 2)}"
        return self._random.choice(names)

    def _ops(self, resource: str) -> list[Operation]:
        replica = self._node.site.replicas.get(resource) if self._node.site else None
        return list(replica.history.ops.values()) if replica else []

    def _known(self, resource: str) -> dict[Origin, int]:
        replica = self._node.site.replicas.get(resource) if self._node.site else None
        return dict(replica.history.known) if replica else {}

    def _matrix_ref(self, resource: str) -> MatrixRef | None:
        replica = self._node.site.replicas.get(resource) if self._node.site else None
        return replica.history.adopted if replica else None

    def _change_place(self, tree: Tree) -> None:
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
            return self._random.choice((value + 1, -1, MAX_NUMBER + 1, *_NUMBERS))
        if isinstance(value, str) and self._random.random() < 0.5:
            return self._random.choice((value + "\x00", "", "../x", value * 50, "\ud7ff\u202e"))
        return self._random.choice((None, True, -1, 1.5, "", [], {}, [[[[]]]], {"a": {}}, "x" * 2_000))


def _unsigned(op: Operation) -> Operation:
    return replace(op, signature="")


def _packed_unchecked(site: str, message: Message) -> bytes:
    """A body in the form that agents use, with documents that the codec would not encode."""
    docs = []
    for document in (*message.ops, *message.replies):
        tree = msgspec.to_builtins(document, enc_hook=str, builtin_types=(), str_keys=True)
        number = document.seq if isinstance(document, Operation) else document.n
        kind = "op" if isinstance(document, Operation) else "reply"
        origin = document.origin
        tree["_id"] = f"{kind}/{document.resource}/{origin.site}/{origin.incarnation}/{number}"
        docs.append(tree)
    bare = replace(message, ops=(), replies=(), matrices=())
    head = msgspec.to_builtins(bare, enc_hook=str, str_keys=True)
    part = {"message": head, "ids": [tree["_id"] for tree in docs]}
    return codec.encode_plain({"docs": docs, "cheops": {"site": site, "messages": [part]}})
