"""One site at work. Made from its configuration; `start` it in an event loop, and `stop` it there.

What comes from outside (requests, messages of peers, heartbeats) becomes an event for the engine; what the
engine wants done goes out through the methods of `_Hands`. A site starts and serves with no peer reachable.
"""

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import aiohttp
import msgspec

from cheops import __version__
from cheops.backends.command import CommandRunner
from cheops.config.replication import service_of
from cheops.config.site import SiteConfig
from cheops.engine.documents import Document
from cheops.engine.events import (
    Answer,
    Brought,
    Gone,
    Left,
    Notify,
    Outcome,
    Ran,
    Received,
    Result,
    Run,
    Save,
    Send,
    Submitted,
    Tick,
)
from cheops.engine.messages import Message
from cheops.engine.site import Site
from cheops.errors import CheopsError, Fault
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Origin, Reply
from cheops.log.vector import contains
from cheops.node.commands import Commands
from cheops.node.fetching import Fetching
from cheops.node.files import Files
from cheops.node.keeping import Keeping
from cheops.node.pump import Pump
from cheops.node.replicants import Replicants
from cheops.node.waiting import Answers, Waiting
from cheops.notify.notifier import Notifier
from cheops.scope.snapshot import Snapshot
from cheops.store.base import Store
from cheops.store.errors import StoreError
from cheops.store.sqlite import SQLiteStore
from cheops.sync import heartbeat
from cheops.sync.announcements import PeerEvent
from cheops.sync.couch_database import Databases
from cheops.sync.heart import Heart, now
from cheops.sync.heartbeat import Entry, Saved
from cheops.sync.links import Links
from cheops.sync.mesh import Mesh
from cheops.sync.mesh_settings import MeshSettings

_TICK_S = 0.1
_SAVE_MESH_S = 30.0
_MESH_NOTE, _INTEREST_NOTE = "mesh", "interest"
_SNAPSHOT_MS = 1_000
_STOP_S = 10.0
_log = logging.getLogger(__name__)


class NotYetError(CheopsError):
    """What was sent cannot be kept before other things are here: to be sent again."""

    fault = Fault.PEER
    definite = False
    status = 503


