"""The state of a resource that concerns other sites: what each has, what has arrived and waits, what is to be sent.

None of it is durable. After a restart a site asks its peers what they have, and lost messages are sent again.
"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cheops.bounded import BoundedMap
from cheops.engine.documents import Message
from cheops.engine.settings import Limits, RetryTimer
from cheops.log.causality import NOTHING, Vector, covers, joined
from cheops.log.operation import Operation, OpId, Origin, Reply, Stamp, Statement, seal_hash

_REFUSALS = 100  # remembered for one resource: enough to report each once, and bounded if a hostile site sends many


class PeerProgress:
    """What a peer is known to have, and when it is sent something again.

    All vectors only grow, so a message that arrives late takes nothing back. When the peer comes up with
    another incarnation of its store, its progress is dropped and starts from nothing.
    """

    __slots__ = (
        "agrees",
        "busy",
        "differs",
        "digest",
        "incarnation",
        "is_unknown",
        "known",
        "known_replies",
        "last_contact_ms",
        "recall",
        "recheck",
        "rechecked",
        "refused",
        "resend",
        "settled",
        "unfinished",
    )

    def __init__(self, limits: Limits) -> None:
        self.incarnation = ""  # of the store that the rest is about; empty before the first message
        self.is_unknown = True  # what it has is not known: ask first, rather than send everything
        self.known: dict[Origin, int] = {}  # operations that it has
        self.known_replies: dict[Origin, int] = {}  # replies that it has
        self.settled: dict[Origin, int] = {}  # operations that it has run or passed over
        self.digest = ""  # of its applied state, when it had settled that
        self.busy = False  # it may still make operations that no other site knows
        self.last_contact_ms: int | None = None
        self.unfinished = False  # the last batch was not all: the next follows as soon as that is acknowledged
        self.resend = RetryTimer(limits.resend_ms, limits.resend_most_ms)
        self.differs = False  # it knows the same ids and other contents, by its last message that allowed to compare
        self.agrees = False  # it knew the same ids and contents, since two contents of one id were last found
        self.recall = RetryTimer(
            limits.resend_ms, limits.retry_most_ms
        )  # when it is asked for this site's own documents
        self.recheck = RetryTimer(limits.resend_ms, limits.retry_most_ms)  # when it is sent all contents again
        self.rechecked: Stamp | None = None  # up to where it was; None: from the first
        self.refused = False  # it sent an operation that was refused here, since it was last sent all contents

    def note_difference(self, *, differs: bool) -> None:
        if not differs:
            self.recheck.reset_delay()
        self.differs, self.agrees = differs, not differs

    def is_recheck_due(self, now_ms: int) -> bool:
        return self.must_compare and self.recheck.is_due(now_ms)

    def note_two_contents(self) -> None:
        self.agrees = False

    def note_refusal(self) -> None:
        self.refused = True

    @property
    def must_compare(self) -> bool:
        """Whether it may have other contents than this site."""
        return self.differs or self.refused

    def may_recall(self, now_ms: int) -> bool:
        """Whether it may be asked now for what it has of this site, or answered about that; if so, not again soon."""
        is_due = self.recall.is_due(now_ms)
        if is_due:
            self.recall.back_off(now_ms)
        return is_due

    def note_rechecked(self, up_to: Stamp | None) -> None:
        self.rechecked = up_to
        self.refused = self.refused and up_to is not None

    def is_behind(self, known: Vector, known_replies: Vector) -> bool:
        """Whether the peer is not known to have all of this."""
        return self.is_unknown or not covers(self.known, known) or not covers(self.known_replies, known_replies)

    def observe(self, message: Message, now_ms: int) -> None:
        """Update the state of the peer from a message of it."""
        has_more = not covers(self.known, message.known) or not covers(self.known_replies, message.known_replies)
        # A peer that refuses what it got must not be sent the same batch again at once, and again.
        expects_more = self.is_unknown or (self.unfinished and has_more)
        self.is_unknown = False
        self.known = joined(self.known, message.known)
        self.known_replies = joined(self.known_replies, message.known_replies)
        if covers(message.settled, self.settled):  # otherwise a newer message overtook this one
            self.digest, self.busy, self.incarnation = message.digest, message.busy, message.incarnation
        self.settled = joined(self.settled, message.settled)
        self.last_contact_ms = now_ms
        if has_more:  # the peer makes progress, so the delays start small again
            self.resend.reset_delay()
        if expects_more:  # it answers our question or acknowledges our batch: send the next one without waiting
            self.resend.expire()
            self.unfinished = False

    def mark_empty(self) -> None:
        """The resource is new: the peer cannot have anything of it, so there is no need to ask."""
        self.is_unknown = False

    def note_batch(self, *, unfinished: bool) -> None:
        self.unfinished = unfinished

    def probe_now(self) -> None:
        """The peer has come up: messages sent before that are lost, so do not wait for an acknowledgement."""
        self.resend.reset_delay()
        self.resend.expire()


class SealRequest:
    """What this site wants to seal, and the statements of other sites for that. See statements.py."""

    def __init__(self, limits: Limits) -> None:
        self.stable: Vector = NOTHING  # empty: nothing
        self.origins: tuple[Origin, ...] = ()  # the sites, each with its store
        self.root: Stamp | None = None
        self.statements: dict[Origin, Statement] = {}
        self.timer = RetryTimer(limits.resend_ms, limits.resend_most_ms)  # when the sites may be asked again
        self._hash = ""

    def begin(self, stable: Vector, origins: tuple[Origin, ...], root: Stamp) -> None:
        self.stable, self.origins, self.root, self.statements = stable, origins, root, {}
        self._hash = seal_hash(stable, origins, root)

    def drop(self) -> None:
        self.stable, self.origins, self.root, self.statements, self._hash = NOTHING, (), None, {}, ""

    def keep(self, statement: Statement) -> None:
        """Keep a statement, if it is one for this seal."""
        if statement.seal == self._hash and statement.origin in self.origins:
            self.statements[statement.origin] = statement

    @property
    def unanswered(self) -> set[str]:
        """The sites whose statement is missing; the own one is among them."""
        return {origin.site for origin in self.origins if origin not in self.statements}


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

    def hold(self, op: Operation) -> None:
        if op.id not in self.waiting:
            self._per_site[op.origin.site] += 1
        self.waiting[op.id] = op

    def waiting_of(self, site: str) -> int:
        return self._per_site[site]

    def endorse(self, op: Operation) -> None:
        self.endorsed.add(op.id)

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
