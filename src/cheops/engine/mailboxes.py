"""What has arrived for a resource and waits, and what is to be sent about it. Nothing of it is durable: what a crash
loses is sent again."""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from cheops.bounded import BoundedMap
from cheops.engine.settings import Limits, RetryTimer
from cheops.log.causality import NOTHING, Vector, joined
from cheops.log.operation import Operation, OpId, Origin, Reply

_PULL_DELAYS = 4  # times as long as until a document is sent again: the hub has to hear all others first
_RARELY_MS = 60_000  # between two pulls after that
_MOST_PULLS = 6  # without anything new: the hub reports by itself when there is more
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
        # Peers that get a message with the next tick but one, unless one goes to them before; and whether that is the
        # next one by now. A run that takes a moment is over by then, and its reply goes with it.
        self._later: dict[str, bool] = {}

    @property
    def has_deferred(self) -> bool:
        return bool(self._later)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is to be sent at the end of this step."""
        return not (self._ops or self._replies or self._acknowledgements)

    def push(self, ops: Iterable[Operation] = (), replies: Iterable[Reply] = ()) -> None:
        """New documents of this site: they go to every site involved."""
        self._ops += ops
        self._replies += replies

    def acknowledge(self, peer: str, wanted: Iterable[str] = ()) -> None:
        """Report to a peer what this site knows, and which matrices it wants."""
        self._acknowledgements.setdefault(peer, set()).update(wanted)

    def acknowledge_later(self, peer: str) -> None:
        self._later.setdefault(peer, False)

    def flush_pending(self) -> None:
        """On a tick: deferred acknowledgements that have waited for one before go at the end of this step."""
        for peer in sorted(self._later):
            if self._later[peer]:
                self.acknowledge(peer)
            self._later[peer] = True

    def take(self) -> Pending:
        """What is to be sent at the end of this step."""
        pending = Pending(tuple(self._ops), tuple(self._replies), self._acknowledgements)
        self._ops, self._replies, self._acknowledgements = [], [], {}
        return pending

    def note_sent(self, peer: str) -> None:
        """A message goes to a peer. Every message acknowledges, so no deferred acknowledgement is needed."""
        self._later.pop(peer, None)


class Duties:
    """Which replies this site must send to others, what it passes on, and when it asks for more. See hub.py."""

    def __init__(self, limits: Limits) -> None:
        # Replies that this site owes to every site of the resource, or to one of them: up to these numbers.
        self._to_all: dict[Origin, int] = {}
        self._to_one: dict[str, dict[Origin, int]] = {}
        self._owed: dict[str, Vector] = {}  # both together, for the sites in `_to_one`; empty after a change
        self.unsent: set[str] = set()  # sites of which there is news that was not passed on yet
        self.timer = RetryTimer(limits.resend_ms, limits.resend_most_ms)  # when it is passed on, though not complete
        self._pull = RetryTimer(_PULL_DELAYS * limits.resend_ms, limits.resend_most_ms)
        self._rare_pull = RetryTimer(_RARELY_MS, _RARELY_MS)
        self.pulls = 0  # without anything new
        self._awaited: object = None
        self._last_report = 0

    def next_report(self) -> int:
        """The number of the next report of this site."""
        self._last_report += 1
        return self._last_report

    def count_reports_from(self, now_ms: int) -> None:
        """Numbers must be greater than those before a restart, which are not saved. Hence the time."""
        self._last_report = max(self._last_report, now_ms)

    def owe(self, origin: Origin, n: int, to: str | None = None) -> None:
        """A site must get the replies of an origin up to this number from this one; `to` None: every site must."""
        owed = self._to_all if to is None else self._to_one.setdefault(to, {})
        owed[origin] = max(n, owed.get(origin, 0))
        self._owed.clear()

    def owed_to(self, peer: str) -> Vector:
        if peer not in self._to_one:
            return self._to_all
        if peer not in self._owed:  # every step asks for it, several times
            self._owed[peer] = joined(self._to_all, self._to_one[peer])
        return self._owed[peer]

    def owed_to_one(self, peer: str) -> Vector:
        """Those that a peer is to pass on."""
        return self._to_one.get(peer, NOTHING)

    def note_news(self, site: str, now_ms: int) -> None:
        if not self.unsent:
            self.timer.wait_first(now_ms)
        self.unsent.add(site)

    def note_passed_on(self, now_ms: int, *, is_complete: bool) -> None:
        self.unsent.clear()
        self.timer.back_off(now_ms)
        if is_complete:
            self.timer.reset_delay()

    def note_awaited(self, awaited: object, now_ms: int) -> None:
        """What this site waits for. As long as that does not change, it asks less and less often."""
        if awaited != self._awaited:
            self._awaited, self.pulls = awaited, 0
            self._pull.reset_delay()
            self._pull.wait_first(now_ms)

    @property
    def may_pull(self) -> bool:
        return self.pulls < _MOST_PULLS

    def note_pull(self, now_ms: int) -> None:
        self.pulls += 1
        self._pull.back_off(now_ms)
        self._rare_pull.back_off(now_ms)

    def is_pull_due(self, now_ms: int) -> bool:
        return (self._pull if self.may_pull else self._rare_pull).is_due(now_ms)
