"""What has arrived for a resource and waits, and what is to be sent about it. Nothing of it is durable: what a crash
loses is sent again."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cheops.bounded import BoundedMap
from cheops.engine.settings import Limits, RetryTimer
from cheops.log.operation import Operation, OpId, Reply

_REFUSALS = 100  # remembered for one resource: enough to report each once, and bounded if a hostile site sends many


class Inbox:
    """Received operations that wait for their dependencies or for their matrix; and those that were refused."""

    def __init__(self, limits: Limits) -> None:
        # Received, not yet in the history. At most `limits.waiting`: see `admission.may_wait`.
        self.waiting: dict[OpId, Operation] = {}
        self._per_site: Counter[str] = Counter()  # how many of them each site made
        # Those of `waiting` that a site of the resource has taken: a policy may trust it.
        self.endorsed: set[OpId] = set()
        # Operations that a policy refused lately, and why. They are not in `waiting`; peers offer them again.
        self.refused: BoundedMap[OpId, str] = BoundedMap(_REFUSALS)
        self.matrix_request = RetryTimer(limits.resend_ms, limits.resend_ms)

    def hold(self, op: Operation, *, endorsed: bool = False) -> None:
        if op.id not in self.waiting:
            self._per_site[op.origin.site] += 1
        elif op.id in self.endorsed:
            return  # Another content would profit from the word for this one. A site sends the one that it took first.
        self.waiting[op.id] = op
        if endorsed:
            self.endorsed.add(op.id)

    def waiting_of(self, site: str) -> int:
        return self._per_site[site]

    def release(self, op: Operation) -> None:
        """The operation no longer waits: it is accepted, refused, or was known already."""
        if self.waiting.pop(op.id, None):
            self._per_site[op.origin.site] -= 1
        self.endorsed.discard(op.id)

    def refuse(self, op: Operation, why: str) -> bool:
        """Remember a refusal; True if the operation was not refused before."""
        is_news = op.id not in self.refused
        self.refused[op.id] = why
        return is_news

    def admit(self, op: Operation) -> None:
        """Forget an earlier refusal of the operation."""
        self.refused.pop(op.id, None)


class Pending(NamedTuple):
    """What a step has produced for other sites."""

    ops: tuple[Operation, ...]
    replies: tuple[Reply, ...]
    acknowledgements: dict[str, set[str]]  # per peer, the matrices to request from it


class Outbox:
    """What is to be sent about a resource, at the end of this step or later."""

    def __init__(self) -> None:
        self._ops: list[Operation] = []  # new in this step, for every site involved
        self._replies: list[Reply] = []  # likewise
        # Peers that get a message at the end of this step, and the matrices to request from them.
        self._acknowledgements: dict[str, set[str]] = {}
        # Peers that get a message with the next tick, unless one goes to them before.
        self._later: set[str] = set()
        # Replies that go with the next message to a peer.
        self._replies_later: dict[str, list[Reply]] = {}

    @property
    def has_deferred(self) -> bool:
        return bool(self._later)

    def push(self, ops: Iterable[Operation] = (), replies: Iterable[Reply] = ()) -> None:
        """New documents of this site: they go to every site involved."""
        self._ops += ops
        self._replies += replies

    def acknowledge(self, peer: str, wanted: Iterable[str] = ()) -> None:
        """Report to a peer what this site knows, and which matrices it wants."""
        self._acknowledgements.setdefault(peer, set()).update(wanted)

    def acknowledge_later(self, peer: str) -> None:
        self._later.add(peer)

    def flush_pending(self) -> None:
        """On a tick: deferred acknowledgements go at the end of this step."""
        for peer in sorted(self._later):
            self.acknowledge(peer)

    def take(self) -> Pending:
        """What is to be sent at the end of this step."""
        pending = Pending(tuple(self._ops), tuple(self._replies), self._acknowledgements)
        self._ops, self._replies, self._acknowledgements = [], [], {}
        return pending

    def defer_replies(self, peer: str, replies: Iterable[Reply]) -> None:
        self._replies_later.setdefault(peer, []).extend(replies)

    def deferred_replies(self, peer: str) -> tuple[Reply, ...]:
        return tuple(self._replies_later.get(peer, ()))

    def note_sent(self, peer: str, *, with_replies: bool) -> None:
        """A message goes to a peer. Every message acknowledges, so no deferred acknowledgement is needed."""
        self._later.discard(peer)
        if with_replies:
            self._replies_later.pop(peer, None)

    def drop_replies(self, peer: str) -> None:
        """The peer's store was replaced: it will be asked what it has, and sent what it is missing."""
        self._replies_later.pop(peer, None)
