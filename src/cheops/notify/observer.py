"""What the engine knows and no document says: which operations lost their effect, and how far the sites are.

A resource is looked at after an operation or a reply of it was committed, and when a site of it says that it
got further. What was seen goes into the journal only after all that it rests on is durable and followed
(`Engine.flushed`), so the journal never tells of what a crash could take back. How far looks have come is
noted; after a crash the resources beyond that are looked at again. What was told is not told a second time.
"""

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

from cheops.engine.events import Notify, PeerDown, PeerUp
from cheops.engine.replica import Replica
from cheops.engine.site import Site
from cheops.log.operation import Operation, OpId
from cheops.log.rules import Fate, Rule
from cheops.notify.derivation import NOTICES, of_fate, of_notice, of_peer, op_text
from cheops.notify.event import Event
from cheops.notify.follower import Follower, wall_ms
from cheops.notify.journal import Journal, put_meta
from cheops.notify.summaries import DeliveryState, delivery_state
from cheops.store.interface import StoreError

_POLL_S = 0.2
_RETRY_S = 1.0
_WAKE_AT_ONCE = 20
_WAKE_EVERY_S = 600.0
_MOST_LOOSE = 10_000  # events that are in no document and wait to be written
_log = logging.getLogger(__name__)
InThread = Callable[[Callable[[], Any]], Awaitable[Any]]


