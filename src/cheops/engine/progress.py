"""What the other sites have of a resource, when each is sent something again, and what this site wants of them.

What the peers have is saved with the ledger, when the resource goes to rest and whenever the ledger is written. A crash
may lose what was heard since, and nothing else: an older report is still true, as of its time. The rest is not durable:
lost messages are sent again.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from cheops.engine.documents import Message, PeerRecord, Piece, Progress, Report
from cheops.engine.pieces import OutgoingSnapshot
from cheops.engine.settings import Limits, RetryTimer
from cheops.log.causality import NOTHING, Vector, covers, joined
from cheops.log.operation import MAX_NAME_CHARACTERS, Origin, Reply, Stamp, Statement, seal_hash

# Entries in the vectors of all peers that are saved. A document has a maximal size, and a hostile site may name any
# number of origins. What is not saved is not known after the resource was unloaded, and is asked for again.
_MOST_DIFFERENCES = 5_000
# The names in a report that is passed on: each is sent to all sites. Those of 5,000 sites, say.
_MOST_REPORT_CHARACTERS = 500_000
_PATIENCE = 4  # questions or batches without an answer
_BATCH_DELAYS = 4  # a batch has at least so many times as long as a single document until it counts as lost
_MARGIN = 4  # and so many times as long as the last one took
_SOURCE_PATIENCE_MS = 4_000  # without progress
_SOURCE_MOST_MS = 60_000


class PeerProgress:
    """What a peer is known to have, and when it is sent something again.

    All vectors only grow, so a message that arrives late takes nothing back. When the peer comes up with
    another incarnation of its store, its progress is dropped and starts from nothing.
    """

    __slots__ = (
        "_batch",
        "_fruitless",
        "_is_asked",
        "_is_hurried",
        "_pushed",
        "_pushed_ms",
        "_told",
        "_took_ms",
        "_unanswered",
        "agrees",
        "as_source",
        "busy",
        "by_others",
        "closed",
        "differs",
        "digest",
        "dropped",
        "in_charge",
        "incarnation",
        "is_unknown",
        "known",
        "known_replies",
        "last_contact_ms",
        "last_report",
        "ready",
        "recall",
        "recheck",
        "rechecked",
        "refused",
        "refuses",
        "report",
        "report_ms",
        "reported",
        "resend",
        "same_life_ms",
        "sent_replies",
        "settled",
        "snapshot",
        "source",
    )

    def __init__(self, limits: Limits) -> None:
        self.incarnation = ""  # of the origin that the rest is about; empty before the first message
        self.is_unknown = True  # what it has now is not known: ask first, rather than send everything
        self.reported = False  # what follows is what it had at its last report, not merely empty
        self.known: dict[Origin, int] = {}  # operations that it has
        self.known_replies: dict[Origin, int] = {}  # replies that it has
        self.settled: dict[Origin, int] = {}  # operations that it has run or passed over
        self.report: Report | None = None  # the last one of it that can be passed on
        self.report_ms = 0  # when that one was heard, here or where it came from
        self.last_report = 0  # the number of the last one
        self.in_charge = False  # this site sees to it that it gets what others made
        self.by_others = False  # what it has is known only from what others have passed on
        self.sent_replies: Vector = NOTHING  # replies that are on their way to it, or were lost
        self.digest = ""  # of its applied state, when it knew and had settled that
        self.busy = False  # it may still make operations that no other site knows
        self.ready: Vector = NOTHING  # the log that it has nothing against forgetting, see tombstones.py
        self.closed: Vector = NOTHING  # the log to which it has promised to add nothing
        self.dropped = False  # it has dropped the resource, by its last message: see tombstones.py
        self.last_contact_ms: int | None = None
        self.same_life_ms: int | None = None  # when it last reported something of the life that is here
        self.resend = RetryTimer(limits.resend_ms, limits.resend_most_ms)
        self.source = ""  # the site from which it wants what it lacks, see catch_up.py; empty: it knows of nothing
        self.as_source = RetryTimer(_SOURCE_PATIENCE_MS, limits.retry_most_ms)  # when this site may ask it to be one
        self.snapshot: OutgoingSnapshot | None = None  # one that is on its way to it
        self._is_asked = True  # it was away: it must answer a question before anything is sent
        self._batch: _Batch | None = None  # what is on its way to it, and not acknowledged
        self._told: object = None  # what this site has reported to it, to be passed on
        self._took_ms = 0  # until the last batch was acknowledged
        # What had been sent to it when the time began after which that counts as lost; None: nothing is on its way.
        self._pushed: tuple[Vector, Vector] | None = None
        self._pushed_ms: int | None = None  # when that was; None: it was acknowledged
        self._unanswered = 0  # questions and batches
        self._fruitless = 0  # questions and batches since it last made progress
        self._is_hurried = False  # it was sent something at once without progress, and must make some before the next
        self.differs = False  # it knows the same ids and other contents, by its last message that allowed to compare
        self.agrees = False  # it knew the same ids and contents, since two contents of one id were last found
        self.recall = RetryTimer(
            limits.resend_ms, limits.retry_most_ms
        )  # when it is asked for this site's own documents
        self.recheck = RetryTimer(limits.resend_ms, limits.retry_most_ms)  # when it is sent all contents again
        self.rechecked: Stamp | None = None  # up to where it was; None: from the first
        self.refused = False  # it sent an operation that was refused here, since it was last sent all contents
        self.refuses = False  # by its last message: an operation that others depend on

    def note_difference(self, *, differs: bool) -> None:
        if not differs:
            self.recheck.reset_delay()
        self.differs, self.agrees = differs, not differs

    def is_recheck_due(self, now_ms: int) -> bool:
        return self.must_compare and self.recheck.is_due(now_ms)

    def note_two_contents(self) -> None:
        self.agrees = False

    def note_same_life(self, now_ms: int) -> None:
        """The peer has something of the life that is here, so it has not dropped that."""
        self.same_life_ms, self.dropped = now_ms, False

    def note_dropped(self, now_ms: int) -> None:
        """The peer has dropped this resource, after all sites had deleted it. What it had is as it was then."""
        self.dropped, self.is_unknown, self._is_asked = True, False, False
        self.last_contact_ms = now_ms
        self._unanswered = 0

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

    # -- what it says ------------------------------------------------------------------------------

    def observe(self, message: Message, now_ms: int, here: str = "") -> None:
        """Update the state of the peer from a message of it. `here` is the name of this site."""
        has_more = not covers(self.known, message.known) or not covers(self.known_replies, message.known_replies)
        is_newest = covers(message.known, self.known) and covers(message.known_replies, self.known_replies)
        is_answer = self.must_ask and not message.ask
        self.by_others = False
        if message.ask or message.pull:
            self._told = None  # it may have missed that
        self._is_asked = self._is_asked and message.ask  # a question is no answer: it has not chosen a source
        self._take(message)
        self.ready, self.refuses = message.known if message.ready else NOTHING, message.refuses
        self.last_report = message.number
        self.last_contact_ms = now_ms
        self._unanswered = 0
        is_free = is_newest and self._note_source(message.source, here)
        has_pieces = is_newest and self._note_pieces(message.held)
        if has_more or has_pieces:  # the peer makes progress, so the delays start small again
            self.resend.reset_delay()
            self._fruitless, self._is_hurried = 0, False
        # It answers our question, wants to go on, or acknowledges a batch that was not all: do not wait. Otherwise it
        # does wait: a peer that refuses what it got must not be sent the same batch again at once, and again.
        if self._is_batch_acknowledged(now_ms) or is_answer or has_pieces or is_free:
            self.resend.expire()

    def keep_report(self, report: Report, heard_ms: int) -> None:
        """Keep a report that can be passed on, and when it was heard first. A hostile site may name any origins, so one
        that is too large is not passed on: others ask that site itself."""
        self.report, self.report_ms = None if _is_too_large(report) else report, heard_ms

    def observe_report(self, report: Report, heard_ms: int) -> bool:
        """Update the state of the peer from a report that another site has passed on, and had heard at this time; False
        if it is not news."""
        is_old = self.incarnation == report.incarnation and self.last_report >= report.number
        if is_old or self.dropped:
            return False
        self.by_others = self.by_others or self.is_unknown
        self._take(report)
        self.last_report = report.number
        self.last_contact_ms = max(heard_ms, self.last_contact_ms or 0)
        return True

    def _take(self, said: Message | Report) -> None:
        self.is_unknown, self.reported = False, True
        self.closed = said.known if said.closed else self.closed
        if covers(said.settled, self.settled):  # otherwise a newer message overtook this one
            self.digest, self.busy, self.incarnation = said.digest, said.busy, said.incarnation
        elif not covers(self.known, said.known):
            self.digest = ""  # it has started again, with more than before, and has not settled that yet
        if self.known != said.known:
            self.known = joined(self.known, said.known)
        if self.known_replies != said.known_replies:
            self.known_replies = joined(self.known_replies, said.known_replies)
        if self.settled != said.settled:
            self.settled = joined(self.settled, said.settled)

    def _note_source(self, source: str, here: str) -> bool:
        """Note from whom the peer wants what it lacks. True if this site may send it something, and could not before:
        once, until the peer has made progress."""
        is_news = source != self.source and source in ("", here) and not self._is_hurried
        self.source = source
        self._is_hurried = self._is_hurried or is_news
        return is_news

    def _note_pieces(self, held: Piece | None) -> bool:
        if self.snapshot is not None and covers(self.known, self.snapshot.snapshot.floor):
            self.snapshot = None
        return self.snapshot is not None and self.snapshot.note_held(held)

    def _is_batch_acknowledged(self, now_ms: int) -> bool:
        """Whether all of the last batch has arrived, and more is to follow."""
        batch = self._batch
        if batch is None or not covers(self.known, batch.ops) or not covers(self.known_replies, batch.replies):
            return False
        self._batch, self._took_ms = None, max(0, now_ms - batch.sent_ms)
        return batch.unfinished

    # -- what it is sent ---------------------------------------------------------------------------

    @property
    def must_ask(self) -> bool:
        """Whether what it has is not known, or may have changed."""
        return self.is_unknown or self._is_asked

    @property
    def is_silent(self) -> bool:
        """Whether it does not answer; it may hear what it is sent nevertheless."""
        return not self.is_unknown and self._unanswered >= _PATIENCE

    @property
    def is_catching_up(self) -> bool:
        """Whether it gets what it lacks from some site, and makes progress."""
        return bool(self.source) and self._fruitless <= 1

    def mark_empty(self) -> None:
        """The resource is new: the peer cannot have anything of it, so there is no need to ask."""
        self.is_unknown = self._is_asked = False
        self.reported = True

    @property
    def is_asked(self) -> bool:
        """Whether it must answer a question of this very site."""
        return self._is_asked

    def leave_to_others(self) -> None:
        """Another site has brought the resource, and will report what this one has: there is no need to ask it."""
        self._is_asked = False

    def take_charge(self) -> None:
        """The site that made an operation cannot reach the peer: this one sees to it that it gets everything."""
        self.in_charge = True
        self.probe_now()

    def probe_now(self) -> None:
        """The peer has come up: messages sent before that are lost, so do not wait for an acknowledgement."""
        self._is_asked = True
        self.sent_replies, self._told = NOTHING, None
        self._batch, self._pushed, self._unanswered, self._fruitless = None, None, 0, 0
        self.resend.reset_delay()
        self.resend.expire()

    def note_push(self, known: Vector, known_replies: Vector, now_ms: int, patience_ms: int = 0) -> None:
        """New documents are sent to the peer. They count as lost only when the resend timer is due."""
        if self.resend.is_due(now_ms):
            self._pushed = (dict(known), dict(known_replies))
            self._pushed_ms = now_ms
            self.resend.wait_first(now_ms, patience_ms)

    def take_trip(self, own: Origin, now_ms: int) -> int | None:
        """How long the peer took to acknowledge what was pushed; None if it has not. It may have taken less if that was
        sent again: then the next one has more time than it needs."""
        if self._pushed is None or self._pushed_ms is None:
            return None
        known, known_replies = self._pushed
        if self.known.get(own, 0) < known.get(own, 0) or self.known_replies.get(own, 0) < known_replies.get(own, 0):
            return None
        took_ms, self._pushed_ms = now_ms - self._pushed_ms, None
        return took_ms if took_ms >= 0 else None

    def take_pushed(self, known: Vector, known_replies: Vector) -> tuple[Vector, Vector]:
        """What of these counts as lost, if it is not acknowledged. From now on, all of it does."""
        now = (dict(known), dict(known_replies))
        pushed, self._pushed = self._pushed or now, now
        return pushed

    def note_question(self, now_ms: int) -> None:
        """The peer is asked what it has."""
        self._note_attempt()
        self.resend.back_off(now_ms)
        if self.source:  # another site sends it what it lacks: look again in a while
            self.resend.wait_longest(now_ms)

    def note_replies(self, replies: Iterable[Reply]) -> None:
        """Replies are sent to the peer, without a gap."""
        if last := {reply.origin: reply.n for reply in replies}:
            self.sent_replies = joined(self.sent_replies, last)

    def forget_told(self) -> None:
        """It may not have got that."""
        self._told = None

    def note_told(self, state: object) -> bool:
        """This site reports its state to the peer; whether that is news to it."""
        is_news, self._told = state != self._told, state
        return is_news

    def note_repeat(self, now_ms: int) -> None:
        """What counted as lost is sent again."""
        self._note_attempt()
        self.resend.back_off(now_ms)

    def note_batch(self, ops: Vector, replies: Vector, now_ms: int, *, unfinished: bool) -> None:
        """A batch is sent. It may be large, and the peer busy: so it has more time than a single document."""
        self._note_attempt()
        self._batch = _Batch(ops, replies, now_ms, unfinished)
        self.resend.back_off(now_ms, at_least=max(_BATCH_DELAYS, _MARGIN * self._took_ms // self.resend.first_ms))

    def _note_attempt(self) -> None:
        self._unanswered += 1
        self._fruitless += 1

    def begin_snapshot(self, snapshot: OutgoingSnapshot) -> None:
        self.snapshot = snapshot

    # -- in the ledger -------------------------------------------------------------------------------------

    def record(self, known: Vector, known_replies: Vector, digest: str) -> PeerRecord:
        """What is saved of the peer, beside these of the own site."""
        return PeerRecord(
            self.incarnation,
            self.last_contact_ms,
            known=_difference(self.known, known),
            known_replies=_difference(self.known_replies, known_replies),
            settled=_difference(self.settled, known),
            digest=None if self.digest == digest else self.digest,
            busy=self.busy,
            differs=self.differs,
            dropped=self.dropped,
            refuses=self.refuses,
        )

    def restore(self, record: PeerRecord, saved: Progress) -> None:
        """Take over what was saved. Whether the peer must be asked first is decided by `skip_question`."""
        self.incarnation, self.last_contact_ms, self.reported = record.incarnation, record.heard_ms, True
        self.known = _changed(saved.known, record.known)
        self.known_replies = _changed(saved.known_replies, record.known_replies)
        self.settled = _changed(saved.known, record.settled)
        self.digest = saved.digest if record.digest is None else record.digest
        self.busy, self.differs, self.dropped, self.refuses = (
            record.busy,
            record.differs,
            record.dropped,
            record.refuses,
        )

    def skip_question(self, known: Vector, known_replies: Vector) -> None:
        """Without a report since the resource was loaded: if the peer has all of this, there is nothing to ask."""
        self.is_unknown = not (covers(self.known, known) and covers(self.known_replies, known_replies))
        self._is_asked = self.is_unknown


class _Batch(NamedTuple):
    """Documents that are on their way to a peer: it has them when it knows this."""

    ops: Vector
    replies: Vector
    sent_ms: int
    unfinished: bool  # there is more


class Source:
    """The site from which this one wants what it lacks of a resource. See catch_up.py."""

    def __init__(self) -> None:
        self.site = ""
        self._since_ms = 0
        self._moved_ms = 0
        self._progress: object = None

    def choose(self, site: str, now_ms: int) -> None:
        if site != self.site:
            self.site, self._since_ms, self._moved_ms, self._progress = site, now_ms, now_ms, None

    def clear(self) -> None:
        self.site = ""

    def note_progress(self, progress: object, now_ms: int) -> None:
        """Note how far this site is."""
        if progress != self._progress:
            self._moved_ms, self._progress = now_ms, progress

    def is_fruitless(self, now_ms: int) -> bool:
        return bool(self.site) and abs(now_ms - self._moved_ms) > _SOURCE_PATIENCE_MS

    def is_old(self, now_ms: int) -> bool:
        """Whether it has been the source for so long that another one may try: it may be slow on purpose."""
        return abs(now_ms - self._since_ms) > _SOURCE_MOST_MS


def progress_of(
    peers: Mapping[str, PeerProgress], known: Vector, known_replies: Vector, digest: str
) -> Progress | None:
    """What is saved of these peers; None if none has reported. The vectors and the digest are those of the own site.

    Without those that are only known to have had nothing when the resource was made: after a crash, nobody can tell
    whether they have reported since.
    """
    records: dict[str, PeerRecord] = {}
    left = _MOST_DIFFERENCES
    for name in sorted(name for name, peer in peers.items() if peer.incarnation):
        record = peers[name].record(known, known_replies, digest)
        size = len(record.known) + len(record.known_replies) + len(record.settled)
        if size <= left:
            left -= size
            records[name] = record
    return Progress(dict(known), dict(known_replies), digest, records) if records else None


def _difference(one: Vector, other: Vector) -> dict[Origin, int]:
    """The entries of a vector that another one has not, or has differently."""
    if one == other:  # the usual case
        return {}
    return {origin: one.get(origin, 0) for origin in {**other, **one} if one.get(origin, 0) != other.get(origin, 0)}


def _changed(vector: Vector, difference: Vector) -> dict[Origin, int]:
    return {origin: number for origin, number in {**vector, **difference}.items() if number}


def says_the_same(one: Progress | None, other: Progress | None) -> bool:
    """Whether two differ at most in when the peers reported."""
    return _without_times(one) == _without_times(other)


def _without_times(progress: Progress | None) -> Progress | None:
    if progress is None:
        return None
    return replace(progress, peers={name: replace(one, heard_ms=None) for name, one in progress.peers.items()})


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


def _is_too_large(report: Report) -> bool:
    vectors = (report.known, report.known_replies, report.settled)
    # Mostly it is small enough whatever its names are.
    is_small = sum(map(len, vectors)) * 2 * MAX_NAME_CHARACTERS <= _MOST_REPORT_CHARACTERS
    return not is_small and sum(len(origin) for vector in vectors for origin in vector) > _MOST_REPORT_CHARACTERS
