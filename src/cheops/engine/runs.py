"""Runs: drafts that wait for their first run, and the one run of a resource that is under way."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import overload

from cheops.engine.settings import Limits
from cheops.engine.timer import RetryTimer
from cheops.log.operation import Operation, OpId
from cheops.log.plan import Plan


class Purpose(Enum):
    """Why something is run."""

    DRAFT = auto()  # for the first time, at its origin
    OPERATION = auto()
    REPLAY = auto()
    UNITS = auto()  # an operation that failed, in unit steps
    HOOK = auto()  # on_error
    READ = auto()  # the state, for a checkpoint
    LEAVE = auto()  # the site left the resource: the command that deletes its copy


@dataclass(slots=True)
class Running:
    n: int  # the number of the reply that the run will have: it identifies the run
    purpose: Purpose
    op: Operation | None = None
    plan: Plan = field(default_factory=Plan)
    rewritten: list[OpId] | None = None  # a logic plugin's commands run, for this effective list
    has_start: bool = False  # its first step is a reset, or the base of a checkpoint


class RunSlot:
    """One run at a time per resource and site, and when the next may begin."""

    def __init__(self, limits: Limits) -> None:
        self.running: Running | None = None
        self._retry = RetryTimer(limits.retry_ms, limits.retry_most_ms)
        # The state is read for a checkpoint at most this often, whatever comes of it.
        self._read = RetryTimer(limits.retry_most_ms, limits.retry_most_ms)

    def is_free(self, now_ms: int) -> bool:
        return self.running is None and self._retry.is_due(now_ms)

    @property
    def is_retrying(self) -> bool:
        return self._retry.is_backing_off

    def begin(self, running: Running) -> None:
        self.running = running

    def end(self, n: int) -> Running | None:
        """The run with this number, which has ended; None for one that was given up at a crash."""
        running = self.running
        if running is None or running.n != n:
            return None
        self.running = None
        return running

    def retry_later(self, now_ms: int) -> None:
        """It was not run, or may not have been: wait longer each time."""
        self._retry.back_off(now_ms)

    def retry_much_later(self, now_ms: int) -> None:
        self._retry.wait_longest(now_ms)

    def note_success(self) -> None:
        self._retry.reset_delay()

    def may_read(self, now_ms: int) -> bool:
        return self._read.is_due(now_ms)

    def note_read(self, now_ms: int) -> None:
        self._read.back_off(now_ms)


class DraftQueue(Sequence[Operation]):
    """Operations of this site without a verdict, in the order of their numbers. They get it in that order."""

    def __init__(self) -> None:
        self._drafts: list[Operation] = []
        # Drafts that ran and failed out of turn: their verdict waits behind the UNKNOWN before them.
        self._failed_early: set[OpId] = set()

    @overload
    def __getitem__(self, place: int) -> Operation: ...
    @overload
    def __getitem__(self, place: slice) -> list[Operation]: ...
    def __getitem__(self, place: int | slice) -> Operation | list[Operation]:
        return self._drafts[place]

    def __len__(self) -> int:
        return len(self._drafts)

    def append(self, draft: Operation) -> None:
        self._drafts.append(draft)

    def load(self, drafts: Iterable[Operation]) -> None:
        self._drafts = sorted(drafts, key=lambda draft: draft.seq)

    def pop_first(self) -> Operation:
        """The first draft, which gets its verdict now."""
        return self._drafts.pop(0)

    def postpone_verdict(self, draft: Operation) -> None:
        self._failed_early.add(draft.id)

    def may_run_early(self, draft: Operation) -> bool:
        return draft.id not in self._failed_early
