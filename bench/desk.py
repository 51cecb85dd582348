"""A site without HTTP, peers and commands: what is left is the engine, the pump and the store on a disk.

Every command is OK at once, and what would go to peers goes nowhere. Otherwise it is driven as a node drives
it: on uvloop, with a thread that writes, and ticks.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, closing
from pathlib import Path

from cheops.engine.events import (
    Answer,
    Left,
    Notify,
    Outcome,
    Ran,
    Result,
    Run,
    Save,
    Send,
    Stage,
    Submitted,
    Tick,
)
from cheops.engine.site import Site
from cheops.engine.types import Settings
from cheops.log.matrix import Entry, Matrix
from cheops.log.matrix import Result as Combined
from cheops.log.operation import Command, Origin, Timing
from cheops.node.pump import Pump
from cheops.node.waiting import Answers, Waiting
from cheops.security.signatures import Sign
from cheops.store.signing import Signing
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
    """The site did not take an operation: the measurement is worth nothing."""


class _Counted(SQLiteStore):
    """Knows how many documents each commit wrote."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, SITE)
        self.commits: list[int] = []

    def commit(self, saves: Sequence[Save]) -> int:
        self.commits.append(sum(len(save.documents) + len(save.forget) for save in saves))
        return super().commit(saves)


class Desk:
    """Takes operations, and waits until each is decided: durable, run, and acknowledged."""

    def __init__(self, store: _Counted, thread: ThreadPoolExecutor) -> None:
        self._store = store
        self.pump = Pump(Site(Origin(SITE, store.incarnation), Settings()), store, self, thread)
        self._waiting = Waiting(lambda resource, op: self.pump.post(Left(resource, op)))

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

    # -- hands of the pump -------------------------------------------------------------------------------

    def run(self, effect: Run) -> None:
        done = Outcome(Result.OK, "13\n", Timing(1_700_000_000_000, 2))
        self.pump.post(Ran(effect.resource, effect.n, (done,) * len(effect.steps)))

    def answer(self, effect: Answer) -> None:
        self._waiting.take(effect)

    def send(self, effect: Send) -> None: ...

    def notify(self, effect: Notify) -> None: ...

    def committed(self, saves: list[Save], last_seq: int) -> None: ...


@asynccontextmanager
async def desk(path: Path, sign: Sign | None = None) -> AsyncIterator[Desk]:
    """A site on the store at a path; with `sign` it signs what it keeps. If its pump fails, so does whoever
    uses it."""
    with ThreadPoolExecutor(1) as thread, closing(_Counted(path)) as store:
        if sign is not None:
            store.add_signatures = Signing(Origin(SITE, store.incarnation), sign).signed
        made = Desk(store, thread)
        made.pump.post(store.recovered())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(made.pump.run()), group.create_task(_tick(made.pump))]
            yield made
            for task in tasks:
                task.cancel()


async def _tick(pump: Pump) -> None:
    while True:
        pump.post(Tick())
        await asyncio.sleep(_TICK_S)
