"""A site without HTTP, peers and commands (engine, pump and store), and stores filled with many resources.

Every command succeeds at once, and nothing is sent to peers. Otherwise it is driven as a node drives it: on uvloop,
with a thread that writes, and ticks. The documents of a filled store are real: three engines run one operation, and
the documents of the first one are copied under other names.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from itertools import chain
from pathlib import Path

from msgspec import structs
from msgspec.structs import replace

from cheops.engine.documents import Document, Key, Ledger, key_of
from cheops.engine.events import (
    Answer,
    ClientLeft,
    Effect,
    Event,
    Fault,
    Load,
    Loaded,
    Notify,
    Outcome,
    PeerUp,
    Ran,
    Received,
    Restart,
    Result,
    Run,
    Save,
    Send,
    Stage,
    Submitted,
    Tick,
)
from cheops.engine.settings import Settings
from cheops.engine.site import Site
from cheops.log.matrix import Entry, Matrix
from cheops.log.matrix import Result as Combined
from cheops.log.operation import Command, Operation, Origin, Reply, Timing
from cheops.node.effects import Answers, PendingRequests
from cheops.node.pump import Pump
from cheops.node.store_thread import StoreThread
from cheops.security.signatures import Sign
from cheops.store.batch import DocumentSigner
from cheops.store.interface import DamagedError, Store
from cheops.store.sqlite import SQLiteStore

SITE = "site1"
COUNTER = Matrix(
    (
        Entry("set", "inc", Combined.KEEP_ORDER),
        Entry("inc", "inc", Combined.TAKE_BOTH),
        Entry("set", "set", Combined.TAKE_ONE),
    )
)
_TICK_S = 0.1
_PAYLOAD = Command("redis-cli incrby counter 13")


class RefusedError(Exception):
    """The site refused an operation, so the measurement is invalid."""


class _CountingStore(SQLiteStore):
    """Counts the documents of each commit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SITE)
        self.commits: list[int] = []

    def commit(self, saves: Sequence[Save]) -> int:
        self.commits.append(sum(len(save.documents) + len(save.forget) for save in saves))
        return super().commit(saves)


class LocalSite:
    """Accepts operations, and waits until each is decided: durable, run, and acknowledged."""

    def __init__(self, store: _CountingStore, thread: StoreThread) -> None:
        self._store = store
        self.pump = Pump(Site(Origin(SITE, store.incarnation), Settings()), store, self, thread)
        self._waiting = PendingRequests(lambda resource, op: self.pump.post(ClientLeft(resource, op)))

    @property
    def commits(self) -> list[int]:
        """How many documents each commit so far has written."""
        return self._store.commits

    async def submit(self, resource: str, sites: tuple[str, ...] = (SITE,)) -> None:
        with Answers(self._waiting) as answers:
            event = Submitted(answers.request, resource, "inc", _PAYLOAD, sites=sites, matrix=COUNTER)
            self.pump.post(event)
            while (answer := await answers.next()).stage is not Stage.DECIDED:
                if answer.op is None:
                    raise RefusedError(answer.detail)
                answers.accepted(resource, answer.op)

    # -- the handler of the pump's effects ---------------------------------------------------------------

    def run(self, effect: Run) -> None:
        outcome = Outcome(Result.OK, "13\n", Timing(1_700_000_000_000, 2))
        self.pump.post(Ran(effect.resource, effect.n, (outcome,) * len(effect.steps)))

    def answer(self, effect: Answer) -> None:
        self._waiting.deliver(effect)

    def send(self, effect: Send) -> None: ...

    def notify(self, effect: Notify) -> None: ...

    def restart(self, effect: Restart) -> None:
        raise RuntimeError(effect.why)

    def fault(self, effect: Fault) -> None:
        raise effect.error

    def damaged(self, error: DamagedError) -> None:
        raise error

    def committed(self, saves: list[Save], last_seq: int) -> None: ...


@asynccontextmanager
async def running_site(path: Path, sign: Sign | None = None) -> AsyncIterator[LocalSite]:
    """A site with its store at a path; with `sign` it signs its documents. A failure of its pump ends the block."""
    with StoreThread("store") as thread, closing(_CountingStore(path)) as store:
        if sign is not None:
            store.add_signatures = DocumentSigner(Origin(SITE, store.incarnation), sign).signed
        site = LocalSite(store, thread)
        site.pump.post(store.recovered())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(site.pump.run()), group.create_task(_tick(site.pump))]
            yield site
            for task in tasks:
                task.cancel()


async def _tick(pump: Pump) -> None:
    while True:
        pump.post(Tick())
        await asyncio.sleep(_TICK_S)


_RESOURCES_PER_COMMIT = 500
_TICKS, _TICK_MS = 20, 1_000
_START_MS = 1_700_000_000_000


class _ThreeEngines:
    """Engines that exchange messages without a network. `documents` are those that the first one saves."""

    def __init__(self, origins: Iterable[Origin]) -> None:
        self._sites = {origin.site: Site(origin, Settings()) for origin in origins}
        self._first = next(iter(self._sites))
        self._events: deque[tuple[str, Event]] = deque()
        self._now_ms = _START_MS
        self.documents: dict[Key, Document] = {}

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
                    self.documents.pop(key, None)
                self.documents |= {key_of(document): document for document in effect.documents}
            case Load():
                self._events.append((name, Loaded(effect.resource, ())))
            case Run():
                outcome = Outcome(Result.OK, "13\n", Timing(self._now_ms, 2))
                self._events.append((name, Ran(effect.resource, effect.n, (outcome,) * len(effect.steps))))
            case Send():
                self._events.append((effect.peer, Received(name, effect.message)))
            case _:
                pass


def fill_store(store: Store, numbers: range, sites: tuple[str, ...]) -> None:
    """Put one resource for each number into the store of the first of these sites."""
    three = _ThreeEngines(Origin(site, store.incarnation if site == sites[0] else "other") for site in sites)
    three.one_operation("template")
    documents = list(three.documents.values())
    if not any(isinstance(document, Ledger) and not document.unsynced for document in documents):
        raise ValueError("the resource that all are copied from is not settled at all sites")
    store.commit([Save(tuple(document for document in documents if isinstance(document, Matrix)))])
    for first in range(numbers.start, numbers.stop, _RESOURCES_PER_COMMIT):
        names = [name_of(n) for n in range(first, min(first + _RESOURCES_PER_COMMIT, numbers.stop))]
        store.commit([Save(tuple(chain.from_iterable(_copies(documents, name) for name in names)))])


def name_of(number: int) -> str:
    return f"resource-{number}"


def _copies(documents: Iterable[Document], name: str) -> Iterator[Document]:
    for document in documents:
        if isinstance(document, Operation | Reply | Ledger):
            yield structs.replace(document, resource=name)
