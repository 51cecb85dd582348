"""What this site knows of another site's knowledge of a resource."""

from cheops.engine.messages import Message
from cheops.engine.settings import Limits
from cheops.engine.timer import RetryTimer
from cheops.log.causality import Vector, covers, joined
from cheops.log.operation import Origin


class PeerProgress:
    """What a peer is known to have, and when it is sent something again.

    All vectors only grow: a message that was overtaken on its way takes nothing back. When the peer comes up with
    another incarnation of its store, its progress is dropped and starts from nothing.
    """

    __slots__ = (
        "busy",
        "digest",
        "incarnation",
        "is_unknown",
        "known",
        "known_replies",
        "last_contact_ms",
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
        self.busy = False  # it may still make operations that nobody has heard of
        self.last_contact_ms: int | None = None
        self.unfinished = False  # the last batch was not all: the next follows as soon as that is acknowledged
        self.resend = RetryTimer(limits.resend_ms, limits.resend_most_ms)

    def lacks(self, known: Vector, known_replies: Vector) -> bool:
        """Whether it is not known to have all of this."""
        return self.is_unknown or not covers(self.known, known) or not covers(self.known_replies, known_replies)

    def observe(self, message: Message, now_ms: int) -> None:
        """Take what a message says about its sender."""
        goes_on = self.is_unknown or self.unfinished
        has_more = not covers(self.known, message.known) or not covers(self.known_replies, message.known_replies)
        self.is_unknown = False
        self.known = joined(self.known, message.known)
        self.known_replies = joined(self.known_replies, message.known_replies)
        if covers(message.settled, self.settled):  # otherwise a newer message overtook this one
            self.digest, self.busy, self.incarnation = message.digest, message.busy, message.incarnation
        self.settled = joined(self.settled, message.settled)
        self.last_contact_ms = now_ms
        if has_more:
            self.resend.reset_delay()
        if goes_on:
            self.resend.expire()
            self.unfinished = False

    def mark_empty(self) -> None:
        """The resource is new: nobody can have anything of it, so there is no need to ask."""
        self.is_unknown = False

    def note_batch(self, *, unfinished: bool) -> None:
        self.unfinished = unfinished

    def probe_now(self) -> None:
        """It has come up: what was sent before that is lost, so do not wait for an acknowledgement."""
        self.resend.reset_delay()
        self.resend.expire()
