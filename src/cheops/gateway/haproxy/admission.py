"""What HAProxy may decide without the agent: which gateways to trust, which services have no replicas here, and which
scope the carriers of a call stand for.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from cheops.bounded import BoundedMap
from cheops.errors import CheopsError
from cheops.gateway.carriers import TRACEPARENT, Carrier, Carriers, KnownScope, RecoveredScope, carriers_in
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.haproxy.flows import FlowTable
from cheops.gateway.haproxy.process import Haproxy
from cheops.gateway.haproxy.runtime import MapUpdater, RuntimeSocketError
from cheops.gateway.headers import RequestHead, encode_name, every
from cheops.gateway.interfaces import Replication
from cheops.gateway.peers import PeerGateways
from cheops.node.node import Node
from cheops.peers.enrollment import rejection_of

if TYPE_CHECKING:
    from cheops.security.certificates import Identity


_RESPONDED_S = 3.0  # to wait for responses that HAProxy relays; see ReplicaGuard
_LOOK_S = 0.01


class ReplicaGuard:
    """Keeps HAProxy from forwarding requests that concern replicas: a `RunGuard` (see gateway.interfaces).

    `flags` has, for each service, what a request to the local instance must not have; None: all go to the agent.
    """

    def __init__(self, haproxy: Haproxy, map_updater: MapUpdater, table: FlowTable) -> None:
        self._replication: Replication | None = None
        self._haproxy = haproxy
        self._map_updater = map_updater
        self._table = table
        self._runs: dict[str, int] = {}
        self._started = asyncio.Event()
        self.flags: dict[str, str | None] = {}

    def watch(self, replication: Replication) -> None:
        """Have each run of an operation announced here first."""
        self._replication = replication
        replication.guard_runs(self)

    def begin(self, services: Iterable[str]) -> None:
        """Call before HAProxy takes requests, and `started` after."""
        for service in services:
            self.flags[service] = self._flags_now(service)

    def started(self) -> None:
        self._started.set()

    def end(self) -> None:
        """HAProxy is not used any more."""
        if self._replication is not None:
            self._replication.guard_runs(None)
        self.flags = {}
        self._started.set()

    @property
    def has_replicas(self) -> bool:
        """Whether this site has replicas, so that the agent must see some requests."""
        return any(flags != "" for flags in self.flags.values())

    def refresh(self) -> None:
        """Update the maps of services whose replicas have changed."""
        for service, before in self.flags.items():
            now = self._flags_now(service)
            if now != before:
                self.flags[service] = now
                self._table.generation += 1
                self._map_updater.put_whole(haproxy_names.map_of(service), haproxy_names.SERVICES)

    def _flags_now(self, service: str) -> str | None:
        replication = self._replication
        if (replication and replication.has_copies(service)) or self._runs.get(service):
            return None
        has_any = (replication and replication.has_copies()) or any(self._runs.values())
        return haproxy_names.NO_BODIES if has_any else ""

    # -- before and after --------------------------------------------------------------------------------

    async def before_run(self, service: str) -> None:
        """An operation on a service is about to run: from now on the agent must see the requests of this service."""
        self._runs[service] = self._runs.get(service, 0) + 1
        # An agent runs pending operations as soon as it starts, perhaps before HAProxy has its maps.
        await self._started.wait()
        before = dict(self.flags)
        self.refresh()
        if self.flags != before:
            await self._wait_applied_or_ended()
            await self._wait_responded(service)

    def after_run(self, service: str) -> None:
        self._runs[service] -= 1

    async def _wait_applied_or_ended(self) -> None:
        """Wait until the maps are updated. An HAProxy that has ended forwards nothing, and the next one gets them."""
        applied = asyncio.ensure_future(self._map_updater.wait_applied())
        ended = asyncio.ensure_future(self._haproxy.ended.wait())
        await asyncio.wait({applied, ended}, return_when=asyncio.FIRST_COMPLETED)
        applied.cancel()
        ended.cancel()

    async def _wait_responded(self, service: str) -> None:
        """Wait for requests that HAProxy sent to the local instance before the update: their responses could list the
        new resource under its local id. Not for ever: a response that takes longer is not a list."""
        own = (haproxy_names.own_of, haproxy_names.own_or_of, haproxy_names.sent_of, haproxy_names.unknown_of)
        names = {name_of(service) for name_of in own}
        end_s = time.monotonic() + _RESPONDED_S
        while time.monotonic() < end_s:
            try:
                if not await self._haproxy.runtime.requests_at(names):
                    return
            except RuntimeSocketError:
                return  # HAProxy has ended, and its requests with it
            await asyncio.sleep(_LOOK_S)


_MAX_CERTIFICATES = 2_000
_ADDRESSES_S = 5.0


class TrustedSenders:
    """The gateways that HAProxy trusts, by certificate or address. `on_change` is called when they change."""

    def __init__(self, node: Node, peers: PeerGateways, on_change: Callable[[], None]) -> None:
        self._node = node
        self._peers = peers
        self._on_change = on_change
        self._certificates: BoundedMap[str, Identity] = BoundedMap(_MAX_CERTIFICATES)  # by fingerprint
        self._addresses: frozenset[str] = frozenset()
        peers.on_verified = self._on_verified

    def entries(self) -> list[tuple[str, str]]:
        """Entries of HAProxy's map: a site with its certificate or address."""
        certificates = (f"{encode_name(one.site)}|{fingerprint}" for fingerprint, one in self._certificates.items())
        return [(key, "1") for key in (*certificates, *self._addresses)]

    def _on_verified(self, der: bytes, identity: "Identity") -> None:
        """The agent has verified this certificate of a gateway."""
        fingerprint = sha256(der).hexdigest().upper()  # as HAProxy writes it
        if fingerprint in self._certificates:
            self._certificates.touch(fingerprint)
            return
        self._certificates[fingerprint] = identity
        self._on_change()

    def recheck(self) -> None:
        """Remove certificates that are not valid any more."""
        now_s = time.time()
        rejected = [key for key, one in self._certificates.items() if rejection_of(self._node.mesh, one, now_s)]
        for key in rejected:
            del self._certificates[key]
        if rejected:
            self._on_change()

    async def follow_addresses(self, soon_s: float) -> None:
        """Without certificates, trust the addresses of the sites; runs until cancelled."""
        while self._node.keyring is None:
            entries: set[str] = set()
            is_all_known = True
            for site in self._node.snapshot().sites:
                if site != self._node.name:
                    addresses = await self._peers.addresses_of(site)
                    is_all_known = is_all_known and bool(addresses)
                    entries.update(f"{encode_name(site)}|{address}" for address in addresses)
            if entries != self._addresses:
                self._addresses = frozenset(entries)
                self._on_change()
            await asyncio.sleep(_ADDRESSES_S if is_all_known else soon_s)


