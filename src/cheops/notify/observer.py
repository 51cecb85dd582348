"""Observes what the engine knows and no document says: which operations lost their effect, and how far sites have got.

A resource is examined after a commit of one of its operations or replies, and when one of its sites reports progress.
The result enters the journal only after everything it rests on is durable and journalled (`Engine.flushed`): the
journal never reports what a crash could take back. The observer notes how far it has got; after a crash it examines the
resources beyond that again. It reports nothing twice.

A resource that cannot be loaded, because its documents are damaged, holds up no other event. It is examined once it is
loaded; until then the observer does not note that it has got further.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from msgspec import Struct

from cheops.engine.events import Notify, PeerDown, PeerUp
from cheops.engine.replica import Replica
from cheops.engine.site import Site
from cheops.errors import CheopsError
from cheops.log.operation import Operation, OpId
from cheops.log.rules import Fate, Rule
from cheops.notify.derivation import NOTICES, of_fate, of_notice, of_peer, op_text
from cheops.notify.event import Event
from cheops.notify.follower import Follower, wall_ms
from cheops.notify.journal import Journal, put_meta
from cheops.notify.summaries import DeliveryState, delivery_state
from cheops.store.interface import StoreError

_POLL_S = 0.2
_PAUSE_S = 0.02  # between two rounds
_RECORD_EVERY_S = 5.0
_RETRY_S = 1.0
# Loading a resource costs memory and messages to its sites, so those with pending summaries are loaded a few at a time.
_WAKE_AT_ONCE = 20
_WAKE_EVERY_S = 600.0
_MOST_LOOSE = 10_000  # events that are in no document and wait to be written
_log = logging.getLogger(__name__)
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Engine(Protocol):
    """The engine as the pump drives it (cheops/node/pump.py)."""

    site: Site

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica: ...

    async def flushed(self) -> None: ...


class Observation(Struct, frozen=True):
    """The result of examining one resource."""

    resource: str
    fates: tuple[tuple[Operation, Fate], ...]
    state: DeliveryState


class ReportedFates(NamedTuple):
    """The fates of a replica at the last examination, and what shows cheaply that there are no new ones."""

    fates: Mapping[OpId, Fate]
    last: OpId | None
    reported: set[OpId]


class EngineObserver:
    """Belongs to one event loop; `in_thread` runs what blocks."""

    def __init__(
        self,
        journal: Journal,
        follower: Follower,
        engine: Engine,
        in_thread: InThread,
        announce: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._follower = follower
        self._engine = engine
        self._in_thread = in_thread
        self._announce = announce
        self._work = asyncio.Event()
        self._dirty: dict[str, None] = {}
        self._examined = 0
        self._loose: list[Event] = []
        self._recorded_s = 0.0
        # Weak: a replica that the engine unloads takes its entry along.
        self._reported: WeakKeyDictionary[Replica, ReportedFates] = WeakKeyDictionary()
        self._unreadable: dict[str, None] = {}  # resources that could not be loaded, and are still to be examined
        self._states: dict[str, DeliveryState] = {}  # of resources with pending summaries, when last examined
        self._asleep: list[str] = []  # resources with pending summaries that are not loaded; woken a few at a time

    # -- input -----------------------------------------------------------------------------------------------

    def mark(self, resources: Iterable[str], last_seq: int) -> None:
        """These have new documents, up to this number of the feed."""
        self._dirty |= dict.fromkeys(resources)
        self._examined = last_seq
        self._work.set()

    def add_notice(self, notice: Notify) -> None:
        replica = self._engine.site.replicas.get(notice.resource)
        known, rtype = (replica.history.known, replica.type.name) if replica else ({}, "")
        self._add(of_notice(notice, self._follower.origin.site, rtype, known, wall_ms()))

    def add_peer_event(self, event: PeerUp | PeerDown, why: str = "") -> None:
        self._add(of_peer(event, self._follower.origin.site, wall_ms(), why))

    def _add(self, event: Event | None) -> None:
        if event is not None and len(self._loose) < _MOST_LOOSE:
            self._loose.append(event)
            self._work.set()

    # -- examining -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Examine resources until cancelled."""
        loop = asyncio.get_running_loop()
        since = int(str(self._journal.note("examined")))
        unseen: set[str] = await self._in_thread(lambda: self._follower.resources_since(since))
        self._dirty |= dict.fromkeys(sorted(unseen))
        self._examined = max(self._examined, self._follower.followed)
        wake_at_s = loop.time()
        while True:
            if loop.time() >= wake_at_s:
                self._asleep = self._sleeping()
                self._dirty |= self._unreadable
                wake_at_s = loop.time() + _WAKE_EVERY_S
            self._poll()
            try:
                await self._wake_some()
                await self._round()
            except StoreError as error:
                _log.warning("events wait to be written: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:  # a bug here must end neither the notifications nor the site
                _log.exception("examining resources for events failed")
                await asyncio.sleep(_RETRY_S)
            await asyncio.sleep(_PAUSE_S)  # under load, one round for all commits of this time
            await self._until_work()

    async def _until_work(self) -> None:
        # A timer of our own: `asyncio.wait_for` would make a task each time.
        timer = asyncio.get_running_loop().call_later(_POLL_S, self._work.set)
        try:
            await self._work.wait()
        finally:
            timer.cancel()

    def _poll(self) -> None:
        """Sites make progress without a new document here: their messages say what they have settled."""
        loaded = self._engine.site.replicas
        self._dirty |= dict.fromkeys(name for name in self._unreadable if name in loaded)
        awaited = self._follower.summaries
        if awaited is None:
            return
        for name, replica in loaded.items():
            if name in awaited.resources and delivery_state(replica) != self._states.get(name):
                self._dirty[name] = None

    def _sleeping(self) -> list[str]:
        awaited = self._follower.summaries
        loaded = self._engine.site.replicas
        return [name for name in sorted(awaited.resources) if name not in loaded] if awaited else []

    async def _wake_some(self) -> None:
        """Load resources with pending summaries, and ask their sites how far they are: all may be done."""
        some, self._asleep = self._asleep[:_WAKE_AT_ONCE], self._asleep[_WAKE_AT_ONCE:]
        for name in some:
            try:
                await self._engine.replica(name, refresh=True)
            except CheopsError as error:
                _log.info("summaries wait: %s", error)

    async def _round(self) -> None:
        self._work.clear()
        names, loose, examined = tuple(self._dirty), tuple(self._loose), self._examined
        if not names and not loose:
            return
        self._dirty, self._loose = {}, []
        try:
            seen = await self._examine_all(names)
            if self._is_worth_recording(seen, loose):
                # Only then: the journal must not report a fate that rests on operations which a crash could take back.
                await self._engine.flushed()
                await self._in_thread(lambda: self._record(seen, loose, None if self._unreadable else examined))
                self._recorded_s = asyncio.get_running_loop().time()
        except Exception:
            # Nothing was recorded. Forget what was compared with, so that the next round finds everything again.
            self._dirty = dict.fromkeys(names) | self._dirty
            self._loose = [*loose, *self._loose]
            self._reported.clear()
            self._states.clear()
            raise
        self._forget_settled(names)
        self._announce()

    def _is_worth_recording(self, seen: Iterable[Observation], loose: Iterable[Event]) -> bool:
        """Mostly nothing is to be reported. How far it was examined is written now and then: after a crash, a little
        more is examined again."""
        is_news = bool(loose) or self._follower.summaries is not None or any(look.fates for look in seen)
        return is_news or asyncio.get_running_loop().time() >= self._recorded_s + _RECORD_EVERY_S

    def _forget_settled(self, names: Iterable[str]) -> None:
        """Without this, each resource that ever had an operation would stay in memory."""
        awaited = self._follower.summaries
        for name in names:
            if awaited is None or name not in awaited.resources:
                self._states.pop(name, None)

    async def _examine_all(self, names: Iterable[str]) -> list[Observation]:
        """Those that can be loaded. The pump goes on trying to load the others."""
        seen = []
        for name in names:
            try:
                replica = await self._replica(name)
            except CheopsError as error:
                if name not in self._unreadable:
                    _log.warning("events wait until it can be loaded: %s", error)
                self._unreadable[name] = None
                continue
            seen.append(self._examine(replica))
            self._unreadable.pop(name, None)
        return seen

    async def _replica(self, name: str) -> Replica:
        return self._engine.site.replicas.get(name) or await self._engine.replica(name)

    def _examine(self, replica: Replica) -> Observation:
        fates = tuple(
            (op, replica.history.reason(id_) or replica.history.fates[id_])
            for id_ in self._new_fates(replica)
            if (op := replica.history.ops.get(id_))
        )
        state = self._states[replica.resource] = delivery_state(replica)
        return Observation(replica.resource, fates, state)

    def _new_fates(self, replica: Replica) -> list[OpId]:
        """The fates since the last examination. Mostly there are none, which the first test shows."""
        fates, before = replica.history.fates, self._reported.get(replica)
        last = next(reversed(fates), None)
        if before and before.fates is fates and (before.last, len(before.reported)) == (last, len(fates)):
            return []
        new = sorted(fates.keys() - (before.reported if before else ()), key=lambda id_: (id_.seq, id_.origin))
        self._reported[replica] = ReportedFates(fates, last, set(fates))
        return new

    # -- recording (in the thread) --------------------------------------------------------------------------

    def _record(self, seen: Iterable[Observation], loose: Iterable[Event], examined: int | None) -> None:
        seen = tuple(seen)
        at_ms = wall_ms()
        with self._journal.writing() as db:
            self._journal.append_within(db, [event for event in loose if self._is_new(db, event)])
            for look in seen:
                for op, fate in look.fates:
                    self._report_fate(db, op, fate, at_ms)
            if examined is not None:
                put_meta(db, "examined", examined)
        self._settle(seen, at_ms)

    def _is_new(self, db: sqlite3.Connection, event: Event) -> bool:
        """The engine repeats a notice whenever it loads the resource: one of the same state is not new."""
        if event.kind not in NOTICES.values():
            return True
        done = db.execute(
            "INSERT INTO notices VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET id = excluded.id WHERE id != excluded.id",
            (event.resource, event.kind, event.id),
        )
        return done.rowcount > 0

    def _report_fate(self, db: sqlite3.Connection, op: Operation, fate: Fate, at_ms: int) -> None:
        if fate.rule is Rule.FOLDED:
            return  # its effect stays, in a checkpoint
        if self._follower.summaries:
            self._follower.summaries.lose_effect(db, op.resource, op.id)
        event = of_fate(op, fate, at_ms)
        name = (op_text(op.resource, op.id),)
        if event and db.execute("INSERT OR IGNORE INTO reported_fates VALUES (?)", name).rowcount:
            self._journal.append_within(db, [event])

    def _settle(self, seen: Iterable[Observation], at_ms: int) -> None:
        awaited = self._follower.summaries
        for look in seen if awaited else ():
            assert awaited is not None  # noqa: S101 - checked in the line above
            if look.resource in awaited.resources:
                awaited.settle(look.resource, look.state, at_ms)
