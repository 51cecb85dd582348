"""What a site is configured with: resource types, limits, and the timer that waits as long as limits say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec import Struct

from cheops.log.operation import Command, Operation
from cheops.log.policy import Policy

# Splits an operation that failed into units, which are run one by one; empty if it cannot be split.
Decompose = Callable[[Command], tuple[Command, ...]]
# The commands to run instead of these operations: all that stand after the last base, in canonical order, if there are
# concurrent ones among them that do not commute (class 3). A site runs the commands just after that base. Pure, so that
# all sites get the same; total, for other sites wrote the operations. Each command must be one that the type allows.
Logic = Callable[[Sequence[Operation]], tuple[Command, ...]]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How a long history is replaced by one base: read the state, and write it where the base is needed."""

    read: Command
    write: Callable[[str], Command | None]  # None: no command can write this state
    after: int = 100  # effective operations: a checkpoint costs a read and a seal, so it should replace many


@dataclass(frozen=True, slots=True)
class ResourceType:
    name: str = ""
    reset: Command | None = None
    checkpoint: Checkpoint | None = None
    on_error: Command | None = None  # run where an operation failed that did not fail at its origin
    decompose: Decompose | None = None
    logic: Logic | None = None
    parallel: bool = False
    creates: bool = False  # its first operation makes something new: nothing of an earlier store is in that
    shares_outputs: bool = (
        False  # every site gets the outputs of all others, rather than fetch one when it is looked at
    )
    policy: Policy | None = None  # None: every site may do everything


def limit(default: int, doc: str, most: int | None = None) -> Any:
    """A limit. The configuration file has a key for each, and docs/configuration.md a line with this text."""
    return field(default=default, metadata={"doc": doc, "most": most})


@dataclass(frozen=True, slots=True)
class Limits:
    """Everything has a limit. The end of a name is its unit; a name without a unit is a count."""

    drafts: int = limit(1_000, "Operations of one resource that wait for their first run.")
    waiting: int = limit(10_000, "Received operations of one resource that wait for operations they depend on.")
    log: int = limit(
        500_000,
        "Operations of one resource that are kept. Beyond this only an operation that replaces or deletes all others "
        "is accepted.",
    )
    file_bytes: int = limit(
        1024**3,
        "Size of all files of one operation together, and of the body of a replicated request. Should be the same at "
        "all sites: a site refuses operations beyond its limit, wherever they come from.",
    )
    batch: int = limit(500, "Documents in one message.")
    # Several times as much fits into a message: this is an estimate, and the last document may be large.
    batch_bytes: int = limit(4_000_000, "Approximate size of the documents in one message.", most=8_000_000)
    snapshot_bytes: int = limit(
        256_000_000,
        "Approximate size of what is kept of the incomplete snapshots of one site. A site cannot join a resource whose "
        "snapshot is larger.",
    )
    seal_after: int = limit(50, "Operations that could be forgotten before a site proposes to forget them.")
    tombstone_ms: int = limit(
        24 * 3_600_000,
        "A resource that all its sites have deleted is forgotten after this time. It should be equal at all "
        "sites: where one has a longer time, at least half of that counts. A store from a backup that is older may "
        "still have it; the sites say so.",
    )
    wake: int = limit(200, "Resources that are loaded at a time for maintenance.")
    parked: int = limit(
        2_000, "Resources in memory. Beyond this, those that can only wait for a site that is down leave memory."
    )
    idle_ms: int = limit(30_000, "A resource that is not used for this long leaves memory.")
    resident: int = limit(128, "Resources in memory. Beyond this, one leaves it after 3 s without use.")
    resend_ms: int = limit(500, "Unconfirmed documents are sent again after this time, then after twice as long, …")
    resend_most_ms: int = limit(8_000, "… but never later than this.")
    retry_ms: int = limit(
        200,
        "An indefinite failure (connection refused, timeout) is tried again after this time, then after twice as long, "
        "…",
    )
    retry_most_ms: int = limit(30_000, "… but never later than this.")


@dataclass(frozen=True, slots=True)
class Settings:
    types: dict[str, ResourceType] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    unknown_policy: Policy | None = None  # of types that are not configured here

    def policy_of(self, name: str) -> Policy | None:
        return self.types[name].policy if name in self.types else self.unknown_policy

    def type_named(self, name: str) -> ResourceType:
        return self.types.get(name) or ResourceType(name)


_SMOOTHING = 8  # of round trips: the part of a difference that counts at once
_TRIPS = 2  # until something counts as lost


class RoundTrips:
    """How long other sites take to acknowledge something, from the moment when it is sent: the network, the load of
    both sites, and the time for which an acknowledgement waits for something else to go with. All replicas of a site
    share one object."""

    def __init__(self) -> None:
        self._smoothed_ms: dict[str, float] = {}

    def note(self, peer: str, took_ms: int) -> None:
        before = self._smoothed_ms.get(peer, took_ms)
        # A longer one counts at once: what is sent again too early makes an overloaded site slower still.
        self._smoothed_ms[peer] = took_ms if took_ms > before else before + (took_ms - before) / _SMOOTHING

    def patience_ms(self, peer: str) -> int:
        """The time after which something counts as lost; 0 if nothing is known of the peer."""
        return int(_TRIPS * self._smoothed_ms.get(peer, 0))


class RetryTimer(Struct, eq=False, gc=False):  # a struct, because a replica has very many of them
    """When something may be tried again: delays that double up to a limit, measured in the `now_ms` of `step`.

    The engine does not use `cheops.backoff`: it must not draw random numbers, or the simulator could not play a history
    again from its seed. Jitter is not needed here, because the ticks of different agents are not aligned.
    """

    first_ms: int
    _longest_ms: int
    _at_ms: int = 0  # due from this time on
    _delay_ms: int = 0  # the last delay; 0: no attempt has failed since the last success

    def is_due(self, now_ms: int) -> bool:
        # A time further away than any delay means that the wall clock was set back: do not wait for it to catch up.
        return not 0 < self._at_ms - now_ms <= self._longest_ms

    @property
    def is_set(self) -> bool:
        """Whether it may not be due."""
        return self._at_ms > 0

    @property
    def is_backing_off(self) -> bool:
        return self._delay_ms > 0

    def back_off(self, now_ms: int, at_least: int = 1) -> None:
        """An attempt begins, or failed: the next one is due after twice the last delay, or after at least so many times
        the first one."""
        self._delay_ms = min(max(at_least * self.first_ms, self._delay_ms * 2), self._longest_ms)
        self._at_ms = now_ms + self._delay_ms

    def wait_first(self, now_ms: int, at_least_ms: int = 0) -> None:
        """Not due before the first delay has passed; a longer wait that is under way stays."""
        delay_ms = min(max(self.first_ms, at_least_ms), self._longest_ms)
        self._at_ms = max(self._at_ms, now_ms + delay_ms)

    def wait_longest(self, now_ms: int) -> None:
        self._at_ms = now_ms + self._longest_ms

    def reset_delay(self) -> None:
        """Something succeeded: the next delay is the first one again. A wait that is under way stays."""
        self._delay_ms = 0

    def expire(self) -> None:
        """Due at once."""
        self._at_ms = 0
