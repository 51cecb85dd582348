"""HAProxy as the data plane of a site: its process, its configuration, and the flows installed in it.

The agent serves the first request with a scope, then installs its flow. Whatever could change a route withdraws it:
a site that goes up or down or changes its services, distances for scopes that use them, and the first replica of a
service for all flows to the local instance. See docs/adr/0013.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from cheops.backoff import Backoff
from cheops.bounded import BoundedMap
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.carriers import Carriers
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.admission import CarrierCache, ReplicaGuard, TrustedSenders
from cheops.gateway.haproxy.configuration import all_files, used_maps
from cheops.gateway.haproxy.counters import TrafficCounters
from cheops.gateway.haproxy.flows import (
    Flow,
    FlowCandidate,
    FlowKey,
    FlowTable,
    FlowTarget,
    RouteWatch,
    flow_entries,
    flow_target,
    flow_value,
    make_flow,
    service_entries,
)
from cheops.gateway.haproxy.frontends import SENDERS
from cheops.gateway.haproxy.layout import Layout, PeerLayout, make_layout, peer_layout
from cheops.gateway.haproxy.process import FOLDER, Haproxy
from cheops.gateway.haproxy.runtime import MapUpdater, RuntimeSocket, RuntimeSocketError
from cheops.gateway.interfaces import Replication
from cheops.gateway.peers import PeerGateways
from cheops.gateway.request_log import RequestLog
from cheops.gateway.routing import Decision
from cheops.node.node import Node
from cheops.peers.probes import PeerEvent
from cheops.scope.functions import Functions

if TYPE_CHECKING:
    from cheops.security.keyring import Keyring


class PeerServers:
    """Marks the servers of other sites in HAProxy as up or down."""

    def __init__(self, runtime: RuntimeSocket, peers: PeerGateways) -> None:
        self._runtime = runtime
        self._peers = peers
        self._lock = asyncio.Lock()

    async def update(self, service: str, site: str) -> None:
        """Have HAProxy send nothing to a site that is down, and break off its requests there. One update at a time, so
        that the last one is the current state."""
        async with self._lock:
            is_up = self._peers.is_up(site)
            try:
                for name in (haproxy_names.peer_of(service, site), haproxy_names.peer_or_of(service, site)):
                    state = "ready" if is_up else "maint"
                    await self._runtime.command_all(f"set server {name}/first state {state}")
                    if not is_up:
                        await self._runtime.command_all(f"shutdown sessions server {name}/first")
            except RuntimeSocketError as error:
                _log.warning("HAProxy was not updated (%s is %s): %s", site, "up" if is_up else "down", error)


_PEERS_FILE = "peers.json"
_MAX_PAIRS = 256  # of a service and a site: each is a backend in the configuration


class PeerBackends:
    """The backends for gateways of other sites: `installed` ones are in HAProxy's configuration now."""

    def __init__(self, config: SiteConfig, peers: PeerGateways, keyring: "Keyring | None", most: int) -> None:
        """`most` is the limit of connections."""
        self._config = config
        self._peers = peers
        self._keyring = keyring
        self._most = most
        self._wanted: BoundedMap[FlowKey, PeerLayout | None] = BoundedMap(_MAX_PAIRS)
        self.installed: dict[FlowKey, PeerLayout] = {}

    def has(self, service: str, target: FlowTarget) -> bool:
        """Whether HAProxy has a backend for this target."""
        return target.site is None or (service, target.site) in self.installed

    def want(self, service: str, site: str) -> None:
        self._wanted[service, site] = self._wanted.get((service, site))  # assigned anew: it is the newest now

    def layout_now(self, folder: Path) -> Layout:
        """The layout that HAProxy should have."""
        changed = False
        for key, before in list(self._wanted.items()):
            now = peer_layout(self._peers, self._keyring, *key)
            if now is not None and now != before:
                self._wanted[key], changed = now, True
        if changed:
            self._save(folder)
        known = [one for one in self._wanted.values() if one]
        peers = sorted(known, key=lambda one: (one.service, one.site))
        return make_layout(self._config, tuple(peers), self._keyring, self._most)

    def load(self, folder: Path, services: Collection[str]) -> None:
        try:
            saved = msgspec.json.decode((folder / _PEERS_FILE).read_bytes(), type=list[PeerLayout])
        except (OSError, msgspec.MsgspecError):
            return
        for one in saved[:_MAX_PAIRS]:
            if one.service in services:
                self._wanted[one.service, one.site] = one

    def _save(self, folder: Path) -> None:
        known = [one for one in self._wanted.values() if one]
        (folder / _PEERS_FILE).write_bytes(msgspec.json.encode(known))