class Engine(Protocol):
    """What is asked of the pump."""

    site: Site

    async def replica(self, resource: str, *, refresh: bool = False) -> Replica: ...

    async def flushed(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Observation:
    """What a look at one resource found."""

    resource: str
    fates: tuple[tuple[Operation, Fate], ...]
    state: DeliveryState


class ReportedFates(NamedTuple):
    """The fates of a replica at the last look: which, and what shows that there are no others."""

    fates: Mapping[OpId, Fate]
    last: OpId | None
    told: set[OpId]


class EngineObserver:
    """Belongs to one event loop; `in_thread` runs what blocks."""

    def __init__(
        self,
        journal: Journal,
        follower: Follower,
        engine: Engine,
        in_thread: InThread,
        news: Callable[[], None],
    ) -> None:
        self._journal = journal
        self._follower = follower
        self._engine = engine
        self._in_thread = in_thread
        self._news = news
        self._work = asyncio.Event()
        self._dirty: dict[str, None] = {}
        self._looked = 0
        self._loose: list[Event] = []
        self._told: WeakKeyDictionary[Replica, ReportedFates] = WeakKeyDictionary()
        self._standings: dict[str, DeliveryState] = {}
        self._asleep: list[str] = []  # resources that wait for a summary, to be loaded bit by bit

    # -- what happens ----------------------------------------------------------------------------------------

    def mark(self, resources: Iterable[str], last_seq: int) -> None:
        """These have new documents, up to this number of the feed."""
        self._dirty |= dict.fromkeys(resources)
        self._looked = last_seq
        self._work.set()

    def add_notice(self, notice: Notify) -> None:
        replica = self._engine.site.replicas.get(notice.resource)
        known, rtype = (replica.history.known, replica.type.name) if replica else ({}, "")
        self._add(of_notice(notice, self._follower.origin.site, rtype, known, wall_ms()))

    def add_peer_event(self, event: PeerUp | PeerDown) -> None:
        self._add(of_peer(event, self._follower.origin.site, wall_ms()))

    def _add(self, event: Event | None) -> None:
        if event is not None and len(self._loose) < _MOST_LOOSE:
            self._loose.append(event)
            self._work.set()

    # -- looking ---------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Look until cancelled."""
        loop = asyncio.get_running_loop()
        since = int(str(self._journal.note("looked")))
        unseen: set[str] = await self._in_thread(lambda: self._follower.resources_since(since))
        self._dirty |= dict.fromkeys(sorted(unseen))
        self._looked = max(self._looked, self._follower.followed)
        wake_at_s = loop.time()
        while True:
            if loop.time() >= wake_at_s:
                self._asleep = self._sleeping()
                wake_at_s = loop.time() + _WAKE_EVERY_S
            self._poll()
            try:
                await self._wake_some()
                await self._round()
            except StoreError as error:
                _log.warning("events wait to be written: %s", error)
                await asyncio.sleep(_RETRY_S)
            except Exception:  # a mistake of ours must not end the telling, nor the site
                _log.exception("looking for events failed")
                await asyncio.sleep(_RETRY_S)
            await self._until_work()

    async def _until_work(self) -> None:
        try:
            await asyncio.wait_for(self._work.wait(), _POLL_S)
        except TimeoutError:
            return

    def _poll(self) -> None:
        """Sites get further without any new document here: they say what they have settled."""
        awaited = self._follower.awaited
        if awaited is None:
            return
        for name, replica in self._engine.site.replicas.items():
            if name in awaited.resources and delivery_state(replica) != self._standings.get(name):
                self._dirty[name] = None

    def _sleeping(self) -> list[str]:
        awaited = self._follower.awaited
        loaded = self._engine.site.replicas
        return [name for name in sorted(awaited.resources) if name not in loaded] if awaited else []

    async def _wake_some(self) -> None:
        """Resources whose summary waits although all may be done: ask the others how far they are."""
        some, self._asleep = self._asleep[:_WAKE_AT_ONCE], self._asleep[_WAKE_AT_ONCE:]
        for name in some:
            await self._engine.replica(name, refresh=True)

    async def _round(self) -> None:
        self._work.clear()
        names, loose, looked = tuple(self._dirty), tuple(self._loose), self._looked
        if not names and not loose:
            return
        self._dirty, self._loose = {}, []
        try:
            seen = [self._look(await self._replica(name)) for name in names]
            await self._engine.flushed()
            await self._in_thread(lambda: self._record(seen, loose, looked))
        except Exception:
            self._dirty = dict.fromkeys(names) | self._dirty
            self._loose = [*loose, *self._loose]
            self._told.clear()
            self._standings.clear()
            raise
        self._news()

    async def _replica(self, name: str) -> Replica:
        return self._engine.site.replicas.get(name) or await self._engine.replica(name)

    def _look(self, replica: Replica) -> Observation:
        fates = tuple(
            (op, replica.history.reason(id_) or replica.history.fates[id_])
            for id_ in self._new_fates(replica)
            if (op := replica.history.ops.get(id_))
        )
        state = self._standings[replica.resource] = delivery_state(replica)
        return Observation(replica.resource, fates, state)

    def _new_fates(self, replica: Replica) -> list[OpId]:
        """Those that were not there at the last look. Mostly there are none, which is seen at once."""
        fates, before = replica.history.fates, self._told.get(replica)
        last = next(reversed(fates), None)
        if before and before.fates is fates and (before.last, len(before.told)) == (last, len(fates)):
            return []
        new = sorted(fates.keys() - (before.told if before else ()), key=lambda id_: (id_.seq, id_.origin))
        self._told[replica] = ReportedFates(fates, last, set(fates))
        return new

    # -- writing it down (in the thread) ---------------------------------------------------------------------

    def _record(self, seen: Iterable[Observation], loose: Iterable[Event], looked: int) -> None:
        seen = tuple(seen)
        at_ms = wall_ms()
        with self._journal.writing() as db:
            self._journal.append_within(db, [event for event in loose if self._is_new(db, event)])
            for look in seen:
                for op, fate in look.fates:
                    self._tell_fate(db, op, fate, at_ms)
            put_meta(db, "looked", looked)
        self._settle(seen, at_ms)

    def _is_new(self, db: sqlite3.Connection, event: Event) -> bool:
        """A notice is repeated whenever its resource is loaded: one of the same state is not news."""
        if event.kind not in NOTICES.values():
            return True
        done = db.execute(
            "INSERT INTO notices VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET id = excluded.id WHERE id != excluded.id",
            (event.resource, event.kind, event.id),
        )
        return done.rowcount > 0

    def _tell_fate(self, db: sqlite3.Connection, op: Operation, fate: Fate, at_ms: int) -> None:
        if fate.rule is Rule.FOLDED:
            return  # its effect is there
        if self._follower.awaited:
            self._follower.awaited.lose_effect(db, op.resource, op.id)
        event = of_fate(op, fate, at_ms)
        name = (op_text(op.resource, op.id),)
        if event and db.execute("INSERT OR IGNORE INTO told VALUES (?)", name).rowcount:
            self._journal.append_within(db, [event])

    def _settle(self, seen: Iterable[Observation], at_ms: int) -> None:
        awaited = self._follower.awaited
        for look in seen if awaited else ():
            assert awaited is not None  # noqa: S101 - said in the line above
            if look.resource in awaited.resources:
                awaited.settle(look.resource, look.state, at_ms)
