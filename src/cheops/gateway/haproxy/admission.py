"""What HAProxy may serve without the agent: trusted gateways, services without replicas here."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import TYPE_CHECKING

from cheops.gateway.haproxy import identifiers
from cheops.gateway.haproxy.flows import FlowTable
from cheops.gateway.haproxy.process import Haproxy
from cheops.gateway.haproxy.runtime import MapUpdater, RuntimeSocketError
from cheops.gateway.headers import encode_name
from cheops.gateway.interfaces import Replication
from cheops.gateway.peers import PeerGateways
from cheops.node.node import Node
from cheops.peers.enrollment import rejection_of

if TYPE_CHECKING:
    from cheops.security.certificates import Identity


_ANSWERED_S = 3.0
_LOOK_S = 0.01


class ReplicaGuard:
    """A RunGuard (see gateway.interfaces). `flags` has, for each service, what its flows here must not have; None:
    there are no flows here."""

    def __init__(self, haproxy: Haproxy, applying: MapUpdater, table: FlowTable) -> None:
        self._replication: Replication | None = None
        self._haproxy = haproxy
        self._applying = applying
        self._table = table
        self._runs: dict[str, int] = {}
        self._started = asyncio.Event()
        self.flags: dict[str, str | None] = {}

    def watch(self, replication: Replication) -> None:
        """From now on each run is announced here first."""
        self._replication = replication
        replication.guard_runs(self)

    def begin(self, services: Iterable[str]) -> None:
        """Before HAProxy takes requests; `started` is to follow."""
        for service in services:
            self.flags[service] = self._flags_now(service)

    def started(self) -> None:
        self._started.set()

    def end(self) -> None:
        """There is no HAProxy any more."""
        if self._replication is not None:
            self._replication.guard_runs(None)
        self.flags = {}
        self._started.set()

    @property
    def has_doubts(self) -> bool:
        """Whether something is replicated here, so that not everything may go to the instances."""
        return any(flags != "" for flags in self.flags.values())

    def look(self) -> None:
        """Have HAProxy know what may go to the instances here now."""
        for service, before in self.flags.items():
            now = self._flags_now(service)
            if now != before:
                self.flags[service] = now
                self._table.generation += 1
                self._applying.put_whole(identifiers.map_of(service), identifiers.SERVICES)

    def _flags_now(self, service: str) -> str | None:
        replication = self._replication
        if (replication and replication.has_copies(service)) or self._runs.get(service):
            return None
        has_any = (replication and replication.has_copies()) or any(self._runs.values())
        return identifiers.NO_BODIES if has_any else ""

    # -- before and after --------------------------------------------------------------------------------

    async def before_run(self, service: str) -> None:
        """Something of a service is about to be replicated here: from now on its requests are looked at."""
        self._runs[service] = self._runs.get(service, 0) + 1
        await self._started.wait()
        before = dict(self.flags)
        self.look()
        if self.flags != before:
            await self._settled_or_ended()
            await self._until_answered(service)

    def after_run(self, service: str) -> None:
        self._runs[service] -= 1

    async def _settled_or_ended(self) -> None:
        """An HAProxy that has ended forwards nothing, and the next one is told before it does."""
        settled = asyncio.ensure_future(self._applying.settled())
        ended = asyncio.ensure_future(self._haproxy.ended.wait())
        await asyncio.wait({settled, ended}, return_when=asyncio.FIRST_COMPLETED)
        settled.cancel()
        ended.cancel()

    async def _until_answered(self, service: str) -> None:
        """What went to the instance here before, and was not looked at, is answered before that changes. For
        a while: what takes longer is no list."""
        names = {identifiers.own_of(service), identifiers.own_or_of(service), identifiers.sent_of(service)}
        end_s = time.monotonic() + _ANSWERED_S
        while time.monotonic() < end_s:
            try:
                if not await self._haproxy.runtime.at_servers(names):
                    return
            except RuntimeSocketError:
                return  # it has ended, and what it did with it
            await asyncio.sleep(_LOOK_S)


_MOST_CERTIFICATES = 2_000
_ADDRESSES_S = 5.0


class TrustedSenders:
    """Belongs to one event loop. `on_change` is called when what is believed is another."""

    def __init__(self, node: Node, peers: PeerGateways, on_change: Callable[[], None]) -> None:
        self._node = node
        self._peers = peers
        self._on_change = on_change
        self._shown: OrderedDict[str, Identity] = OrderedDict()
        self._at: frozenset[str] = frozenset()
        peers.on_proved = self._proved

    def entries(self) -> list[tuple[str, str]]:
        """For HAProxy's map: a name and what is shown with it."""
        shown = (f"{encode_name(one.site)}|{fingerprint}" for fingerprint, one in self._shown.items())
        return [(key, "1") for key in (*shown, *self._at)]

    def _proved(self, der: bytes, identity: "Identity") -> None:
        """A gateway showed this certificate, and it is good."""
        fingerprint = sha256(der).hexdigest().upper()  # as HAProxy writes it
        if fingerprint in self._shown:
            self._shown.move_to_end(fingerprint)
            return
        self._shown[fingerprint] = identity
        if len(self._shown) > _MOST_CERTIFICATES:
            self._shown.popitem(last=False)
        self._on_change()

    def look_again(self) -> None:
        """Take out whoever may not come in any more."""
        now_s = time.time()
        out = [key for key, one in self._shown.items() if rejection_of(self._node.mesh, one, now_s)]
        for key in out:
            del self._shown[key]
        if out:
            self._on_change()

    async def know_addresses(self, soon_s: float) -> None:
        """From which addresses sites send requests on, where they prove it by nothing else. Until
        cancelled."""
        while self._node.keyring is None:
            found: set[str] = set()
            is_all_known = True
            for site in self._node.snapshot().sites:
                if site != self._node.name:
                    addresses = await self._peers.addresses_of(site)
                    is_all_known = is_all_known and bool(addresses)
                    found.update(f"{encode_name(site)}|{address}" for address in addresses)
            if found != self._at:
                self._at = frozenset(found)
                self._on_change()
            await asyncio.sleep(_ADDRESSES_S if is_all_known else soon_s)
