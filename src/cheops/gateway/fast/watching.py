"""What could alter a route, and which flows it concerns."""

import time
from collections.abc import Callable

from cheops.errors import CheopsError
from cheops.gateway.fast.table import Flow, FlowTable, Key, Target, target_of
from cheops.gateway.peers import PeerGateways
from cheops.gateway.routing import decide, route_of
from cheops.node.node import Node
from cheops.scope.functions import Functions
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Scope

_AT_A_TIME = 500  # flows that are decided again in one look
_TURN_S = 0.2


class Watching:
    """Withdraws flows from the table; `take_out` is told which."""

    def __init__(
        self,
        node: Node,
        functions: Functions,
        peers: PeerGateways,
        table: FlowTable,
        take_out: Callable[[list[Key]], None],
    ) -> None:
        self._node = node
        self._functions = functions
        self._peers = peers
        self._table = table
        self._take_out = take_out
        self._known: dict[str, object] = {}

    def begin(self) -> None:
        """How things are when the first flow is installed: what comes after is a change."""
        self._known = self._fingerprints()

    def look(self) -> None:
        """At all that may have changed since the last look. Where there are no flows it costs nothing."""
        if not len(self._table):
            return
        now = self._fingerprints()
        if now.keys() != self._known.keys():
            self._take_out(self._table.withdraw(lambda _service, _flow: True))
        else:
            changed = {site for site, looks in now.items() if looks != self._known[site]}
            if changed:
                self.withdraw_of(changed)
        self._known = now
        self._look_at_varying()

    def withdraw_of(self, sites: set[str]) -> None:
        def is_concerned(_service: str, flow: Flow) -> bool:
            return flow.is_varying or not sites.isdisjoint(flow.sites)

        self._take_out(self._table.withdraw(is_concerned))

    def _fingerprints(self) -> dict[str, object]:
        """Of each site, all of it that a route may depend on, but for distances."""
        snapshot = self._node.snapshot()
        return {
            name: (info.up, info.heard, info.services, self._addresses(name))
            for name, info in snapshot.sites.items()
        }

    def _addresses(self, site: str) -> object:
        entry = self._node.mesh.entry_of(site)
        return entry.services if entry else None

    def _look_at_varying(self) -> None:
        """Distances change: what goes by them is decided again."""
        varying = self._table.varying
        if not varying:
            return
        snapshot = self._node.snapshot()
        start = int(time.monotonic() / _TURN_S) * _AT_A_TIME % len(varying)
        looked_at = varying[start : start + _AT_A_TIME]
        stale = [key for key, flow in looked_at if self._target(key[0], flow.scope, snapshot) != flow.target]
        if stale:
            self._table.generation += 1
            self._table.drop(stale)
            self._take_out(stale)

    def _target(self, service: str, scope: Scope, snapshot: Snapshot) -> Target | None:
        try:
            route = route_of(scope, service, snapshot, self._functions)
            return target_of(decide(route, snapshot, reading=True), self._peers.is_up)
        except CheopsError:
            return None