class Node:
    """A running site."""

    def __init__(self, config: SiteConfig) -> None:
        self.config = config
        self.name = config.name
        self.waiting = Waiting(lambda resource, op: self.pump.post(Left(resource, op)))
        self.files = Files(config.data / "files")
        self.keeping = Keeping(self.files)
        self._runner = CommandRunner()
        self.commands = Commands(self._runner, config.types, self.files, self._fetch)
        self.replicants = Replicants(config, self.files, self.keeping, self._runner)
        self.notifier = Notifier(config, self._runner)
        self._writer = ThreadPoolExecutor(1, "store")
        self._readers = ThreadPoolExecutor(1, "store-read")
        self._tasks: list[asyncio.Task[None]] = []
        self._runs: set[asyncio.Task[None]] = set()
        self._interest: set[str] = set()
        self._snapshot: tuple[float, Snapshot] | None = None

    # -- starting and stopping ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, begin where it ended, and look for the others."""
        loop = asyncio.get_running_loop()
        path = self.config.data / "store.db"
        self.store: Store = await loop.run_in_executor(self._writer, SQLiteStore, path, self.name)
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self.store = await loop.run_in_executor(self._writer, self.notifier.followed, self.store)
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, limit_per_host=16))
        await self._runner.start()
        self.mesh = await self._make_mesh()
        self.heart = Heart(self.mesh, self.session, self._tell)
        self.links = Links(self.name, self.session, self.address_of, self.mesh.hurry)
        self.fetching = Fetching(self.files, self.session, self._address_of_other)
        self.databases = Databases(self.store, self._readers, self.accept)
        site = Site(Origin(self.name, self.store.incarnation), self.config.engine)
        self.pump = Pump(site, self.store, _Hands(self), self._writer)
        await self.replicants.start(self.pump, self.fetching)
        self.pump.post(await loop.run_in_executor(self._writer, self.store.recovered))
        await self.notifier.start(self.pump)
        self._tasks = [
            loop.create_task(coroutine, name=name)
            for name, coroutine in (
                ("pump", self.pump.run()),
                ("heart", self.heart.run()),
                ("tick", self._tick()),
                ("mesh", self._keep_mesh()),
                ("replicants", self.replicants.look_after()),
            )
        ]
        if self.keeping.is_needed:
            self._begin_task(self._learn_files())

    async def _make_mesh(self) -> Mesh:
        loop = asyncio.get_running_loop()
        note = await loop.run_in_executor(self._writer, self.store.local, _MESH_NOTE)
        interest = await loop.run_in_executor(self._writer, self.store.local, _INTEREST_NOTE)
        config = self.config
        own = Entry(
            self.name,
            self.store.incarnation,
            config.advertise,
            version=__version__,
            services=tuple((name, one.front.advertise) for name, one in sorted(config.services.items())),
        )
        saved = heartbeat.decode_saved(msgspec.json.encode(note)) if note else Saved()
        settings = MeshSettings.from_heartbeat(config.heartbeat.every_s, config.heartbeat.down_after_s)
        mesh = Mesh(own, config.peers, now(), settings, saved)
        self._interest = set((interest or {}).get("sites", ()))
        mesh.interest(self._interest)
        return mesh

    async def failed(self) -> str:
        """Wait until something ends that should not, and say what."""
        tasks = (*self._tasks, *self.notifier.tasks)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        return f"{task.get_name()} ended: {task.exception()!r}"

    async def stop(self) -> None:
        """End what runs (its outcome will be asked for at the next start), and close everything."""
        await self.notifier.stop()
        await self._runner.close()
        for task in (*self._tasks[1:], *self._runs):
            task.cancel()
        await asyncio.gather(*self._tasks[1:], *self._runs, return_exceptions=True)
        if self._tasks:
            await self._flush_if_possible(self._tasks[0])
        for task in self._tasks[:1]:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for name in ("pump", "databases", "links", "fetching"):
            if part := getattr(self, name, None):
                part.close()
        if session := getattr(self, "session", None):
            await session.close()
        await self.replicants.close()
        await asyncio.get_running_loop().run_in_executor(self._writer, self.store.close)
        self._writer.shutdown()
        self._readers.shutdown()

    async def _flush_if_possible(self, pumping: asyncio.Task[None]) -> None:
        """What is decided should be durable, but a full disk must not keep the agent from stopping."""
        flushed = asyncio.ensure_future(self.pump.flushed())
        end_s = asyncio.get_running_loop().time() + _STOP_S
        while self.pump.trouble is None and not pumping.done() and not flushed.done():
            if asyncio.get_running_loop().time() > end_s:
                break
            await asyncio.wait({flushed, pumping}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        flushed.cancel()
        await asyncio.gather(flushed, return_exceptions=True)

    async def _tick(self) -> None:
        while True:
            if self.pump.trouble is None:
                if (forgotten := self.mesh.forgotten) != self.pump.site.gone:
                    self.pump.post(Gone(forgotten))
                self.pump.post(Tick())
            await asyncio.sleep(_TICK_S)

    async def _keep_mesh(self) -> None:
        """What is known of the others survives a restart, which may be while they are out of reach."""
        while True:
            await asyncio.sleep(_SAVE_MESH_S * random.uniform(0.9, 1.1))  # noqa: S311 - only to spread them
            await self._save_mesh()

    async def _save_mesh(self) -> None:
        note = msgspec.json.decode(heartbeat.encode(self.mesh.saved()))
        await self._put_note(_MESH_NOTE, note)

    async def _learn_files(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._readers, self.keeping.learn, self.store)

    async def _put_note(self, name: str, note: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self.store.put_local, name, note)
        except StoreError as error:
            _log.warning("a note could not be kept: %s", error)

    # -- what comes from outside -------------------------------------------------------------------------

    def submit(self, event: Submitted) -> None:
        """Hand an operation to the engine; its answers go to whoever waits for the request."""
        self._refuse_while_in_trouble()
        self.pump.post(event)

    def _refuse_while_in_trouble(self) -> None:
        if self.pump.trouble:
            raise StoreError(
                f"nothing can be saved at {self.name} now, so nothing is accepted: {self.pump.trouble}"
            )

    def answers(self) -> Answers:
        return Answers(self.waiting)

    def receive(self, peer: str, messages: Iterable[Message]) -> None:
        """Messages of another site's engine."""
        self._refuse_while_in_trouble()
        for message in messages:
            for op in message.ops:
                for _, hash_ in op.payload.files if self._is_news(op) else ():
                    self.fetching.want(hash_, dict.fromkeys((peer, op.origin.site)))
            self.pump.post(Received(peer, message))

    def _is_news(self, op: Operation) -> bool:
        """Whether an operation is not known here yet: of what is known, the files may be gone already."""
        replica = self.pump.site.replicas.get(op.resource)
        return replica is None or not contains(replica.history.known, op.id)

    async def accept(self, documents: Sequence[Document]) -> None:
        """Documents by way of another database; durable when this returns."""
        shared = [d for d in documents if isinstance(d, Operation | Reply)]
        matrices = tuple(d for d in documents if isinstance(d, Matrix))
        if matrices:
            self.pump.post(Brought(matrices))
        shared.sort(key=lambda document: document.resource)
        for resource, group in groupby(shared, key=lambda document: document.resource):
            own = list(group)
            message = Message(
                resource,
                "",
                tuple(d for d in own if isinstance(d, Operation)),
                tuple(d for d in own if isinstance(d, Reply)),
            )
            self.receive("", [message])
            replica = await self.pump.replica(resource)
            if waits := [op.id for op in message.ops if op.id in replica.waiting]:
                raise NotYetError(f"{waits[0]} of '{resource}' depends on operations that have not come yet")
        await self.pump.flushed()

    async def decide_membership(self, site: str, *, forgotten: bool) -> None:
        """Remove a site from the mesh for good, or take it in again; raises MeshSiteError."""
        decide = self.mesh.forget if forgotten else self.mesh.admit
        for event in decide(site, now()):
            self._tell(event)
        await self._save_mesh()

    # -- what is known -----------------------------------------------------------------------------------

    def address_of(self, site: str) -> str | None:
        entry = self.mesh.entry_of(site)
        return entry.url if entry else self.config.peers.get(site)

    def _address_of_other(self, site: str) -> str | None:
        return None if site == self.name else self.address_of(site)

    def snapshot(self) -> Snapshot:
        """What scope-lang may know; a second old at most, for with many sites it takes a while to make."""
        at = now().mono_ms
        if self._snapshot is None or at - self._snapshot[0] > _SNAPSHOT_MS:
            self._snapshot = (at, self.mesh.snapshot(now()))
        return self._snapshot[1]

    def _fetch(self, resource: str, hash_: str) -> None:
        """Have a file of a resource here, from any site that may have it."""
        replica = self.pump.site.replicas.get(resource)
        if replica is not None:
            self.fetching.want(hash_, (*replica.history.roster, *sorted(replica.history.former)))

    # -- what the engine wants done ----------------------------------------------------------------------

    def _tell(self, event: PeerEvent) -> None:
        self._snapshot = None
        self.pump.post(event)
        self.notifier.peer(event)

    def begin_run(self, effect: Run) -> None:
        self._begin_task(self._run(effect))

    def _begin_task(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._runs.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._runs.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("a task of the agent failed", exc_info=error)

    async def _run(self, effect: Run) -> None:
        try:
            backend = self.replicants if service_of(effect.rtype) else self.commands
            outcomes = await backend.run(effect)
        except Exception as error:  # nobody knows how far it got: the engine must hear of it
            _log.exception("running %s failed", effect.resource)
            outcomes = (Outcome(Result.MAYBE, f"a mistake in Cheops: {error!r}"),)
        self.pump.post(Ran(effect.resource, effect.n, outcomes))

    def note_interest(self, sites: Iterable[str]) -> None:
        """Sites that share a resource with this one: how they are must be known within seconds."""
        new = set(sites) - self._interest - {self.name}
        if new:
            self._interest |= new
            self.mesh.interest(self._interest)
            self._begin_task(self._put_note(_INTEREST_NOTE, {"sites": sorted(self._interest)}))


class _Hands:
    """The engine's hands: see pump.Hands."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def run(self, effect: Run) -> None:
        self._node.begin_run(effect)

    def send(self, effect: Send) -> None:
        if self._node.address_of(effect.peer):  # whom nobody knows, nobody answers
            self._node.note_interest((effect.peer,))
            self._node.links.send(effect.peer, effect.message)

    def answer(self, effect: Answer) -> None:
        self._node.waiting.take(effect)

    def notify(self, effect: Notify) -> None:
        _log.info("%s: %s %s %s", effect.resource, effect.what, effect.op or "", effect.detail)
        self._node.notifier.noticed(effect)

    def committed(self, saves: list[Save], last_seq: int) -> None:
        self._node.databases.committed(last_seq)
        self._node.notifier.committed(saves, last_seq)
        self._node.replicants.committed(saves)
        for hash_ in self._node.keeping.committed(saves):
            self._node.files.forget(hash_)