_MAX_KEY = 2_000  # characters; a longer scope is served by the agent
_TICK_S = 0.2
_RELOAD_GAP_S = 0.5  # a reload starts a new worker: several changes at once should cause one reload
_SETTLED_S = 2.0
_LOOK_AT_WORKERS_S = 1.0
_COUNT_S = 20.0
_FIRST_DELAY_S, _LONGEST_DELAY_S = 0.1, 10.0  # before HAProxy is restarted again
_INHERITED_S = 3.0  # by then an agent that has just started knows which sites are up
_LONG_S = 60.0  # after so long a run, a crash counts as the first
_log = logging.getLogger(__name__)


class HaproxyPlane:
    """Starts, configures and watches HAProxy, and keeps its flows up to date. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913, PLR0917 - what it needs of a gateway
        self,
        node: Node,
        functions: Functions,
        peers: PeerGateways,
        request_log: RequestLog,
        program: str,
        most: int,
        carriers: Carriers | None = None,
    ) -> None:
        self._node = node
        self._config = node.config
        self._peers = peers
        self.haproxy = Haproxy(node.config.data / FOLDER, program)
        self.table = FlowTable(node.config.gateway.flows)
        self.counters = TrafficCounters(self.haproxy.runtime, request_log, node.refusals)
        self._services = tuple(name for name, one in node.config.services.items() if one.listener.listen)
        maps: dict[str, Callable[[], Iterable[tuple[str, str]]]] = {
            haproxy_names.map_of(service): lambda s=service: self._entries(s)  # type: ignore[misc]
            for service in self._services
        }
        self._senders = TrustedSenders(node, peers, lambda: self._map_updater.put_whole(SENDERS))
        maps[SENDERS] = self._senders.entries
        maps[haproxy_names.SERVICES] = lambda: service_entries(self._replica_guard.flags)
        maps[haproxy_names.CARRIED] = lambda: self.carrier_cache.entries() if self.carrier_cache is not None else ()
        used = used_maps(make_layout(node.config, (), node.keyring, most))
        self._map_updater = MapUpdater(self.haproxy.runtime, {name: one for name, one in maps.items() if name in used})
        names, most_carried = node.config.carrier_names, node.config.gateway.carriers
        # Not with `gateway.proxy` alone: HAProxy serves the calls to `outbound` addresses, the agent those by proxy.
        self.carrier_cache = (
            CarrierCache(carriers, names, most_carried, self._map_updater)
            if carriers is not None and haproxy_names.CARRIED in used
            else None
        )
        self._replica_guard = ReplicaGuard(self.haproxy, self._map_updater, self.table)
        self._peer_backends = PeerBackends(node.config, peers, node.keyring, most)
        self._route_watch = RouteWatch(node, functions, peers, self.table, self._take_out)
        self._layout: Layout | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._restart_delay = Backoff(_FIRST_DELAY_S, _LONGEST_DELAY_S)
        self._workers: frozenset[int] = frozenset()
        self._servers = PeerServers(self.haproxy.runtime, peers)
        self._counted_s = self._looked_s = self._reloaded_s = self._started_s = self._inherited_until_s = 0.0
        self.reloads = self.restarts = 0
        self.trouble = ""

    def replicate_with(self, replication: Replication) -> None:
        """Have HAProxy forward only requests that do not concern replicas."""
        self._replica_guard.watch(replication)

    # -- life --------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """HAProxy takes requests when this returns. Raises HaproxyError."""
        self._peer_backends.load(self.haproxy.folder, self._services)
        self._node.peer_listeners.append(self._on_peer_event)
        self._node.membership_listeners.append(self._on_membership_change)
        self._route_watch.begin()
        self._replica_guard.begin(self._services)
        layout = self._layout_now()
        changed = self.haproxy.write(all_files(layout, self._node.keyring))
        is_adopted = await self.haproxy.adopt()
        async with self._map_updater.lock:
            if not is_adopted:
                await self.haproxy.start()
            elif changed:
                await self.haproxy.reload()
            is_inherited = is_adopted and not changed and not self._replica_guard.has_replicas
            await self._install_layout(layout, is_inherited=is_inherited)
        self._replica_guard.started()
        if self.carrier_cache is not None:
            self.carrier_cache.started()
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._map_updater.run(), name="flows"),
            loop.create_task(self._watch(), name="haproxy"),
            loop.create_task(self._senders.follow_addresses(_TICK_S), name="senders"),
            loop.create_task(self._peers.host_names.run(), name="host names"),
        ]

    def give_up(self) -> None:
        """HAProxy does not start: the agent goes on without it."""
        self._remove_listeners()
        self._end_caches()

    async def stop(self) -> None:
        await self.counters.refresh()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end_caches()
        self._remove_listeners()
        await self.haproxy.stop(self._config.gateway.stop_timeout_s)

    def _end_caches(self) -> None:
        self._replica_guard.end()
        if self.carrier_cache is not None:
            self.carrier_cache.end()

    def _remove_listeners(self) -> None:
        self._node.peer_listeners.remove(self._on_peer_event)
        self._node.membership_listeners.remove(self._on_membership_change)

    async def _watch(self) -> None:
        while True:
            try:
                await self._tick()
                self.trouble = self._map_updater.trouble
            except (CheopsError, OSError) as error:
                if str(error) != self.trouble:
                    _log.error("HAProxy cannot be kept up to date: %s", error)
                self.trouble = str(error)
            except Exception as error:  # a bug must not leave flows that are not updated any more
                _log.exception("the watch of HAProxy failed")
                self.trouble = f"internal error in Cheops: {error!r}"
                self._take_out(self.table.withdraw(lambda _service, _flow: True))
            await asyncio.sleep(_TICK_S)

    async def _tick(self) -> None:
        if self.haproxy.ended.is_set():
            await self._restart()
        await self._end_inheritance()
        self._route_watch.refresh()
        self._senders.recheck()
        self._replica_guard.refresh()
        if self.carrier_cache is not None:
            self.carrier_cache.refresh()
        await self._look_at_workers()
        if self.carrier_cache is not None and time.monotonic() - self._counted_s > _COUNT_S:
            self._counted_s = time.monotonic()
            await self.refresh()  # for calls without a known scope, which are reported in the log
        layout = self._layout_now()
        if layout != self._layout and time.monotonic() - self._reloaded_s > _RELOAD_GAP_S:
            await self._reload(layout)

    async def _look_at_workers(self) -> None:
        """An operator may have reloaded HAProxy: a new worker has no flows."""
        if time.monotonic() - self._looked_s < _LOOK_AT_WORKERS_S:
            return
        self._looked_s = time.monotonic()
        now = frozenset(one.pid for one in await self.haproxy.runtime.workers() if not one.is_old)
        if self._workers != now and self._workers:
            self._map_updater.put_whole()
            for service, site in self._peer_backends.installed:
                if not self._peers.is_up(site):
                    await self._servers.update(service, site)
        self._workers = now

    async def _restart(self) -> None:
        """HAProxy ended unexpectedly: start it again, at once the first time, later with a delay."""
        if time.monotonic() - self._started_s > _LONG_S:
            self._restart_delay.reset()
        is_first = self._restart_delay.attempts == 0
        delay_s = self._restart_delay.next_s()
        _log.error("HAProxy ended; it is restarted %s", "at once" if is_first else f"in {delay_s:.1f} s")
        self.restarts += 1
        await asyncio.sleep(0 if is_first else delay_s)
        layout = self._layout_now()
        async with self._map_updater.lock:
            self.haproxy.write(all_files(layout, self._node.keyring))
            await self.haproxy.start()
            await self._install_layout(layout)

    async def _reload(self, layout: Layout) -> None:
        await self.counters.refresh()  # the counters of the old worker end with it
        async with self._map_updater.lock:
            self._reloaded_s = time.monotonic()
            self.haproxy.write(all_files(layout, self._node.keyring))
            await self.haproxy.reload()
            self.reloads += 1
            await self._install_layout(layout)

    async def _install_layout(self, layout: Layout, *, is_inherited: bool = False) -> None:
        """HAProxy has this configuration now: send it the flows. The lock must be held. An HAProxy of an earlier agent
        (`is_inherited`) keeps its flows until this agent knows the other sites."""
        self._layout, self._started_s = layout, time.monotonic()
        self._peer_backends.installed = {(one.service, one.site): one for one in layout.peers}
        self.counters.add_layout(layout)
        self.table.withdraw(lambda service, flow: not self._peer_backends.has(service, flow.target))
        self._workers = frozenset()
        self._inherited_until_s = time.monotonic() + _INHERITED_S if is_inherited else 0.0
        if not is_inherited:
            await self._send_all()
        elif stale := self._stale_maps:
            self._map_updater.put_whole(*stale)
            await self._map_updater.apply()

    @property
    def _stale_maps(self) -> list[str]:
        """Maps that an inherited HAProxy must not keep: a site may have been removed meanwhile, and this agent has no
        memory of carriers."""
        senders = [SENDERS] if self._node.keyring else []
        return [*senders, haproxy_names.CARRIED] if self.carrier_cache is not None else senders

    async def _send_all(self) -> None:
        """Send all maps. The lock must be held."""
        self._map_updater.put_whole()
        await self._map_updater.apply()
        for service, site in self._peer_backends.installed:
            if not self._peers.is_up(site):
                await self._servers.update(service, site)

    async def _end_inheritance(self) -> None:
        """Replace the flows of an earlier agent once this one knows as much."""
        if not self._inherited_until_s:
            return
        is_known = all(self._peers.is_up(site) for _, site in self._peer_backends.installed)
        if is_known or self._replica_guard.has_replicas or time.monotonic() > self._inherited_until_s:
            self._inherited_until_s = 0.0
            async with self._map_updater.lock:
                await self._send_all()

    async def refresh(self) -> None:
        """Read HAProxy's counters, and mark the flows that were used."""
        for one in await self.counters.refresh():
            self.table.used(one.service, one.key)

    # -- maps and layout ---------------------------------------------------------------------------------

    def _layout_now(self) -> Layout:
        return self._peer_backends.layout_now(self.haproxy.folder)

    def _entries(self, service: str) -> Iterable[tuple[str, str]]:
        return flow_entries(service, self.table.of(service), self._replica_guard.flags.get(service))

    # -- flows -------------------------------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """The generation of decisions that are made now; see flows."""
        return self.table.generation

    def offer(self, candidate: FlowCandidate, decision: Decision, generation: int) -> None:
        """Install the decision by which the agent served a request with this scope."""
        service, key = candidate.service, haproxy_names.key_of(candidate.sent)
        target = flow_target(decision, self._peers.is_up)
        if target is None or service not in self._services or not candidate.sent or len(key) > _MAX_KEY:
            return
        if target.site is None and self._config.has_carriers:
            return  # the agent must remember the carriers of each request to the application
        if target.site is not None:
            self._peer_backends.want(service, target.site)
            if not self._peer_backends.has(service, target):
                return
        flow = make_flow(target, candidate.scope, decision, self._config.name)
        is_installed = self._install(service, key, flow, generation, candidate.client)
        if is_installed and self.carrier_cache is not None and candidate.recovered:
            self.carrier_cache.offer(candidate.recovered, candidate.sent)

    def _install(self, service: str, key: str, flow: Flow, generation: int, client: str) -> bool:
        """False if the decision is outdated."""
        before = self.table.get(service, key)
        if before == flow:
            return True
        if not len(self.table):  # without flows the watch rests, and what it knows may be old
            self._route_watch.begin()
        left = self.table.install(service, key, flow, generation, client, time.monotonic())
        if left is None:
            return False
        self._take_out(left)
        value = flow_value(service, key, flow, self._replica_guard.flags.get(service))
        self._map_updater.put(haproxy_names.map_of(service), key, value, was_there=before is not None)
        return True

    def _take_out(self, keys: Iterable[FlowKey]) -> None:
        for service, key in keys:
            self._map_updater.put(haproxy_names.map_of(service), key, None, was_there=True)

    # -- changes of routes -------------------------------------------------------------------------------

    def _on_peer_event(self, event: PeerEvent) -> None:
        """A site went up or down."""
        self._senders.recheck()
        self._route_watch.withdraw_of({event.peer})
        for service, site in self._peer_backends.installed:
            if site == event.peer:
                task = asyncio.get_running_loop().create_task(self._servers.update(service, site))
                self._tasks.append(task)
                task.add_done_callback(self._tasks.remove)

    async def _on_membership_change(self) -> None:
        """HAProxy refuses a site that was removed when this returns, unless it does not respond."""
        self._senders.recheck()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SETTLED_S):
                await self._map_updater.wait_applied()
