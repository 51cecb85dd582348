"""One site at work. Made from its configuration; `start` it in an event loop, and `stop` it there.

What comes from outside (requests, messages of peers, heartbeats) becomes an event for the engine; what the
engine wants done goes out through the methods of `Hands`. A site starts and serves with no peer reachable.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import msgspec

from cheops import __version__
from cheops.backends.command.runner import CommandRunner
from cheops.config.site import SiteConfig
from cheops.engine.events import ClientLeft, Ran, Run, SitesRemoved, Submitted, Tick
from cheops.engine.site import Site
from cheops.errors import CheopsError
from cheops.log.operation import Kind, Origin
from cheops.node.backends import Backends
from cheops.node.effects import Answers, EffectExecutor, PendingRequests
from cheops.node.limits import ClockCheck, DiskQuota
from cheops.node.pump import Pump
from cheops.notify.notifier import Notifier
from cheops.peers import heartbeat
from cheops.peers.client import PeerClient
from cheops.peers.couchdb.database import Databases
from cheops.peers.enrollment import CertificateRenewal, Enrollment, keyring_of
from cheops.peers.file_fetcher import FileFetcher
from cheops.peers.heartbeat import SavedMesh, SiteRecord
from cheops.peers.intake import DocumentIntake, DocumentVerifier
from cheops.peers.links import PeerLinks
from cheops.peers.mesh import Mesh, PeerEvent
from cheops.peers.prober import Prober, now
from cheops.peers.settings import MeshSettings
from cheops.peers.site_keys import SiteKeys, start_signing
from cheops.scope.snapshot import Snapshot
from cheops.security import audit, invitations, tokens
from cheops.security.refusals import COMMAND_NOT_ALLOWED, RateLimiter, RefusalLog, Refusals
from cheops.security.tokens import Accounts
from cheops.store.files import FileReferences, FileStore
from cheops.store.interface import Store, StoreError
from cheops.store.sqlite import SQLiteStore

_TICK_S = 0.1
_SAVE_MESH_S = 30.0
_MESH_NOTE, _INTEREST_NOTE = "mesh", "interest"
_STORE = "store.db"
_MOST_BACKLOG = 20_000  # steps of the engine whose effects wait to be carried out
_SNAPSHOT_MS = 1_000
_MOST_ASKED = 2  # sites, for the certificate of another
_STOP_S = 10.0
_log = logging.getLogger(__name__)


class OverloadedError(CheopsError):
    """More comes in than can be saved."""

    definite = False
    status = 503


class Node:
    """A running site."""

    def __init__(self, config: SiteConfig) -> None:
        self.config = config
        self.name = config.name
        self.pending_requests = PendingRequests(lambda resource, op: self.pump.post(ClientLeft(resource, op)))
        self.files = FileStore(config.data / "files")
        self._runner = CommandRunner()
        self.backends = Backends(config, self.files, self._runner, self._command_refused)
        self.file_references = FileReferences(self.files, self.backends.releases_files)
        self.notifier = Notifier(config, self._runner)
        self.refusals = Refusals()
        self.keyring = keyring_of(config, self.refusals)
        clients = config.clients
        self.disk_quota = DiskQuota(config.data / _STORE, clients.store_bytes, clients.free_bytes)
        self.audit = audit.AuditWriter(config.data / audit.FILE, clients.audit_bytes, clients.audit_files)
        self.refusal_log = RefusalLog(self.refusals, self.audit)
        self.site_limiter = RateLimiter(clients.site_rate, 2 * clients.site_rate, time.monotonic)
        self.site_keys: SiteKeys | None = None  # with security on
        self._writer = ThreadPoolExecutor(1, "store")
        self._readers = ThreadPoolExecutor(1, "store-read")
        self._tasks: list[asyncio.Task[None]] = []
        self._runs: set[asyncio.Task[None]] = set()
        self._interest: set[str] = set()
        self._snapshot: tuple[float, Snapshot] | None = None
        self.membership_listeners: list[Callable[[], Awaitable[None]]] = []  # who must have heard of a decision
        self.peer_listeners: list[Callable[[PeerEvent], None]] = []  # told when a site goes up or down

    # -- starting and stopping ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, begin where it ended, and look for the others."""
        loop = asyncio.get_running_loop()
        path = self.config.data / _STORE
        self.store: Store = await loop.run_in_executor(self._writer, SQLiteStore, path, self.name)
        try:
            await self._begin()
        except BaseException:
            await self.stop()
            raise

    async def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, start_signing, self.store, self.name, self.keyring)
        self.store = await loop.run_in_executor(self._writer, self.notifier.followed, self.store)
        known = await loop.run_in_executor(self._writer, self.store.note, tokens.NOTE)
        self.accounts = Accounts(tokens.Tokens.of_note(known), self._keep_tokens)
        await loop.run_in_executor(None, self.audit.start)
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, limit_per_host=16))
        await self._runner.start()
        self.mesh = await self._make_mesh()
        self.peer_client = PeerClient(self.session, self.address_of, self.keyring)
        self.prober = Prober(self.mesh, self.peer_client, self._tell)
        self.links = PeerLinks(self.name, self.peer_client, self.mesh.probe_now)
        self.file_fetcher = FileFetcher(self.files, self.peer_client, self.name)
        await self._begin_admitting()
        await self._begin_checking()
        site = Site(Origin(self.name, self.store.incarnation), self.backends.settings(self.config.engine))
        self.pump = Pump(site, self.store, EffectExecutor(self), self._writer)
        self.intake = DocumentIntake(self.pump, self.file_fetcher, self.verifier, self._refuse_while_in_trouble)
        self.databases = Databases(self.store, self._readers, self.intake.accept)
        await self.backends.start(self.pump, self.file_fetcher, self.file_references)
        self.pump.post(await loop.run_in_executor(self._writer, self.store.recovered))
        await self.notifier.start(self.pump)
        self._tasks = [
            loop.create_task(coroutine, name=name)
            for name, coroutine in (
                ("pump", self.pump.run()),
                ("heart", self.prober.run()),
                ("tick", self._tick()),
                ("mesh", self._keep_mesh()),
                ("backends", self.backends.maintain()),
                *self._renewing(),
            )
        ]
        if self.file_references.is_needed:
            self._begin_task(self._learn_files())

    async def _make_mesh(self) -> Mesh:
        loop = asyncio.get_running_loop()
        note = await loop.run_in_executor(self._writer, self.store.note, _MESH_NOTE)
        interest = await loop.run_in_executor(self._writer, self.store.note, _INTEREST_NOTE)
        config = self.config
        own = SiteRecord(
            self.name,
            self.store.incarnation,
            config.advertise,
            version=__version__,
            services=config.service_urls,
            issues=self.keyring.issues if self.keyring else "",
        )
        saved = heartbeat.decode_saved(msgspec.json.encode(note)) if note else SavedMesh()
        settings = MeshSettings.from_heartbeat(config.heartbeat.every_s, config.heartbeat.down_after_s)
        mesh = Mesh(own, config.peers, now(), settings, saved)
        self._interest = set((interest or {}).get("sites", ()))
        mesh.interest(self._interest)
        return mesh

    async def _begin_checking(self) -> None:
        """With security on, of what others send only what they signed is believed."""
        self.verifier: DocumentVerifier | None = None
        if self.keyring is None:
            return
        self.clock_check = ClockCheck(self.mesh, self.config.security.clock_skew_s)
        self.site_keys = SiteKeys(self.keyring, self.peer_client, self.store, self._writer, self._some_others)
        await self.site_keys.meet(self.keyring.identity)
        self.verifier = DocumentVerifier(
            self.site_keys,
            self.refusal_log,
            self.mesh.member_of,
            self._is_involved,
            clock_skew_s=self.config.security.clock_skew_s,
        )

    async def _is_involved(self, site: str, resource: str) -> bool:
        return site in (await self.pump.replica(resource)).history.site_list

    def _some_others(self) -> list[str]:
        return sorted(self.mesh.up)[:_MOST_ASKED]

    async def _begin_admitting(self) -> None:
        loop = asyncio.get_running_loop()
        note = await loop.run_in_executor(self._writer, self.store.note, invitations.NOTE)
        known = invitations.Invitations.of_note(note)
        self.enrollment = Enrollment(self.config, self.keyring, self.mesh, known, self._keep_invitations)
        if keyring := self.keyring:
            keyring.changed.append(lambda: self.mesh.describe(issues=keyring.issues))

    def _renewing(self) -> list[tuple[str, Coroutine[Any, Any, None]]]:
        if self.keyring is None:
            return []
        renewing = CertificateRenewal(self.config.security, self.keyring, self.mesh, self.peer_client)
        return [("renewing", renewing.run())]

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
        for name in ("pump", "databases", "links", "file_fetcher"):
            if part := getattr(self, name, None):
                part.close()
        if session := getattr(self, "session", None):
            await session.close()
        await self.backends.close()
        await asyncio.get_running_loop().run_in_executor(self._writer, self.store.close)
        self._writer.shutdown()
        self._readers.shutdown()
        await asyncio.to_thread(self.audit.close)

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
                    self.pump.post(SitesRemoved(forgotten))
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
        await asyncio.get_running_loop().run_in_executor(self._readers, self.file_references.learn, self.store)

    async def _keep_tokens(self, note: dict[str, Any]) -> None:
        """Raises StoreError: who is told a token must be able to rely on it."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self.store.put_note, tokens.NOTE, note)

    async def _keep_invitations(self, note: dict[str, Any]) -> None:
        """Raises StoreError: what was used up must remain so."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self.store.put_note, invitations.NOTE, note)

    async def _put_note(self, name: str, note: dict[str, Any]) -> None:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self.store.put_note, name, note)
        except StoreError as error:
            _log.warning("a note could not be kept: %s", error)

    # -- what comes from outside -------------------------------------------------------------------------

    def submit(self, event: Submitted) -> None:
        """Hand an operation to the engine; its answers go to whoever waits for the request."""
        self._refuse_while_in_trouble()
        if event.kind is Kind.NORMAL:  # what replaces or deletes makes room
            self.disk_quota.check()
        self._check_clock(event)
        self.pump.post(event)

    def _check_clock(self, event: Submitted) -> None:
        """Raises ClockError where the other sites of a resource would not take what is made now."""
        replica = self.pump.site.replicas.get(event.resource)
        sites = event.sites or (replica.history.site_list if replica else ())
        if self.verifier and any(site != self.name for site in sites):
            self.clock_check.check(self.pump.site.clock.time_ms)

    def _refuse_while_in_trouble(self) -> None:
        if self.pump.trouble:
            raise StoreError(f"nothing can be saved at {self.name} now, so nothing is accepted: {self.pump.trouble}")
        if self.pump.backlog > _MOST_BACKLOG:
            raise OverloadedError(f"{self.name} has more to save than its disk can take; try again in a moment")

    def answers(self) -> Answers:
        return Answers(self.pending_requests)

    async def decide_membership(self, site: str, *, forgotten: bool) -> None:
        """Remove a site from the mesh for good, or take it in again; raises MeshSiteError."""
        decide = self.mesh.forget if forgotten else self.mesh.admit
        for event in decide(site, now()):
            self._tell(event)
        for heeded in self.membership_listeners:
            await heeded()
        await self._save_mesh()

    @property
    def engine(self) -> Pump:
        return self.pump

    # -- what is known -----------------------------------------------------------------------------------

    def address_of(self, site: str) -> str | None:
        entry = self.mesh.entry_of(site)
        return entry.url if entry else self.config.peers.get(site)

    def snapshot(self) -> Snapshot:
        """What scope-lang may know; a second old at most, for with many sites it takes a while to make."""
        at = now().mono_ms
        if self._snapshot is None or at - self._snapshot[0] > _SNAPSHOT_MS:
            self._snapshot = (at, self.mesh.snapshot(now()))
        return self._snapshot[1]

    def _command_refused(self, origin: str, why: str) -> None:
        self.refusal_log.document(COMMAND_NOT_ALLOWED, origin, detail=why)

    # -- what the engine wants done ----------------------------------------------------------------------

    def _tell(self, event: PeerEvent) -> None:
        self._snapshot = None
        self.pump.post(event)
        self.notifier.peer(event)
        for told in self.peer_listeners:
            told(event)

    def start_run(self, effect: Run) -> None:
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
        self.pump.post(Ran(effect.resource, effect.n, await self.backends.run(effect)))

    def note_interest(self, sites: Iterable[str]) -> None:
        """Sites that share a resource with this one: how they are must be known within seconds."""
        new = set(sites) - self._interest - {self.name}
        if new:
            self._interest |= new
            self.mesh.interest(self._interest)
            self._begin_task(self._put_note(_INTEREST_NOTE, {"sites": sorted(self._interest)}))
