"""The pump: events into the engine, its effects carried out in their order.

The engine decides at once, in memory. What it wants done waits in one queue. The pump takes all that waits,
makes its saves durable in one commit (so many operations share one sync of the disk), and only then does the
rest: run, send, answer. While a commit is under way the engine goes on with the next events.

If the store cannot commit (a full disk), nothing that depends on it happens; the pump says so, and tries
again until it can. Nothing that was acknowledged is lost, for nothing is acknowledged before.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Protocol

from cheops.engine.events import (
    Answer,
    Effect,
    Enumerate,
    Enumerated,
    Event,
    Load,
    Loaded,
    Notify,
    Queried,
    Run,
    Save,
    Send,
)
from cheops.engine.replica import Replica
from cheops.engine.site import Site
from cheops.store.interface import Store, StoreError

_log = logging.getLogger(__name__)
_STEPS_PER_COMMIT = 500
_RETRY_S, _RETRY_MOST_S = 0.1, 5.0


class EffectHandler(Protocol):
    """Who does what the engine wants done beyond its store."""

    def run(self, effect: Run) -> None: ...

    def send(self, effect: Send) -> None: ...

    def answer(self, effect: Answer) -> None: ...

    def notify(self, effect: Notify) -> None: ...

    def committed(self, saves: list[Save], last_seq: int) -> None: ...


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Pump:
    """Belongs to one event loop; `thread` runs one call at a time, and is the only one that commits."""

    def __init__(
        self, site: Site, store: Store, hands: EffectHandler, thread: Executor, now_ms: Callable[[], int] = wall_ms
    ) -> None:
        self.site = site
        self.trouble: str | None = None  # why the store cannot commit, while it cannot
        self._store = store
        self._hands = hands
        self._thread = thread
        self._now_ms = now_ms
        self._queue: deque[list[Effect]] = deque()
        self._posted = 0
        self._done = 0
        self._work = asyncio.Event()
        self._progress = asyncio.Condition()
        self._loads: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # for resources to be in memory

    def post(self, event: Event) -> None:
        """Something happened. The engine knows when this returns; the effects follow."""
        effects = self.site.step(event, self._now_ms())
        if effects:
            self._queue.append(effects)
            self._posted += 1
            self._work.set()

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica:
        """A resource as this site knows it, loaded if it was not; with `anew` the others are asked too."""
        self.post(Queried(resource, refresh))
        while resource not in self.site.replicas:
            loaded = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(resource, []).append(loaded)
            await loaded
        return self.site.replicas[resource]

    @property
    def backlog(self) -> int:
        """Steps whose effects wait to be carried out."""
        return len(self._queue)

    async def flushed(self) -> None:
        """Wait until all that was wanted by now is carried out, so that it is durable."""
        target = self._posted
        async with self._progress:
            await self._progress.wait_for(lambda: self._done >= target)

    async def run(self) -> None:
        """Pump until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                await self._carry_out(self._next())

    def close(self) -> None:
        """Give up what is being loaded."""
        for task in self._loads:
            task.cancel()

    def _next(self) -> list[list[Effect]]:
        return [self._queue.popleft() for _ in range(min(len(self._queue), _STEPS_PER_COMMIT))]

    async def _carry_out(self, steps: list[list[Effect]]) -> None:
        saves = [effect for effects in steps for effect in effects if isinstance(effect, Save)]
        if saves:
            self._hands.committed(saves, await self._commit(saves))
        others = [effect for effects in steps for effect in effects if not isinstance(effect, Save)]
        self._load([effect for effect in others if isinstance(effect, Load | Enumerate)])
        for effect in others:
            self._do(effect)
        self._done += len(steps)
        async with self._progress:
            self._progress.notify_all()

    async def _commit(self, saves: list[Save]) -> int:
        loop, wait_s = asyncio.get_running_loop(), _RETRY_S
        while True:
            try:
                last_seq = await loop.run_in_executor(self._thread, self._store.commit, saves)
            except StoreError as error:
                if self.trouble is None:
                    _log.error("nothing can be saved, so nothing is done or answered: %s", error)
                self.trouble = str(error)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_MOST_S)
            else:
                if self.trouble is not None:
                    _log.warning("the store works again")
                self.trouble = None
                return last_seq

    def _do(self, effect: Effect) -> None:
        match effect:
            case Run():
                self._hands.run(effect)
            case Send():
                self._hands.send(effect)
            case Answer():
                self._hands.answer(effect)
            case Notify():
                self._hands.notify(effect)
            case _:
                pass  # loads were begun already

    def _load(self, wanted: Iterable[Load | Enumerate]) -> None:
        if wanted := tuple(wanted):
            task = asyncio.ensure_future(self._loaded(wanted))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _loaded(self, wanted: tuple[Load | Enumerate, ...]) -> None:
        loop, wait_s = asyncio.get_running_loop(), _RETRY_S
        left = list(wanted)
        while left:
            for effect, event in await loop.run_in_executor(self._thread, self._read, left):
                if isinstance(event, StoreError):
                    self._cannot_load(effect, event)
                    continue
                left.remove(effect)
                self.post(event)
                if isinstance(event, Loaded):
                    self._wake_waiting(event.resource, None)
            if left:
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, _RETRY_MOST_S)

    def _cannot_load(self, effect: Load | Enumerate, error: StoreError) -> None:
        """It is tried again; whoever waits hears now."""
        _log.warning("%s cannot be read: %s", effect, error)
        if isinstance(effect, Load):
            self._wake_waiting(effect.resource, error)

    def _wake_waiting(self, resource: str, error: StoreError | None) -> None:
        for waiting in self._waiting.pop(resource, []):
            if waiting.done():
                continue
            if error is None:
                waiting.set_result(None)
            else:
                waiting.set_exception(error)

    def _read(self, wanted: list[Load | Enumerate]) -> list[tuple[Load | Enumerate, Loaded | Enumerated | StoreError]]:
        return [(effect, self._read_one(effect)) for effect in wanted]

    def _read_one(self, effect: Load | Enumerate) -> Loaded | Enumerated | StoreError:
        try:
            if isinstance(effect, Load):
                return Loaded(effect.resource, self._store.load(effect.resource))
            return Enumerated(effect.peer, self._store.involving(effect.peer))
        except StoreError as error:
            return error
