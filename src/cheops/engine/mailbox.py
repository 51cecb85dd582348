"""What goes in and out at the end of a step: operations that wait for their past, and documents to be sent."""

from collections.abc import Iterable
from typing import NamedTuple

from cheops.bounded import BoundedMap
from cheops.engine.settings import Limits
from cheops.engine.timer import RetryTimer
from cheops.log.operation import Operation, OpId, Reply

_REFUSALS = 100  # remembered for one resource


class Inbox:
    """Operations that came in and wait, for their past or for their matrix; and those that were refused."""

    def __init__(self, limits: Limits) -> None:
        # Received, not yet in the history. At most `limits.waiting`: see `admission.may_wait`.
        self.waiting: dict[OpId, Operation] = {}
        # Those of `waiting` that a site of the resource has taken: a policy may trust it.
        self.endorsed: set[OpId] = set()
        # Operations that a policy refused lately, and why. They are not in `waiting`; peers offer them again.
        self.refused: BoundedMap[OpId, str] = BoundedMap(_REFUSALS)
        self.matrix_request = RetryTimer(limits.resend_ms, limits.resend_ms)

    def hold(self, op: Operation) -> None:
        self.waiting[op.id] = op

    def endorse(self, op: Operation) -> None:
        self.endorsed.add(op.id)

    def release(self, op: Operation) -> None:
        """It is taken, refused, or known already."""
        self.waiting.pop(op.id, None)
        self.endorsed.discard(op.id)

    def refuse(self, op: Operation, why: str) -> bool:
        """Remember a refusal; whether it is news."""
        is_news = op.id not in self.refused
        self.refused[op.id] = why
        return is_news

    def admit(self, op: Operation) -> None:
        """It was refused before, and is not any more."""
        self.refused.pop(op.id, None)


class Pending(NamedTuple):
    """What a step has given rise to."""

    ops: tuple[Operation, ...]
    replies: tuple[Reply, ...]
    acknowledgements: dict[str, set[str]]  # per peer, the matrices that are wanted of it


class Outbox:
    """What is to be sent about a resource. Nothing here is durable: what is lost is sent again as a peer lacks it."""

    def __init__(self) -> None:
        self._ops: list[Operation] = []  # new in this step, for every site involved
        self._replies: list[Reply] = []  # likewise
        # Peers that get a message at the end of this step, and the matrices that are wanted of them.
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
        """A tick has come: what was put off goes at the end of this step."""
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
        """A message goes to a peer: it is also the acknowledgement that was put off."""
        self._later.discard(peer)
        if with_replies:
            self._replies_later.pop(peer, None)

    def drop_replies(self, peer: str) -> None:
        """The peer's store was replaced: it is asked what it lacks."""
        self._replies_later.pop(peer, None)
