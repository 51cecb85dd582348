"""A hostile site that asks honest ones for statements, keeps them, and makes seals of them.

It asks for vectors and lists of its choice. What it gets is well signed, so the seals are as good as honest ones can
be made to sign. It uses them when it likes: at once, or long after the others have sealed more (cheops.log.seals).
"""

from random import Random
from typing import NamedTuple

from cheops.engine.documents import Message
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, joined
from cheops.log.operation import (
    Command,
    Kind,
    MatrixRef,
    Operation,
    Origin,
    Seal,
    Stamp,
    Statement,
    Verdict,
    seal_hash,
)
from cheops.sim.forger import Forger
from cheops.sim.node import Node

_MOST_QUESTIONS = 30  # kept at a time
_OTHER_ROOT = 0.1  # how often a seal has another root than the one that was signed


class Question(NamedTuple):
    """What the site asked the others to sign."""

    resource: str
    stable: Vector
    origins: tuple[Origin, ...]
    root: Stamp

    @property
    def hash(self) -> str:
        return seal_hash(self.stable, self.origins, self.root)


class StatementCollector:
    def __init__(self, node: Node, forger: Forger, random: Random) -> None:
        self._node = node
        self._forger = forger
        self._random = random
        self._asked: dict[str, Question] = {}  # by the hash that an answer has
        self._statements: dict[str, dict[Origin, Statement]] = {}  # likewise

    def overhear(self, message: Message) -> None:
        for one in message.statements:
            if one.seal in self._asked and one.signature:
                self._statements.setdefault(one.seal, {})[one.origin] = one

    def question(self, resource: str) -> tuple[Message, tuple[str, ...]] | None:
        """A question about a resource, and the sites to which it goes."""
        replica = self._replica(resource)
        root = replica.history.root or replica.history.earliest if replica else None
        if replica is None or root is None:
            return None
        origins = self._origins(replica)
        asked = Question(resource, self._vector(replica), origins, root)
        if len(self._asked) >= _MOST_QUESTIONS:
            oldest = next(iter(self._asked))
            del self._asked[oldest]
            self._statements.pop(oldest, None)
        self._asked[asked.hash] = asked
        message = Message(
            resource,
            self._node.origin.incarnation,
            known=dict(replica.history.known),
            settled=dict(replica.applied.settled),
            summary=replica.history.summary(),
            seal_wanted=asked.stable,
            seal_origins=origins,
        )
        return message, tuple(origin.site for origin in origins if origin.site != self._node.name)

    def _vector(self, replica: Replica) -> dict[Origin, int]:
        """What is settled, without the operations of some origins, or not true at all."""
        settled = dict(replica.applied.settled)
        some = {
            origin: self._random.randint(1, n) for origin, n in settled.items() if n and self._random.random() < 0.7
        }
        chosen = self._random.choice((settled, settled, some, self._forger.wrong(settled)))
        return {origin: n for origin, n in chosen.items() if n} or {self._node.origin: 1}

    def _origins(self, replica: Replica) -> tuple[Origin, ...]:
        listed = self._random.choice((replica.sites, replica.sites, replica.sites, self._forger.site_list()))
        views = {site: replica.peers.get(site) for site in listed if site != self._node.name}
        stores = (Origin(site, view.incarnation if view and view.incarnation else "1") for site, view in views.items())
        own = (self._node.origin,) if self._random.random() < 0.95 else ()
        return tuple(sorted([*own, *stores]))

    def sealing(self) -> Operation | None:
        """An operation with a seal that all sites which it names have signed; None if there is none yet."""
        complete = [
            asked
            for hash_, asked in self._asked.items()
            if self._node.origin in asked.origins
            and set(asked.origins) <= {self._node.origin, *self._statements.get(hash_, ())}
        ]
        asked = self._random.choice(complete) if complete else None
        replica = self._replica(asked.resource) if asked else None
        if asked is None or replica is None or not replica.history.ops:
            return None
        return self._operation(asked, replica)

    def _operation(self, asked: Question, replica: Replica) -> Operation:
        history, own = replica.history, self._node.origin
        statements = tuple(one for _, one in sorted(self._statements.get(asked.hash, {}).items()) if one.origin != own)
        made = {one.origin: one.made for one in statements if one.made}
        before = history.known.get(own, 0)
        # Without knowledge of all that it could know: then the seal makes more operations late.
        deps = joined(joined(asked.stable, made), self._random.choice(({}, {}, history.known)))
        deps = {**{origin: n for origin, n in deps.items() if n and origin != own}, **({own: before} if before else {})}
        past = [op.stamp for op in history.ops.values() if deps.get(op.origin, 0) >= op.seq]
        latest = max(past, default=Stamp(1, 0, own))
        now = Stamp(self._forger.now_ms, 0, own)
        stamp = self._random.choice((max(now, latest), latest))._replace(origin=own)
        stamp = stamp._replace(counter=stamp.counter + 1)
        root = self._forger.root(stamp) if self._random.random() < _OTHER_ROOT else asked.root
        return Operation(
            asked.resource,
            next(iter(history.ops.values())).rtype,
            "seal",
            Kind.SEAL,
            Command(""),
            own,
            before + 1,
            deps,
            stamp,
            history.adopted or MatrixRef("", stamp),
            verdict=Verdict.OK,
            seal=Seal(asked.stable, root, asked.origins, statements),
        )

    def _replica(self, resource: str) -> Replica | None:
        return self._node.site.replicas.get(resource) if self._node.site else None
