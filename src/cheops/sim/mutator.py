"""What a hostile site sends: mutations of real messages, and messages that it makes up. All of it follows from a seed.

A history uses a few of the tactics below, so that each is tried thoroughly, and alone as well as together with others.
The mutator has the key of its own site and every document that it heard. It can change whatever it likes, but sign only
as itself. A tactic that changes an operation does so for good: the changed operation is what every site is sent from
then on, except with `equivocate`, where it depends on the receiver.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import msgspec
from msgspec.structs import replace

from cheops.engine.documents import Message, Report, Snapshot
from cheops.errors import CheopsError
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import MAX_NUMBER, Applied, Kind, Operation, OpId, Origin, Reply, Stamp, Status
from cheops.sim.forger import BAD_IDS, NUMBERS, Forger
from cheops.sim.statements import StatementCollector
from cheops.sim.wire import CLOCK_SKEW_S, Wire
from cheops.sim.workload import Profile

_MOST_HEARD = 400

TACTICS = (
    "drop", "duplicate", "withhold", "claim", "change own operations", "equivocate", "forge", "forge replies",
    "snapshot", "seal", "mutate bytes", "operate", "bad id", "two contents", "lying seal", "far stamp", "flood",
    "matrices", "replay", "unasked snapshot", "own replies", "own history", "statements", "reports",
)  # fmt: skip

Body = tuple[str, bytes]  # a receiver, and what is sent to it


class Mutator:
    def __init__(  # noqa: PLR0913, PLR0917 - all that the site has
        self,
        site: str,
        others: tuple[str, ...],
        forger: Forger,
        wire: Wire,
        random: Random,
        profile: Profile,
        collector: StatementCollector | None = None,
    ) -> None:
        """The profile may say which tactics it uses. With a collector, it asks for statements."""
        self._site = site
        self._others = others
        self._forger = forger
        self._wire = wire
        self._random = random
        self._heard: deque[Message] = deque(maxlen=_MOST_HEARD)
        # What an operation of this site is sent as: one version, or two, of which a receiver gets always the same.
        self._versions: dict[tuple[str, OpId], tuple[Operation, ...]] = {}
        self._deaf = frozenset(random.sample(others, random.randint(0, len(others) - 1)))  # they are sent no operations
        self._injected: Counter[str] = Counter()
        mutations: dict[str, Callable[[str, Message], Iterator[Message | bytes]]] = {
            "drop": self._drop,
            "reports": self._reports,
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
            "own history": self._begin_anew,
        }
        names = [*mutations, *inventions]
        chosen = set(random.sample(names, random.randint(2, 7)))
        self._collector = collector
        if collector is not None:
            inventions["statements"] = self._use_statements
            chosen.add("statements")
        self.tactics = profile.chosen_tactics(chosen, (*mutations, *inventions))
        self._mutations = [(name, mutations[name]) for name in self.tactics if name in mutations]
        self._inventions = [(name, inventions[name]) for name in self.tactics if name in inventions]

    def take_injected(self) -> Counter[str]:
        injected, self._injected = self._injected, Counter()
        return injected

    def overhear(self, message: Message) -> None:
        """A message that an honest site sends to this one."""
        self._heard.append(message)
        self._forger.overhear(message)
        if self._collector is not None:
            self._collector.overhear(message)

    def outgoing(self, peer: str, message: Message) -> list[Body]:
        """What is sent instead of a message of this site's engine."""
        message = self._as_sent(peer, message)
        sent: list[Message | bytes] = [message]
        if self._mutations and self._random.random() < 0.5:
            name, mutate = self._random.choice(self._mutations)
            self._injected[f"hostile: {name}"] += 1
            sent = list(mutate(peer, message))
        return [(peer, body) for one in sent if (body := self._packed(one, peer)) is not None]

    def invent(self) -> list[Body]:
        """What this site sends by itself."""
        if not self._inventions or self._forger.is_exhausted or self._random.random() < 0.5:
            return []
        name, make = self._random.choice(self._inventions)
        self._injected[f"hostile: {name}"] += 1
        return [(peer, body) for peer, one in make() if (body := self._packed(one, peer)) is not None]

    def _packed(self, message: Message | bytes, peer: str) -> bytes | None:
        if isinstance(message, bytes):
            return message
        try:
            return self._wire.pack(self._site, message, to=peer)
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
            "known": self._forger.wrong(message.known),
            "known_replies": self._forger.wrong(message.known_replies),
            "replies_after": self._forger.wrong(message.replies_after),
            "settled": self._forger.wrong(message.settled),
            "digest": self._random.choice(("", "0" * 16, *(heard.digest for heard in self._heard))),
            "busy": self._random.random() < 0.5,
            "ask": self._random.random() < 0.5,
            "incarnation": self._random.choice(("1", "2", "x" * 999)),
            "wanted": tuple(f"{n:064x}" for n in range(self._random.choice((1, 100)))),
        }
        names = self._random.sample(list(changes), self._random.randint(1, 4))
        yield replace(message, **{name: changes[name] for name in names})

    def _reports(self, peer: str, message: Message) -> Iterator[Message]:
        """Reports of other sites: none, old ones, or changed ones; or the wish that all of this is passed on."""
        del peer
        heard = [report for one in self._heard if one.resource == message.resource for report in one.reports]
        changed = [replace(one, **self._report_change(one)) for one in heard[-3:]]
        own = self._forger.wrong(message.settled)
        changes: list[dict[str, Any]] = [
            {"reports": ()},
            {"reports": tuple(heard[:3])},
            {"reports": (*message.reports, *changed)},
            {"for_others": True, "settled": own, "known": own},
            {"unreached": self._others, "pull": True},
        ]
        yield replace(message, **self._random.choice(changes))

    def _report_change(self, report: Report) -> dict[str, Any]:
        changes: list[dict[str, Any]] = [
            {"settled": self._forger.wrong(report.settled), "number": report.number + 1},
            {"origin": Origin(self._random.choice(self._others), "1"), "number": report.number + 1_000_000},
            {"digest": "0" * 16, "number": report.number + 1},
            {"signature": "", "number": report.number + 1, "closed": True},
        ]
        return self._random.choice(changes)

    def _change_own(self, peer: str, message: Message) -> Iterator[Message]:
        for op in message.ops:
            if op.origin.site == self._site and self._random.random() < 0.5:
                self._versions.setdefault((op.resource, op.id), (self._forger.changed(op),))
        yield self._as_sent(peer, message)

    def _equivocate(self, peer: str, message: Message) -> Iterator[Message]:
        for op in message.ops:
            if op.origin.site == self._site and self._random.random() < 0.7:
                self._versions.setdefault((op.resource, op.id), (op, self._forger.changed(op)))
        yield self._as_sent(peer, message)

    def _forge(self, peer: str, message: Message) -> Iterator[Message]:
        """Operations of others, changed: with the signature that they had, with ours, or with none."""
        del peer
        heard = [op for one in self._heard for op in one.ops if op.resource == message.resource]
        if heard:
            op = self._random.choice(heard)
            changed = self._forger.mutated(replace(op, seq=self._random.choice((op.seq, op.seq + 1))))
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
                    {"n": self._forger.number(reply.n)},
                    {"status": self._random.choice(tuple(Status))},
                    {"replay": True, "applied": tuple(Applied(op.id, op.key) for op in message.ops), "op": None},
                    {"wiped": ("set", "!delete", "")},
                    {"output": "changed by somebody else on the way", "detail": reply.detail},
                    {"output_hash": "0" * 24},
                    {"origin": Origin(self._random.choice(self._others), "1")},
                )
            )
            changed = replace(reply, **changes)
            signed = self._random.random() < 0.7
            changed = self._wire.signed(changed, self._site) if signed else changed
            message = replace(
                message, replies=(*message.replies, changed), replies_after=self._forger.wrong(message.known)
            )
        del peer
        yield message

    def _snapshot(self, peer: str, message: Message) -> Iterator[Message]:
        del peer
        yield replace(message, snapshot=self._forger.snapshot(message.resource, message.known))

    def _seal(self, peer: str, message: Message) -> Iterator[Message]:
        """An operation of this site gets a seal that claims too much."""
        for op in message.ops:
            if op.origin.site == self._site and (op.resource, op.id) not in self._versions:
                sealed = replace(op, seal=self._forger.seal(op.resource, op.deps, op.stamp))
                self._versions[op.resource, op.id] = (self._wire.signed(sealed, self._site),)
        yield self._as_sent(peer, message)

    def _mutate_bytes(self, peer: str, message: Message) -> Iterator[bytes]:
        """The body as plain data, with some places changed: no type holds any more."""
        body = self._packed(message, peer)
        if body is None:
            return
        site, documents, parts = msgspec.msgpack.decode(body)
        tree = [site, [msgspec.json.decode(one) for one in documents], parts]
        for _ in range(self._random.randint(1, 3)):
            self._forger.change_place(tree)
        if isinstance(tree[1], list):
            tree[1] = [msgspec.json.encode(one) for one in tree[1]]
        with suppress(OverflowError):  # MessagePack has no numbers that large
            yield msgspec.msgpack.encode(tree)

    # -- messages that it makes up ---------------------------------------------------------------------

    def _operate(self) -> Iterator[tuple[str, Message]]:
        op = self._forger.operation(self._forger.resource())
        for peer in self._some_peers():
            yield peer, self._forger.about(op.resource, (op,))

    def _operate_on_bad_id(self) -> Iterator[tuple[str, Message]]:
        """A resource of this site with an id that means another file, or that no terminal shows."""
        op = self._forger.operation(self._random.choice(BAD_IDS), sites=(self._site, *self._others))
        for peer in self._others:
            yield peer, self._forger.about(op.resource, (op,))

    def _operate_twice(self) -> Iterator[tuple[str, Message]]:
        """Two contents under one id."""
        op = self._forger.operation(self._forger.resource())
        other = self._forger.changed(op)
        for place, peer in enumerate(self._others):
            yield peer, self._forger.about(op.resource, ((op, other)[place % 2],))

    def _operate_with_seal(self) -> Iterator[tuple[str, Message]]:
        resource = self._forger.resource()
        op = self._forger.operation(resource, kind=self._random.choice((Kind.SEAL, Kind.NORMAL)))
        op = self._wire.signed(replace(op, seal=self._forger.seal(op.resource, op.deps, op.stamp)), self._site)
        for peer in self._some_peers():
            yield peer, self._forger.about(resource, (op,))

    def _begin_anew(self) -> Iterator[tuple[str, Message]]:
        """A beginning of its own for a resource that others have, with a seal of it, as if it had been first."""
        resource = self._forger.resource()
        ops = self._forger.own_history(resource)
        floor = {op.origin: op.seq for op in ops}
        message = replace(self._forger.about(resource, ops), known=floor, settled=floor)
        if self._random.random() < 0.3:
            seal = ops[-1].seal
            snapshot = Snapshot(floor, {}, None, ops[0].matrix, (), root=seal.root if seal else None)
            message = replace(message, snapshot=snapshot)
        for peer in self._some_peers():
            yield peer, message

    def _use_statements(self) -> Iterator[tuple[str, Message]]:
        """Ask for statements; or send a seal that is made of some, at once or much later."""
        collector = self._collector
        if collector is None:
            return
        if self._random.random() < 0.7:
            if (asked := collector.question(self._forger.resource())) is not None:
                message, sites = asked
                for peer in sites:
                    yield peer, message
        elif (op := collector.sealing()) is not None:
            self._injected["hostile: signed seal"] += 1
            op = self._wire.signed(op, self._site)
            for peer in self._some_peers():
                yield peer, self._forger.about(op.resource, (op,))

    def _operate_far_away(self) -> Iterator[tuple[str, Message]]:
        """Stamps at the bounds of time and of the counter."""
        op = self._forger.operation(self._forger.resource())
        ahead_ms = int(CLOCK_SKEW_S * 1_000)
        times = (
            0,
            1,
            self._forger.now_ms + ahead_ms - 5,
            self._forger.now_ms + ahead_ms + 5_000,
            self._forger.now_ms,
            MAX_NUMBER,
        )
        stamp = Stamp(self._random.choice(times), self._random.choice(NUMBERS), op.origin)
        op = self._wire.signed(replace(op, stamp=stamp), self._site)
        for peer in self._some_peers():
            yield peer, self._forger.about(op.resource, (op,))

    def _flood(self) -> Iterator[tuple[str, Message]]:
        """Operations that wait for others which nobody ever made."""
        resource = self._forger.resource()
        first = self._forger.operation(resource, Origin(self._site, "flood"))
        gap, number = self._random.randint(2, 5), self._random.randint(1, 40)
        ops = tuple(
            self._wire.signed(replace(first, seq=1_000 * first.seq + gap + n), self._site) for n in range(number)
        )
        for peer in self._some_peers():
            yield peer, self._forger.about(resource, ops)

    def _send_matrices(self) -> Iterator[tuple[str, Message]]:
        """Matrices that no operation names."""
        first = self._random.randint(0, 10_000)
        matrices = tuple(Matrix([Entry(f"a{first + n}", "b", Result.TAKE_BOTH)]) for n in range(20))
        for peer in self._some_peers():
            yield peer, replace(self._forger.about(self._forger.resource()), matrices=matrices)

    def _replay(self) -> Iterator[tuple[str, Message]]:
        """Old messages of others, as if they were ours."""
        if self._heard:
            message = self._random.choice(self._heard)
            for peer in self._some_peers():
                yield peer, message

    def _send_snapshot(self) -> Iterator[tuple[str, Message]]:
        resource = self._forger.resource()
        ops = self._forger.ops(resource)
        kept = tuple(self._random.sample(ops, self._random.randint(0, len(ops))))
        snapshot = self._forger.snapshot(resource, self._forger.known(resource))
        for peer in self._some_peers():
            yield peer, replace(self._forger.about(resource, kept), snapshot=snapshot)

    def _reply(self) -> Iterator[tuple[str, Message]]:
        """Replies of this site to operations that it may never have seen, with numbers that jump."""
        resource = self._forger.resource()
        ops = self._forger.ops(resource)
        op = self._random.choice(ops) if ops else None
        origin = self._forger.origin()
        replies = tuple(
            self._wire.signed(
                Reply(
                    resource=resource,
                    origin=origin,
                    n=self._forger.number(n),
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
            yield peer, replace(self._forger.about(resource), replies=replies, replies_after=after)

    # -- parts -----------------------------------------------------------------------------------------

    def _as_sent(self, peer: str, message: Message) -> Message:
        """A message with the versions of this site's operations that a peer gets."""
        place = self._others.index(peer) if peer in self._others else 0
        ops = tuple(
            versions[place % len(versions)] if (versions := self._versions.get((op.resource, op.id))) else op
            for op in message.ops
        )
        return replace(message, ops=ops)

    def _some_peers(self) -> list[str]:
        return self._random.sample(self._others, self._random.randint(1, len(self._others)))


def _unsigned(op: Operation) -> Operation:
    return replace(op, signature="")


def _packed_unchecked(site: str, message: Message) -> bytes:
    """A body in the form that agents use, with documents that the codec would not encode."""

    def plain(one: object) -> Any:
        return msgspec.to_builtins(one, enc_hook=str, str_keys=True)

    documents = [msgspec.json.encode(plain(one)) for one in (*message.ops, *message.replies)]
    bare = plain(replace(message, ops=(), replies=(), matrices=()))
    ops = len(message.ops)
    replies = [(str(reply.origin), [place]) for place, reply in enumerate(message.replies, ops)]
    return msgspec.msgpack.encode([site, documents, [[bare, list(range(ops)), replies]]])
