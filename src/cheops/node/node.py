"""One running site: its parts, the order in which they start and stop, and what connects them.

Requests of clients, messages of peers and heartbeats become events of the engine (`pump.post`). The pump makes the
engine's decisions durable and then has them carried out (`EffectExecutor`). `Node.start` needs no peer: a site starts
and serves alone.

    store      the documents on disk; one thread writes, one reads
    notifier   journals each commit, and reports events to targets and followers
    mesh       which sites there are, and which are up; the prober sends its heartbeats
    links      messages of the engine to peers; the intake checks those that come in
    keyring    with security on: certificates, with site_keys, enrollment and the verifier
    backends   run operations on the local application
    pump       the engine, between all of these
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, TypeVar

import msgspec

from cheops import __version__
from cheops.backends.command.runner import CommandRunner
from cheops.backends.command.user_files import PASSABLE, has_other_users
from cheops.backoff import jittered
from cheops.config.fingerprint import fingerprints
from cheops.config.site import SiteConfig
from cheops.engine.events import ClientLeft, Ran, Run, SitesRemoved, StoreOutdated, Submitted, Tick, Verified
from cheops.engine.site import Site
from cheops.errors import CheopsError
from cheops.log.operation import Kind, Origin
from cheops.log.policy import may_have_taken
from cheops.node import alarms
from cheops.node.alarms import Alarms
from cheops.node.backends import Backends
from cheops.node.channels import channel_pool
from cheops.node.damaged_documents import DamagedDocuments
from cheops.node.effects import Answers, EffectExecutor, Faults, PendingRequests
from cheops.node.limits import ClockCheck, DiskQuota
from cheops.node.own_store import marks_note, open_store, read_kept_marks
from cheops.node.pump import Pump, wall_ms
from cheops.node.read_queue import ReadQueue
from cheops.node.space_release import SpaceRelease
from cheops.node.store_thread import StoreThread
from cheops.notify.notifier import Notifier
from cheops.peers import heartbeat
from cheops.peers.couchdb.database import Databases
from cheops.peers.enrollment import Enrollment, keyring_of
from cheops.peers.files import FileFetcher
from cheops.peers.heartbeat import MembershipRecord, SavedMesh, SiteRecord, Watermark
from cheops.peers.intake import DocumentIntake, DocumentVerifier
from cheops.peers.links import PeerLinks
from cheops.peers.mesh import Mesh
from cheops.peers.prober import Prober, now
from cheops.peers.probes import PeerEvent
from cheops.peers.proofs import proofs_of
from cheops.peers.renewal import CertificateRenewal
from cheops.peers.settings import MeshSettings
from cheops.peers.site_keys import SiteKeys, report_signer, start_signing
from cheops.peers.watermark import KEPT_NOTE, Watermarks
from cheops.scope.snapshot import Snapshot
from cheops.security import audit, invitations, tokens
from cheops.security.refusals import COMMAND_NOT_ALLOWED, RateLimiter, RefusalLog, Refusals
from cheops.security.tokens import Accounts
from cheops.store.files import FileReferences, FileStore, make_private
from cheops.store.interface import Store, StoreError
from cheops.store.room import DiskRoom

_TICK_S = 0.1
_SAVE_MESH_S = 3.0  # if anything has changed
_MESH_NOTE, _INTEREST_NOTE = "mesh", "interest"
_STORE, FILES = "store.db", "files"  # in the data folder
_MOST_BACKLOG = 20_000  # steps of the engine whose effects wait to be carried out
_SNAPSHOT_MS = 1_000
_MOST_KEY_SOURCES = 2  # further sites to ask for a certificate; each costs a request, and the sender mostly has it
_STOP_S = 10.0
_log = logging.getLogger(__name__)
T = TypeVar("T")


class Node:
    """A running site. Belongs to one event loop, from `start` to `stop`."""

    def __init__(self, config: SiteConfig) -> None:
        clients = config.clients
        self.config = config
        self.name = config.name
        self.created_s = time.monotonic()
        self.pending_requests = PendingRequests(lambda resource, op: self.pump.post(ClientLeft(resource, op)))
        self.faults = Faults()
        # By resource and operation: what only a site in the wrong hands does.
        self.alarms = Alarms()
        # Refusals, and how often a sender may send requests. One limiter for a client's requests to the API and to
        # /peer/, so that another path is no second budget.
        self.refusals = Refusals()
        self.audit = audit.AuditWriter(config.data / audit.FILE, clients.audit_bytes, clients.audit_files)
        self.refusal_log = RefusalLog(self.refusals, self.audit)
        self.client_limiter = RateLimiter(clients.rate, clients.burst, time.monotonic)
        self.site_limiter = RateLimiter(clients.site_rate, 2 * clients.site_rate, time.monotonic)
        room = DiskRoom(config.data, clients.free_bytes)
        self.disk_quota = DiskQuota(config.data / _STORE, clients.store_bytes, room, lambda: self.store.free_bytes)
        # With security on; the rest of it is created in `_start_verification`.
        self.keyring = keyring_of(config, self.refusals)
        self.site_keys: SiteKeys | None = None
        self.verifier: DocumentVerifier | None = None
        self.report_signer = report_signer(self.name, self.keyring)
        # The local application, and what operations bring along for it.
        make_private(config.data, PASSABLE if has_other_users(config.types.values()) else 0o700)
        self.files = FileStore(config.data / FILES, room)
        self._runner = CommandRunner(max_reads=clients.reads, private=config.private_paths)
        self.read_queue = ReadQueue(clients.reads, clients.reads_each)
        # At another site all reads from here count as this site's, so one client may use only half of that share.
        self.remote_read_queue = ReadQueue(clients.reads, max(1, clients.reads_each // 2))
        self.backends = Backends(config, self.files, self._runner, self._log_refused_command, self._note_drift)
        self.file_references = FileReferences(self.files, self.backends.releases_files)
        self.notifier = Notifier(config, self._runner)
        # SQLite blocks, so it has threads of its own. Only one of them ever writes.
        self._writer = StoreThread("store")
        self._readers = StoreThread("store-read")
        self._pumping: asyncio.Task[None] | None = None
        self.must_restart = asyncio.Event()  # under a new incarnation of its store
        self._services: list[asyncio.Task[None]] = []  # run until the site stops
        self._jobs: set[asyncio.Task[None]] = set()  # end by themselves
        self.interest: set[str] = set()  # sites that share a resource with this one
        self._snapshot: tuple[float, Snapshot] | None = None  # when it was taken, and what it holds
        self.drifted: set[str] = set()  # resources whose applications differ, as far as is known since the start
        self.membership_listeners: list[Callable[[], Awaitable[None]]] = []  # awaited after each decision
        self.peer_listeners: list[Callable[[PeerEvent], None]] = []  # called when a site goes up or down

    # -- start and stop ----------------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, continue where it ended, and look for the other sites."""
        path = self.config.data / _STORE
        store, starts = await self.in_store_thread(open_store, path, self.name)
        self.store: Store = store
        self.last_seq = store.last_seq()  # of what is committed
        kept = await self.in_store_thread(read_kept_marks, store)
        self.marks = Watermarks(starts, lambda: (self.last_seq, self.pump.site.clock), self._note_old_copy, kept)
        try:
            await self._start_parts()
        except BaseException:
            await self.stop()
            raise

    async def _start_parts(self) -> None:
        loop = asyncio.get_running_loop()
        # Before anything is loaded or committed: what this site commits is signed, and journalled.
        await self.in_store_thread(start_signing, self.store, self.name, self.keyring, self.report_signer)
        self.store = await self.in_store_thread(self.notifier.journal_commits, self.store)
        saved_tokens = await self.in_store_thread(self.store.note, tokens.NOTE)
        self.accounts = Accounts(tokens.Tokens.of_note(saved_tokens), partial(self._save_durably, tokens.NOTE))
        saved_head = await self.in_store_thread(self.store.note, audit.NOTE)
        head = msgspec.convert(saved_head, audit.AuditHead) if saved_head else None
        await loop.run_in_executor(None, self.audit.start, head, self._save_audit_head)
        await self._runner.start()
        # The way to the other sites. Nothing is sent yet.
        self.mesh = await self._create_mesh()
        self.channels = channel_pool(self)
        self.prober = Prober(self.mesh, self.channels, self._report_peer_event, self.refusal_log, self.marks)
        self.links = PeerLinks(self.name, self.channels, self.mesh.probe_now)
        self.channels.on_ready = self.links.flush
        self.file_fetcher = FileFetcher(
            self.files,
            self.channels,
            self.refusal_log,
            self.file_references.is_needed,
            lambda site: site in self.mesh.forgotten,
            own=self.name,
            most_bytes=self.config.limits.file_bytes,
        )
        await self._start_enrollment()
        await self._start_verification()
        self.alarms.restore(await self.in_store_thread(self.store.note, alarms.NOTE))
        # The engine. Its first event is what the store recovered; runs that a crash cut short are settled by it.
        site = Site(Origin(self.name, self.store.incarnation), self.backends.settings(self.config.engine))
        before_commit = self.report_signer.expect if self.report_signer else None
        self.pump = Pump(site, self.store, EffectExecutor(self), self._writer, self.now_ms, before_commit)
        self.damaged_documents = DamagedDocuments(self, self.in_store_thread, self._start_job)
        self.intake = DocumentIntake(
            self.pump, self.verifier, self._check_capacity, self.refusal_log, self.backends.resource_problem
        )
        self.databases = Databases(self.store, self._readers, self.intake.accept, compare=self.intake.compare)
        await self.backends.start(self.pump, self.file_fetcher, self.file_references)
        self.pump.post(await self.in_store_thread(self.store.recovered))
        await self.notifier.start(self.pump, self.in_store_thread)
        # Only now does anything move.
        self._pumping = loop.create_task(self.pump.run(), name="pump")
        self.serve("channels", self.channels.run())
        self.serve("prober", self.prober.run())
        self.serve("tick", self._tick())
        self.serve("mesh", self._save_mesh_regularly())
        self.serve("backends", self.backends.maintain())
        self.serve("space release", SpaceRelease(self).run())
        if self.keyring is not None:
            self.serve("renewal", self.renewal.run())
        if not self.file_references.is_complete:
            self._start_job(self._read_file_references())

    async def stop(self) -> None:
        """Stop what runs, and close everything. Also after a start that failed half-way."""
        await self.notifier.stop()
        # Commands end first. What they leave open is UNKNOWN, and the next start asks about it.
        await self._runner.close()
        others = (*self._services, *self._jobs)
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if hasattr(self, "mesh"):
            await self._save_mesh()
        # The pump goes last of the tasks: what the engine decided until now should become durable.
        if self._pumping is not None:
            await self._flush_if_possible(self._pumping)
            self._pumping.cancel()
            await asyncio.gather(self._pumping, return_exceptions=True)
        for name in ("pump", "databases", "links", "file_fetcher", "channels"):
            if part := getattr(self, name, None):
                part.close()
        if channels := getattr(self, "channels", None):
            await channels.http.close()
        await self.backends.close()
        # After everything that may still be recorded, and before the store, which keeps the end of the log.
        await asyncio.to_thread(self.audit.close)
        await self.in_store_thread(self.store.close)
        self._writer.shutdown()
        self._readers.shutdown()

    async def failed(self) -> str:
        """Wait until a task ends that should not, and say which and why."""
        assert self._pumping is not None  # noqa: S101 - `start` comes first
        tasks = (self._pumping, *self._services, *self.notifier.tasks)
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        task = done.pop()
        return f"{task.get_name()} ended: {task.exception()!r}"

    async def _flush_if_possible(self, pumping: asyncio.Task[None]) -> None:
        """Wait for the pump, but not for ever: a full disk must not keep the agent from stopping."""
        flushed = asyncio.ensure_future(self.pump.flushed())
        end_s = time.monotonic() + _STOP_S
        while self.pump.trouble is None and not (pumping.done() or flushed.done() or time.monotonic() > end_s):
            await asyncio.wait({flushed, pumping}, timeout=0.1, return_when=asyncio.FIRST_COMPLETED)
        flushed.cancel()
        await asyncio.gather(flushed, return_exceptions=True)

    async def _create_mesh(self) -> Mesh:
        note, config = await self.in_store_thread(self.store.note, _MESH_NOTE), self.config
        interest = await self.in_store_thread(self.store.note, _INTEREST_NOTE)
        own = SiteRecord(
            self.name,
            self.store.incarnation,
            config.advertise,
            version=__version__,
            services=config.service_urls,
            issues=self.keyring.issues if self.keyring else "",
            types=fingerprints(config),
        )
        saved = heartbeat.decode_saved(msgspec.json.encode(note)) if note else SavedMesh()
        settings = MeshSettings.from_heartbeat(
            config.heartbeat.every_s, config.heartbeat.down_after_s, config.security.clock_skew_s
        )
        mesh = Mesh(own, config.peers, now(), settings, saved, proofs_of(self.keyring, self._use_new_certificates))
        self.interest = set((interest or {}).get("sites", ()))
        mesh.interest(self.interest)
        self._saved_decisions, self._saved_changes = mesh.decisions, mesh.changes
        self._told_decisions = 0  # of which the engine knows
        return mesh

    def _use_new_certificates(self) -> None:
        self.mesh.describe(issues=self.keyring.issues if self.keyring else "")
        self.mesh.renew_decisions()

    async def _start_enrollment(self) -> None:
        saved = invitations.Invitations.of_note(await self.in_store_thread(self.store.note, invitations.NOTE))
        save = partial(self._save_durably, invitations.NOTE)
        self.enrollment = Enrollment(self.config, self.keyring, self.mesh, saved, save)
        if keyring := self.keyring:
            peers = self.config.peers.keys()
            self.renewal = CertificateRenewal(self.config.security, keyring, self.mesh, self.channels, peers)
            self.renewal.start()

    async def _start_verification(self) -> None:
        """With security on, this site takes only documents that their origins signed."""
        if self.keyring is None:
            return
        self.clock_check = ClockCheck(self.mesh, self.config.security.clock_skew_s)
        self.site_keys = SiteKeys(
            self.keyring, self.channels, self.store, self._writer, lambda: sorted(self.mesh.up)[:_MOST_KEY_SOURCES]
        )
        await self.site_keys.add(self.keyring.identity)
        self.verifier = DocumentVerifier(
            self.site_keys,
            self.refusal_log,
            self.mesh.member_of,
            self._is_involved,
            clock_skew_s=self.config.security.clock_skew_s,
            now_s=lambda: self.mesh.common_clock.time_ms(now()) / 1_000,
        )

    async def _is_involved(self, site: str, resource: str) -> bool:
        return may_have_taken(site, (await self.pump.replica(resource)).history)

    # -- tasks -------------------------------------------------------------------------------------------

    def serve(self, name: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self._services.append(asyncio.get_running_loop().create_task(coroutine, name=name))

    def _start_job(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._jobs.add(task)
        task.add_done_callback(self._end_job)

    def _end_job(self, task: asyncio.Task[None]) -> None:
        self._jobs.discard(task)
        if not task.cancelled() and (error := task.exception()):
            _log.error("a task of the agent failed", exc_info=error)

    async def _tick(self) -> None:
        while True:
            if self.pump.trouble is None:
                self._tell_membership()
                if self.mesh.decisions != self._saved_decisions:
                    self._start_job(self._save_mesh())  # a revocation that came by gossip must survive a crash
                if not self.alarms.is_saved:
                    self._start_job(self._save_alarms(self.alarms.note()))
                if self.verifier:
                    self.clock_check.cure_if_due(self.pump)
                self.pump.post(Tick())
            await asyncio.sleep(_TICK_S)

    def _tell_membership(self) -> None:
        if (decisions := self.mesh.decisions) != self._told_decisions:
            self._told_decisions = decisions
            admitted = (record.name for record in self.mesh.saved().members if not record.forgotten)
            self.pump.post(SitesRemoved(self.mesh.forgotten, frozenset(admitted)))

    async def _read_file_references(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._readers, self.file_references.load, self.store)

    # -- notes in the store ------------------------------------------------------------------------------

    async def in_store_thread(self, call: Callable[..., T], *args: Any) -> T:
        """Call something in the thread that owns the store."""
        return await self._writer.call(call, *args)

    async def _save_mesh_regularly(self) -> None:
        """A site may restart while the others are out of reach, and must still know them."""
        while True:
            await asyncio.sleep(jittered(_SAVE_MESH_S, 0.1))
            if self.mesh.changes != self._saved_changes:
                await self._save_mesh()

    async def _save_mesh(self) -> None:
        """A note that can be lost: all of it is learned again."""
        try:
            await self._save_mesh_durably()
        except StoreError as error:
            _log.warning("cannot save what is known of other sites: %s", error)

    async def _save_mesh_durably(self) -> None:
        self._saved_decisions, self._saved_changes = self.mesh.decisions, self.mesh.changes
        note = msgspec.json.decode(heartbeat.encode(self.mesh.saved()))
        await self.in_store_thread(self.store.put_note, _MESH_NOTE, note)
        await self.in_store_thread(self.store.put_note, KEPT_NOTE, marks_note(self.marks.kept))

    async def _save_note(self, name: str, note: dict[str, Any]) -> None:
        """A note that can be lost: it is saved again later, or learned again."""
        try:
            await self.in_store_thread(self.store.put_note, name, note)
        except StoreError as error:
            _log.warning("cannot save the note '%s': %s", name, error)

    async def _save_alarms(self, note: dict[str, Any]) -> None:
        try:
            await self.in_store_thread(self.store.put_note, alarms.NOTE, note)
        except StoreError as error:
            self.alarms.is_saved = False  # again at the next tick after the store has recovered
            _log.warning("cannot save the alarms of 'cheops check': %s", error)

    async def _save_durably(self, name: str, note: dict[str, Any]) -> None:
        """Raises StoreError. A token that a client gets must survive a restart; so must the use of an invitation."""
        await self.in_store_thread(self.store.put_note, name, note)

    def _save_audit_head(self, head: audit.AuditHead) -> None:
        """Raises StoreError. Called by the thread of the audit log."""
        self.store.put_note(audit.NOTE, msgspec.to_builtins(head))

    def now_ms(self) -> int:
        """The time by the clocks of most sites, which stamps are made and judged by."""
        return int(self.mesh.common_clock.time_at_ms(time.monotonic() * 1000))

    # -- requests ----------------------------------------------------------------------------------------

    def submit(self, event: Submitted) -> None:
        """Pass an operation to the engine; its answers go to the pending request."""
        self._check_capacity()
        if event.kind is Kind.NORMAL:  # operations that replace or delete free disk space
            self.disk_quota.check()
        self._check_clock(event)
        self.pump.post(event)

    @property
    def problem(self) -> str | None:
        """Why this site accepts no new operations from clients; None if it does. It may still accept deletions."""
        return self.pump.trouble or self.disk_quota.problem()

    def _check_clock(self, event: Submitted) -> None:
        """Raises CheopsError if the other sites of the resource would refuse what is stamped now."""
        replica = self.pump.site.replicas.get(event.resource)
        sites = event.sites or (replica.history.site_list if replica else ())
        if self.verifier and any(site != self.name for site in sites):
            self.clock_check.check(self.pump.site.clock.time_ms)

    def _check_capacity(self) -> None:
        if self.pump.trouble:
            raise StoreError(f"{self.name} cannot save anything now, so it accepts nothing: {self.pump.trouble}")
        if self.pump.backlog > _MOST_BACKLOG:
            raise CheopsError(
                f"{self.name} receives more than its disk can save; try again in a moment", status=503, definite=False
            )

    def answers(self) -> Answers:
        return Answers(self.pending_requests)

    async def decide_membership(self, site: str, *, forgotten: bool) -> None:
        """Remove a site from the mesh for good, or admit it again; raises ClientError or StoreError."""
        decide = self.mesh.forget if forgotten else self.mesh.admit
        await self._spread_decision(decide(site, now()))

    async def take_decision(self, decision: MembershipRecord) -> None:
        """Take a decision about a site that the authority's key has signed; raises ClientError or StoreError."""
        await self._spread_decision(self.mesh.take_decision(decision, now()))

    async def end_certificates(self, site: str) -> None:
        """Have every certificate of a site refused that was made before now, at all sites; raises ClientError."""
        await self._spread_decision(self.mesh.end_certificates(site, now()))

    async def _spread_decision(self, events: Iterable[PeerEvent]) -> None:
        """Carry out a decision here, and save it. Gossip has it from now on, and goes on even if saving fails."""
        for event in events:
            self._report_peer_event(event)
        for listener in self.membership_listeners:
            await listener()
        await self._save_mesh_durably()

    # -- look-ups ----------------------------------------------------------------------------------------

    @property
    def engine(self) -> Pump:
        return self.pump

    def address_of(self, site: str) -> str | None:
        entry = self.mesh.entry_of(site)
        return entry.url if entry else self.config.peers.get(site)

    def snapshot(self) -> Snapshot:
        """The mesh as scope-lang sees it. At most a second old: with many sites it takes a while to compute."""
        at = now().mono_ms
        if self._snapshot is None or at - self._snapshot[0] > _SNAPSHOT_MS:
            self._snapshot = (at, self.mesh.snapshot(now()))
        return self._snapshot[1]

    # -- effects and events ------------------------------------------------------------------------------

    def start_run(self, effect: Run) -> None:
        self._start_job(self._run(effect))

    async def _run(self, effect: Run) -> None:
        self.pump.post(Ran(effect.resource, effect.n, await self.backends.run(effect)))

    def note_interest(self, sites: Iterable[str]) -> None:
        """These sites share a resource with this one: the mesh must notice within seconds if one goes down."""
        if new := set(sites) - self.interest - {self.name}:
            self.interest |= new
            self.mesh.interest(self.interest)
            self._start_job(self._save_note(_INTEREST_NOTE, {"sites": sorted(self.interest)}))

    def _note_old_copy(self, peer: str, mark: Watermark) -> None:
        why = f"the store of this site is an old copy: {peer} has seen a later state of it"
        self.pump.post(StoreOutdated(why, mark.clock, later=mark.incarnation))

    def _report_peer_event(self, event: PeerEvent) -> None:
        self._snapshot = None
        self.pump.post(event)
        self.notifier.report_peer(event, self.mesh.problem_of(event.peer))
        for listener in self.peer_listeners:
            listener(event)

    async def _note_drift(self, why: Mapping[str, str]) -> None:
        for resource, text in why.items():
            self.pump.post(Verified(resource, self.name, text, wall_ms()))
        self.drifted.update(why)
        await self.pump.flushed()

    def _log_refused_command(self, origin: str, reason: str) -> None:
        self.refusal_log.document(COMMAND_NOT_ALLOWED, origin, detail=reason)
