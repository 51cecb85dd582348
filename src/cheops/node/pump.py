"""The pump: events into the engine, its effects carried out in their order.

The engine decides at once, in memory. Its effects wait in one queue. The pump takes everything that waits, makes the
saves durable in one commit (so that many operations share one sync of the disk), and only then carries out the rest:
run, send, answer. While a commit is under way the engine already handles the next events.

If the store cannot commit (a full disk), nothing that depends on it happens. The pump reports the trouble and retries
until it succeeds. No acknowledged operation is lost, because nothing is acknowledged before the commit.

No event stops the pump. A bug in the engine costs the resource concerned that one step (see `Site._guarded`). A
document that can never be stored costs its resource what was decided since: those effects are dropped, the requests get
an error, and the engine starts again from what the store has (`Unstorable`). All faults are counted and logged.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import replace

from cheops.backoff import Backoff
from cheops.engine.documents import Message, key_of
from cheops.engine.events import (
    Answer,
    Effect,
    Enumerate,
    Enumerated,
    Event,
    Fault,
    Load,
    Loaded,
    Notify,
    Queried,
    Restart,
    Run,
    Save,
    Send,
    Stage,
    Unstorable,
)
from cheops.engine.replica import Replica
from cheops.engine.restoration import restored
from cheops.engine.site import Site
from cheops.errors import CheopsError
from cheops.log.operation import MAX_SIGNATURE_CHARACTERS
from cheops.node.store_thread import StoreThread
from cheops.store.codec import MAX_DOCUMENT_BYTES, encode, resource_of
from cheops.store.interface import CodecError, DamagedError, Store, StoreError
from cheops.text import printable, shortened

_log = logging.getLogger(__name__)
_STEPS_PER_COMMIT = 500  # a larger batch would make the first of its clients wait for the last
_RETRY_S, _RETRY_MOST_S = 0.1, 5.0
_READS = (Load, Enumerate)
_SIGNATURE_BYTES = MAX_SIGNATURE_CHARACTERS + 50  # what a signature may add to a document


class EffectHandler(Protocol):
    """Carries out the effects that are not for the store."""

    def run(self, effect: Run) -> None: ...

    def send(self, effect: Send) -> None: ...

    def answer(self, effect: Answer) -> None: ...

    def notify(self, effect: Notify) -> None: ...

    def restart(self, effect: Restart) -> None: ...

    def fault(self, effect: Fault) -> None: ...

    def committed(self, saves: list[Save], last_seq: int) -> None: ...

    def damaged(self, error: DamagedError) -> None: ...


def wall_ms() -> int:
    return time.time_ns() // 1_000_000


class Pump:
    """Belongs to one event loop; `thread` runs one call at a time, and is the only one that commits."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it drives, and what drives it
        self,
        site: Site,
        store: Store,
        handler: EffectHandler,
        thread: StoreThread,
        now_ms: Callable[[], int] = wall_ms,
        before_commit: Callable[[Sequence[Message]], None] | None = None,
    ) -> None:
        """`before_commit` gets the messages that are sent after a commit; none if nothing is committed."""
        self.site = site
        self.trouble: str | None = None  # why the store cannot commit at the moment
        self.commits = 0  # since the start
        self._store = store
        self._handler = handler
        self._thread = thread
        self._now_ms = now_ms
        self._before_commit = before_commit
        self._queue: deque[list[Effect]] = deque()
        self._posted = 0  # steps with effects, since the start
        self._done = 0  # those whose effects are carried out
        self._work = asyncio.Event()
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()  # who waits for a step; the earliest first
        self._loads: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}  # until a resource is loaded

    def post(self, event: Event) -> None:
        """Pass an event to the engine. It has decided when this returns; the effects follow."""
        # No await between the step and the queue: effects must leave in the order in which the engine decided.
        try:
            effects = self.site.step(event, self._now_ms())
        except Exception as error:  # an event of the whole site; those of a resource do not raise
            effects = [Fault("", error)]
        if effects:
            self._queue.append(effects)
            self._posted += 1
            self._work.set()

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica:
        """A resource as this site knows it, loaded if need be; with `refresh` the engine asks the other sites too."""
        self.post(Queried(resource, refresh))
        while resource not in self.site.replicas:
            if self.site.incarnations.is_closed:
                raise _starting_again()
            loaded = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(resource, []).append(loaded)
            await loaded
        return self.site.replicas[resource]

    async def readable(self, resources: Iterable[str]) -> list[Replica]:
        """Those of these resources that the store can load: one that it cannot load must not hide the others."""
        damaged = self._store.damaged
        wanted = [resource for resource in resources if resource not in damaged]
        found = await asyncio.gather(*map(self.replica, wanted), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, StoreError):
                raise one
        return [one for one in found if isinstance(one, Replica)]

    @property
    def backlog(self) -> int:
        """How many steps wait for their effects."""
        return len(self._queue)

    async def flushed(self) -> None:
        """Wait until the effects of all events up to now are carried out, and so are durable."""
        if self._done < self._posted:
            flushed = asyncio.get_running_loop().create_future()
            self._flushes.append((self._posted, flushed))
            await flushed

    async def run(self) -> None:
        """Pump until cancelled."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._queue:
                await self._carry_out(self._next())

    def close(self) -> None:
        """Cancel what is being loaded."""
        for task in self._loads:
            task.cancel()

    def _next(self) -> list[list[Effect]]:
        return [self._queue.popleft() for _ in range(min(len(self._queue), _STEPS_PER_COMMIT))]

    async def _carry_out(self, steps: list[list[Effect]]) -> None:
        saves = _saves(steps)
        if self._before_commit is not None:
            self._before_commit(_messages(steps) if saves else ())
        if saves:  # first of all: nothing may leave this site that a crash could still take back
            try:
                last_seq = await self._commit(saves)
            except CodecError:
                await self._drop_unstorable(steps)
                saves = _saves(steps)
                last_seq = await self._commit(saves)
            self._note_commit(saves, last_seq)
        others = [effect for effects in steps for effect in effects if not isinstance(effect, Save)]
        # Loads first: they only read, and run in the background while the rest is carried out.
        self._load([effect for effect in others if isinstance(effect, _READS)])
        for effect in others:
            self._do(effect)
        self._done += len(steps)
        while self._flushes and self._flushes[0][0] <= self._done:
            _, flushed = self._flushes.popleft()
            if not flushed.done():  # it may be cancelled
                flushed.set_result(None)

    def _note_commit(self, saves: list[Save], last_seq: int) -> None:
        try:
            self._handler.committed(saves, last_seq)
        except Exception as error:  # as in `_do`
            self._handler.fault(Fault("", error))

    async def _drop_unstorable(self, steps: list[list[Effect]]) -> None:
        """Take out of these steps, and of those that wait, all effects on resources with a document that cannot be
        stored: later decisions about them rest on it."""
        bad = await self._thread.call(_unstorable, _saves(steps))
        # No await from here on: the engine must not decide on the wrong state in between.
        for effects in (*steps, *self._queue):
            effects[:] = [left for effect in effects if (left := self._without(effect, bad)) is not None]
        for resource, error in bad.items():
            self.post(Unstorable(resource, error))

    def _without(self, effect: Effect, bad: Mapping[str, Exception]) -> Effect | None:
        """What is left of an effect without these resources."""
        match effect:
            case Save():
                documents = tuple(one for one in effect.documents if resource_of(key_of(one)) not in bad)
                return Save(documents, tuple(key for key in effect.forget if resource_of(key) not in bad))
            case Send():
                return None if effect.message.resource in bad else effect
            case Answer() if effect.resource in bad:
                # Nothing that waits to be answered is durable. A client that already has an answer gets another one.
                return replace(effect, stage=Stage.REFUSED, detail=f"nothing was done: {bad[effect.resource]}")
            case Run() | Notify():
                return None if effect.resource in bad else effect
        return effect

    async def _commit(self, saves: list[Save]) -> int:
        backoff = Backoff(_RETRY_S, _RETRY_MOST_S)
        while True:
            try:
                last_seq = await self._thread.call(self._store.commit, saves)
            except StoreError as error:
                if self.trouble is None:
                    _log.error("the store cannot save, so nothing is run, sent or answered: %s", error)
                self.trouble = str(error)
                await asyncio.sleep(backoff.next_s())
            else:
                if self.trouble is not None:
                    _log.warning("the store can save again")
                self.trouble = None
                self.commits += 1
                return last_seq

    def _do(self, effect: Effect) -> None:
        """Carry out an effect, which is no part of the engine. A bug there must not end the pump."""
        try:
            match effect:
                case Run():
                    self._handler.run(effect)
                case Send():
                    self._handler.send(effect)
                case Answer():
                    self._handler.answer(effect)
                case Notify():
                    self._handler.notify(effect)
                case Fault():
                    self._handler.fault(effect)
                case Restart():
                    for resource in list(self._waiting):  # nothing is loaded any more
                        self._wake_waiting(resource, _starting_again())
                    self._handler.restart(effect)
                case _:
                    pass  # loads have started already
        except Exception as error:
            self._handler.fault(Fault("", error))

    def _load(self, wanted: Iterable[Load | Enumerate]) -> None:
        if wanted := tuple(wanted):
            task = asyncio.ensure_future(self._read_until_loaded(wanted))
            self._loads.add(task)
            task.add_done_callback(self._loads.discard)

    async def _read_until_loaded(self, wanted: tuple[Load | Enumerate, ...]) -> None:
        backoff = Backoff(_RETRY_S, _RETRY_MOST_S)
        left = list(wanted)
        while left:
            for effect, event in await self._thread.call(self._read, left):
                if isinstance(event, StoreError):
                    self._report_unreadable(effect, event)
                    continue
                left.remove(effect)
                self.post(event)
                if isinstance(event, Loaded):
                    failed = None if event.resource in self.site.replicas else _not_loaded(event.resource)
                    self._wake_waiting(event.resource, failed)
            if left:
                await asyncio.sleep(backoff.next_s())

    def _report_unreadable(self, effect: Load | Enumerate, error: StoreError) -> None:
        """The load is retried, but callers that wait for the resource get the error now."""
        if isinstance(error, DamagedError):
            self._handler.damaged(error)
        else:
            _log.warning("cannot read %s: %s", effect, error)
        if isinstance(effect, Load):
            self._wake_waiting(effect.resource, error)

    def _wake_waiting(self, resource: str, error: CheopsError | None) -> None:
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
                # Decoded and restored here, in the thread: for a large resource that takes seconds.
                return restored(self.site, Loaded(effect.resource, self._store.load(effect.resource)))
            return Enumerated(effect.peer, self._store.involving(effect.peer))
        except StoreError as error:
            return error


def _saves(steps: Iterable[Iterable[Effect]]) -> list[Save]:
    return [effect for effects in steps for effect in effects if isinstance(effect, Save)]


def _messages(steps: Iterable[Iterable[Effect]]) -> list[Message]:
    return [effect.message for effects in steps for effect in effects if isinstance(effect, Send)]


def _unstorable(saves: Iterable[Save]) -> dict[str, Exception]:
    """The resources with a document that cannot be stored, and why."""
    bad: dict[str, Exception] = {}
    for document in (document for save in saves for document in save.documents):
        try:
            size = len(encode(document)) + _SIGNATURE_BYTES
        except CodecError as error:
            bad.setdefault(resource_of(key_of(document)), error)
        else:
            if size > MAX_DOCUMENT_BYTES:
                bad.setdefault(resource_of(key_of(document)), CodecError(f"a document of {size:,} bytes is too large"))
    return bad


def _starting_again() -> CheopsError:
    text = "this site has found that its store must not go on, and starts again; try again in a moment"
    return CheopsError(text, status=503, definite=False)


def _not_loaded(resource: str) -> CheopsError:
    return CheopsError(
        f"'{printable(shortened(resource))}' cannot be used because of a fault in this agent; its log has the details",
        status=500,
    )
