"""Stores with many resources at rest, such as three sites have that did one operation on each.

The documents are not made up: three engines go through one such operation, and what the first has kept of it
in the end is copied, under other names.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain

from bench.desk import COUNTER
from cheops.engine.documents import Document, Key, Ledger, key_of
from cheops.engine.events import (
    Effect,
    Event,
    Load,
    Loaded,
    Outcome,
    PeerUp,
    Ran,
    Received,
    Result,
    Run,
    Save,
    Send,
    Submitted,
    Tick,
)
from cheops.engine.site import Site
from cheops.engine.types import Settings
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Operation, Origin, Reply, Timing
from cheops.store.base import Store

_RESOURCES_PER_COMMIT = 500
_TICKS, _TICK_MS = 20, 1_000
_START_MS = 1_700_000_000_000


class _Three:
    """Engines that talk without a network; what the first one keeps."""

    def __init__(self, origins: Iterable[Origin]) -> None:
        self._sites = {origin.site: Site(origin, Settings()) for origin in origins}
        self._first = next(iter(self._sites))
        self._events: deque[tuple[str, Event]] = deque()
        self._now_ms = _START_MS
        self.kept: dict[Key, Document] = {}

    def one_operation(self, resource: str) -> None:
        names = tuple(self._sites)
        pairs = ((a, b) for a in names for b in names if a != b)
        self._events.extend((a, PeerUp(b, self._sites[b].origin.incarnation)) for a, b in pairs)
        wanted = Submitted("request", resource, "inc", Command("redis-cli incrby counter 13"), sites=names)
        self._events.append((self._first, replace(wanted, matrix=COUNTER)))
        for _ in range(_TICKS):
            self._settle()
            self._now_ms += _TICK_MS
            self._events.extend((name, Tick()) for name in names)
        self._settle()

    def _settle(self) -> None:
        while self._events:
            name, event = self._events.popleft()
            for effect in self._sites[name].step(event, self._now_ms):
                self._take(name, effect)

    def _take(self, name: str, effect: Effect) -> None:
        match effect:
            case Save() if name == self._first:
                for key in effect.forget:
                    self.kept.pop(key, None)
                self.kept |= {key_of(document): document for document in effect.documents}
            case Load():
                self._events.append((name, Loaded(effect.resource, ())))
            case Run():
                done = Outcome(Result.OK, "13\n", Timing(self._now_ms, 2))
                self._events.append((name, Ran(effect.resource, effect.n, (done,) * len(effect.steps))))
            case Send():
                self._events.append((effect.peer, Received(name, effect.message)))
            case _:
                pass


def fill(store: Store, numbers: range, sites: tuple[str, ...]) -> None:
    """Put one resource for each number into the store of the first of these sites."""
    three = _Three(Origin(site, store.incarnation if site == sites[0] else "other") for site in sites)
    three.one_operation("template")
    kept = list(three.kept.values())
    if not any(isinstance(document, Ledger) and not document.unsynced for document in kept):
        raise ValueError("the resource that all are copied from has not come to rest")
    store.commit([Save(tuple(document for document in kept if isinstance(document, Matrix)))])
    for first in range(numbers.start, numbers.stop, _RESOURCES_PER_COMMIT):
        names = [name_of(n) for n in range(first, min(first + _RESOURCES_PER_COMMIT, numbers.stop))]
        store.commit([Save(tuple(chain.from_iterable(_copies(kept, name) for name in names)))])


def name_of(number: int) -> str:
    return f"resource-{number}"


def _copies(documents: Iterable[Document], name: str) -> Iterator[Document]:
    for document in documents:
        if isinstance(document, Operation | Reply | Ledger):
            yield replace(document, resource=name)
