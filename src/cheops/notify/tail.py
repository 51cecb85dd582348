"""The last events of the journal, in memory: for what they are mostly asked for, followers need no disk.

Filled where the journal is written, in whichever thread that is, and read in the event loop.
"""

from collections import Counter, deque
from collections.abc import Iterable
from itertools import takewhile
from threading import Lock
from typing import NamedTuple

from cheops.notify.events import Event


class Stretch(NamedTuple):
    """Events in their order: all that there are up to the number `end`."""

    events: tuple[Event, ...]
    end: int
    is_whole: bool = True  # False: some that were asked for are gone


class Tail:
    """Every event after a number that moves on. May be used from any thread."""

    def __init__(self, end: int, kept: int) -> None:
        self._kept = kept
        self._lock = Lock()
        self._start = self._end = end
        self._events: deque[Event] = deque()
        self._by_resource: dict[str, deque[Event]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def end(self) -> int:
        """The number of the newest event."""
        return self._end

    def add(self, events: Iterable[Event]) -> None:
        """Events with their numbers, which the journal has."""
        with self._lock:
            for event in events:
                self._events.append(event)
                self._by_resource.setdefault(event.resource, deque()).append(event)
                self._counts[event.kind.value, event.status or ""] += 1
                self._end = event.sequence
            while len(self._events) > self._kept:
                self._forget_oldest()

    def _forget_oldest(self) -> None:
        oldest = self._events.popleft()
        self._start = oldest.sequence
        own = self._by_resource[oldest.resource]
        own.popleft()
        if not own:
            del self._by_resource[oldest.resource]

    def after(self, seq: int, limit: int, resource: str | None = None) -> Stretch | None:
        """The events after a number, perhaps of one resource only; None where the journal must be asked."""
        with self._lock:
            if seq < self._start:
                return None
            kept = self._events if resource is None else self._by_resource.get(resource, ())
            newest_first = list(takewhile(lambda event: event.sequence > seq, reversed(kept)))
            end = self._end
        found = tuple(newest_first[: -limit - 1 : -1])
        return Stretch(found, found[-1].sequence if len(found) == limit else end)

    @property
    def counts(self) -> dict[tuple[str, str], int]:
        """How many events of each kind and status were journalled since the start."""
        with self._lock:
            return dict(self._counts)