_MAX_KEY = 2_000
_EARLY_S = 1.0  # an entry leaves HAProxy so long before its value expires: an update takes a moment
_SETTLED_S = 2.0
_At = TypeVar("_At", int, Carrier)


def call_key(head: RequestHead, names: Iterable[str]) -> str | None:
    """The carriers of a call as HAProxy writes them (see frontends); None for a call that the agent must see."""
    values = []
    for name in names:
        given = every(head, name)
        value = given[0] if given else ""
        if len(given) > 1 or len(value) > haproxy_names.MAX_VALUE_BYTES:
            return None
        if value and name.lower() == "traceparent":
            match = TRACEPARENT.fullmatch(value)
            if match is None:
                return None
            value = match[1]
        values.append(value)
    key = haproxy_names.carried_key(values)
    return key if len(key) <= _MAX_KEY else None


class _Entry(Struct, frozen=True):
    scope: str  # as remembered by Carriers
    encoded: str  # the scope as it is passed on
    marks: tuple[Carrier, ...]
    ends_s: int  # in which second it leaves


class CarrierCache:
    """The scopes of carrier values that are cached in HAProxy, for the application's own calls.

    HAProxy must not give a call another scope than the agent would. An entry is installed only if the agent's memory
    says the same at that moment, and leaves when that could change: the value is seen with another scope, is evicted,
    or ends. A request that changes the meaning of a value goes on to the service only after HAProxy is updated, so
    that none of the calls that it causes finds the old meaning.
    """

    def __init__(
        self,
        carriers: Carriers,
        names: tuple[str, ...],
        most: int,
        map_updater: MapUpdater,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._carriers = carriers
        self._names = names
        self._most = most
        self._map_updater = map_updater
        self._clock = clock
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._with: dict[Carrier, dict[str, None]] = {}  # keys, by the values in them
        self._ending: dict[int, dict[str, None]] = {}  # keys, by the second in which they leave
        self._looked_s = int(clock())
        self._leaving: OrderedDict[Carrier, int] = OrderedDict()  # the update that removes it
        self._started = asyncio.Event()
        self._since = 0
        carriers.observer = self

    @property
    def count(self) -> int:
        return len(self._entries)

    def entries(self) -> Iterable[tuple[str, str]]:
        """Entries of HAProxy's map."""
        return [(key, one.encoded) for key, one in self._entries.items()]

    def started(self) -> None:
        """HAProxy's map was replaced: entries of an earlier agent are gone."""
        self._since = self._map_updater.last_change
        self._started.set()

    def end(self) -> None:
        """HAProxy is not used any more."""
        self._carriers.observer = None
        self._started.set()

    # -- installing --------------------------------------------------------------------------------------

    def offer(self, recovered: RecoveredScope, passed_on: str) -> None:
        """A call had this scope by its carriers. Install that, if it still holds now."""
        key = call_key(recovered.head, self._names)
        marks = tuple(carriers_in(recovered.head, self._names))
        if key is None or not marks:
            return
        until_s = self._carriers.surely_until_s(marks, recovered.scope)
        if until_s is None or until_s - _EARLY_S <= self._clock():
            return
        entry = _Entry(recovered.scope, haproxy_names.key_of(passed_on), marks, int(until_s - _EARLY_S))
        before = self._entries.get(key)
        self._remove(key)
        self._add(key, entry)
        if before is None or before.encoded != entry.encoded:
            self._map_updater.put(haproxy_names.CARRIED, key, entry.encoded, was_there=before is not None)
        while len(self._entries) > self._most:
            self._take_out([next(iter(self._entries))], is_urgent=False)

    def _add(self, key: str, entry: _Entry) -> None:
        self._entries[key] = entry
        self._ending.setdefault(entry.ends_s, {})[key] = None
        for mark in entry.marks:
            self._with.setdefault(mark, {})[key] = None

    def _remove(self, key: str) -> _Entry | None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        _discard(self._ending, entry.ends_s, key)
        for mark in entry.marks:
            _discard(self._with, mark, key)
        return entry

    # -- withdrawing -------------------------------------------------------------------------------------

    def on_begin(self, one: Carrier, scope: KnownScope) -> None:
        others = [key for key in self._with.get(one, ()) if self._entries[key].scope != scope]
        self._take_out(others, is_urgent=True)
        if not self._map_updater.is_applied(self._leaving.get(one, 0)):
            self._map_updater.apply_now()

    def on_evicted(self, one: Carrier) -> None:
        self._take_out(list(self._with.get(one, ())), is_urgent=False)

    def refresh(self) -> None:
        """Remove entries that end."""
        now_s = int(self._clock())
        for second in range(self._looked_s, now_s + 1):
            self._take_out(list(self._ending.get(second, ())), is_urgent=False)
        self._looked_s = now_s

    def _take_out(self, keys: list[str], *, is_urgent: bool) -> None:
        for key in keys:
            entry = self._remove(key)
            if entry is None:
                continue
            self._map_updater.put(haproxy_names.CARRIED, key, None, was_there=True, is_urgent=is_urgent)
            for mark in entry.marks:
                self._leaving[mark] = self._map_updater.last_change
                self._leaving.move_to_end(mark)
        while self._leaving and self._map_updater.is_applied(next(iter(self._leaving.values()))):
            self._leaving.popitem(last=False)
        if len(self._leaving) > self._most:  # HAProxy has not responded for long: wait for all updates
            self._leaving.clear()
            self._since = self._map_updater.last_change

    async def wait_consistent(self, values: Iterable[Carrier]) -> None:
        """If HAProxy does not respond, it may have the old meaning: then the request is refused, since the calls that
        it causes could be routed wrongly."""
        await self._started.wait()
        change = max((self._since, *(self._leaving.get(one, 0) for one in values)))
        if self._map_updater.is_applied(change):
            return
        try:
            async with asyncio.timeout(_SETTLED_S):
                await self._map_updater.wait_applied(change)
        except TimeoutError:
            raise CheopsError(
                "HAProxy does not respond, and could give the calls that this request causes the scope of another "
                "request; try again later",
                definite=False,
                status=503,
            ) from None


def _discard(index: dict[_At, dict[str, None]], at: _At, key: str) -> None:
    """Remove a key from an index, and its set if that is empty then."""
    keys = index[at]
    keys.pop(key, None)
    if not keys:
        del index[at]
