"""Flows: which are installed, what HAProxy's maps hold for them, and which a change of routes withdraws.

The table is bounded, and clients choose what is in it: each spelling of a scope is a flow. So a client that makes up
ever new ones pushes out its own flows, not those of others: when the table is full, the client with the most flows
loses its least recently used one, and of one scope only some spellings are kept. Every change that could alter a route
raises the generation, and a decision made before it is not installed after it.
"""

import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from enum import StrEnum
from ipaddress import IPv6Address
from itertools import takewhile

from msgspec import Struct

from cheops.errors import CheopsError
from cheops.gateway.carriers import RecoveredScope
from cheops.gateway.haproxy import layout as haproxy_names
from cheops.gateway.headers import encode_header, encode_name
from cheops.gateway.peers import PeerGateways
from cheops.gateway.routing import Decision, Forward, Gather, InTurn, Local, Replicate, decide, resolve_route
from cheops.node.node import Node
from cheops.scope.functions import Functions
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Scope


class FlowKind(StrEnum):
    LOCAL = "local"
    FORWARD = "forward"
    IN_TURN = "in-turn"


class FlowCandidate(Struct, frozen=True):
    """The part of a request that later requests may share."""

    service: str
    sent: str  # its Scope header, as sent
    scope: Scope
    recovered: RecoveredScope | None = None  # the carriers that gave its scope, if it had no Scope header
    client: str = ""  # the address that sent it


class FlowTarget(Struct, frozen=True):
    """Where a request is sent first, and whether another target follows if that fails."""

    kind: FlowKind
    site: str | None  # None: this site's own instance


class Flow(Struct, frozen=True):
    """Where requests with a scope go. `sites` are all on which that depends."""

    target: FlowTarget
    scope: Scope
    sites: frozenset[str]
    is_varying: bool = False  # it may change while all sites stay up


def make_flow(target: FlowTarget, scope: Scope, decision: Decision, here: str) -> Flow:
    """The flow of a scope, with all sites on which its decision depends.

    The result of a function such as `around` depends on distances, so it may change while all sites stay up. A scope
    with a parenthesis is taken for one with a function; it may be a mere group, but to check that again costs little.
    """
    return Flow(target, scope, sites_of(decision, here), is_varying="(" in str(scope))


def flow_target(decision: Decision, is_up: Callable[[str], bool]) -> FlowTarget | None:
    """What HAProxy does for a decision; None if the agent must serve every request."""
    is_in_turn = isinstance(decision, InTurn)
    first = decision.targets[0] if isinstance(decision, InTurn) else decision
    match first:
        case Local():
            return FlowTarget(FlowKind.IN_TURN if is_in_turn else FlowKind.LOCAL, None)
        case Forward(site) if is_up(site):
            return FlowTarget(FlowKind.IN_TURN if is_in_turn else FlowKind.FORWARD, site)
        case _:
            return None


def sites_of(decision: Decision, here: str) -> frozenset[str]:
    """All sites on which a decision depends."""
    found: set[str] = set()
    for one in decision.targets if isinstance(decision, InTurn) else (decision,):
        match one:
            case Local():
                found.add(here)
            case Forward(site):
                found.add(site)
            case Replicate(route) | Gather(route):
                found.update(route.sites)
    return frozenset(found)


FlowKey = tuple[str, str]  # service, and encoded scope
MAX_SPELLINGS = 8  # of one scope; programs use one or two
_NETWORK_BITS = 64  # of an IPv6 address: one machine may use all addresses of such a network


class FlowOwners:
    """Whose flows there are: for each client its own, the least recently used first."""

    def __init__(self) -> None:
        self._owner_of: dict[FlowKey, str] = {}
        self._flows: dict[str, OrderedDict[FlowKey, None]] = {}
        self._by_count: dict[int, OrderedDict[str, None]] = {}  # clients with so many flows
        self._most = 0

    def add(self, key: FlowKey, client: str) -> None:
        owner = owner_of(client)
        if self._owner_of.get(key, owner) != owner:
            self.remove(key)
        before = len(self._flows.get(owner, ()))
        self._owner_of[key] = owner
        own = self._flows.setdefault(owner, OrderedDict())
        own[key] = None
        own.move_to_end(key)
        self._count(owner, before, len(own))

    def used(self, key: FlowKey) -> None:
        self.add(key, self._owner_of[key])

    def remove(self, key: FlowKey) -> None:
        if (owner := self._owner_of.pop(key, None)) is None:
            return
        own = self._flows[owner]
        del own[key]
        self._count(owner, len(own) + 1, len(own))
        if not own:
            del self._flows[owner]

    def victim(self) -> FlowKey:
        """The least recently used flow of the client that has the most."""
        return next(iter(self._flows[next(iter(self._by_count[self._most]))]))

    def victim_among(self, keys: Collection[FlowKey]) -> FlowKey:
        """The first of these flows whose client has the most of them."""
        counts = Counter(self._owner_of[key] for key in keys)
        return max(keys, key=lambda key: counts[self._owner_of[key]])

    def _count(self, owner: str, before: int, now: int) -> None:
        if before and (others := self._by_count[before]):
            del others[owner]
            if not others:
                del self._by_count[before]
        if now:
            self._by_count.setdefault(now, OrderedDict())[owner] = None
        # A count changes by at most one, so the next lower one has a client if the highest has none any more.
        self._most = max(self._most, now) if self._most in self._by_count else now


def owner_of(client: str) -> str:
    """An address, or the network that one IPv6 machine may choose its addresses from."""
    if ":" not in client or "." in client:
        return client
    try:
        number = int(IPv6Address(client.partition("%")[0]))
    except ValueError:
        return client
    return str(IPv6Address(number >> _NETWORK_BITS << _NETWORK_BITS))


class FlowTable:
    """All flows, the least recently used first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._flows: OrderedDict[FlowKey, Flow] = OrderedDict()
        self._owners = FlowOwners()
        self._spellings: dict[FlowKey, OrderedDict[FlowKey, None]] = {}  # by service and scope
        self._varying: dict[FlowKey, float] = {}  # when each was installed, the oldest first
        self.generation = 0

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def is_full(self) -> bool:
        return len(self._flows) >= self._most

    @property
    def varying(self) -> list[FlowKey]:
        return list(self._varying)

    def varying_until(self, installed_s: float) -> list[FlowKey]:
        """Those installed up to then. Costs as much as there are."""
        return [key for key, _ in takewhile(lambda one: one[1] <= installed_s, self._varying.items())]

    def items(self) -> Iterator[tuple[FlowKey, Flow]]:
        return iter(self._flows.items())

    def of(self, service: str) -> list[tuple[str, Flow]]:
        return [(key, flow) for (owner, key), flow in self._flows.items() if owner == service]

    def get(self, service: str, key: str) -> Flow | None:
        return self._flows.get((service, key))

    def used(self, service: str, key: str) -> None:
        """Mark a flow as recently used."""
        if (service, key) in self._flows:
            self._flows.move_to_end((service, key))
            self._owners.used((service, key))

    def install(  # noqa: PLR0913, PLR0917 - what a flow is, and whose
        self, service: str, key: str, flow: Flow, generation: int, client: str = "", now_s: float = 0.0
    ) -> list[FlowKey] | None:
        """The flows that were evicted for it; None if its decision is outdated."""
        if generation != self.generation:
            return None
        self._forget_spelling((service, key))
        spellings = self._spellings.setdefault((service, str(flow.scope)), OrderedDict())
        spellings[service, key] = None
        self._owners.add((service, key), client)
        self._flows[service, key] = flow
        self._flows.move_to_end((service, key))
        self._varying.pop((service, key), None)
        if flow.is_varying:
            self._varying[service, key] = now_s
        left = [self._owners.victim_among(spellings)] if len(spellings) > MAX_SPELLINGS else []
        self.drop(left)
        while len(self._flows) > self._most:
            left.append(self._owners.victim())
            self.drop(left[-1:])
        return left

    def withdraw(self, concerned: Callable[[str, Flow], bool]) -> list[FlowKey]:
        """Remove the flows that a change concerns. Decisions in progress will not be installed."""
        self.generation += 1
        gone = [key for key, flow in self._flows.items() if concerned(key[0], flow)]
        self.drop(gone)
        return gone

    def drop(self, keys: Iterable[FlowKey]) -> None:
        for key in keys:
            self._forget_spelling(key)
            self._owners.remove(key)
            self._flows.pop(key, None)
            self._varying.pop(key, None)

    def _forget_spelling(self, key: FlowKey) -> None:
        if (flow := self._flows.get(key)) is None:
            return
        scope = (key[0], str(flow.scope))
        spellings = self._spellings[scope]
        del spellings[key]
        if not spellings:
            del self._spellings[scope]


Entry = tuple[str, str]


def flow_entries(service: str, flows: Iterable[tuple[str, Flow]], allowed: str | None) -> Iterator[Entry]:
    """Entries of a service's map: one for requests without a scope, and its flows."""
    if allowed is not None:
        yield haproxy_names.LOCAL_KEY, haproxy_names.value_of(haproxy_names.own_of(service), flags=allowed)
    for key, flow in flows:
        if (value := flow_value(service, key, flow, allowed)) is not None:
            yield key, value


def flow_value(service: str, key: str, flow: Flow, allowed: str | None) -> str | None:
    target, flags = flow.target, ""
    if target.site is None:
        if allowed is None:
            return None
        flags = allowed
        backend = (haproxy_names.own_of if target.kind is FlowKind.LOCAL else haproxy_names.own_or_of)(service)
    else:
        name_of = haproxy_names.peer_of if target.kind is FlowKind.FORWARD else haproxy_names.peer_or_of
        backend = name_of(service, target.site)
    text = encode_header(str(flow.scope))
    return haproxy_names.value_of(backend, "" if haproxy_names.key_of(text) == key else text, flags)


def service_entries(flags: Mapping[str, str | None]) -> Iterator[Entry]:
    """Services whose requests from other gateways the agent need not see."""
    for service, allowed in flags.items():
        if allowed is not None:
            yield encode_name(service), haproxy_names.value_of(haproxy_names.sent_of(service), flags=allowed)


_AT_A_TIME = 100  # flows that are decided again in one refresh
# A flow that depends on distances is decided again after each measurement. So it leaves after this time, used or
# not: HAProxy does not report each use, and flows that nobody uses any more would keep the agent busy for good.
VARYING_S = 30.0


class RouteWatch:
    """Withdraws flows whose routes may have changed; `take_out` removes them from HAProxy."""

    def __init__(
        self,
        node: Node,
        functions: Functions,
        peers: PeerGateways,
        table: FlowTable,
        take_out: Callable[[list[FlowKey]], None],
    ) -> None:
        self._node = node
        self._functions = functions
        self._peers = peers
        self._table = table
        self._take_out = take_out
        self._known: dict[str, object] = {}
        self._examined: Snapshot | None = None  # what was known when all varying flows were last due
        self._due: deque[FlowKey] = deque()  # varying flows that are still to be decided again

    def begin(self) -> None:
        """Record the current state when the first flow is installed; later differences are changes."""
        self._known = self._fingerprints()

    def refresh(self) -> None:
        """Withdraw the flows of all that has changed since the last call. Without flows it costs nothing."""
        if not len(self._table):
            return
        now = self._fingerprints()
        if now.keys() != self._known.keys():
            self._take_out(self._table.withdraw(lambda _service, _flow: True))
        else:
            changed = {site for site, state in now.items() if state != self._known[site]}
            if changed:
                self.withdraw_of(changed)
        self._known = now
        self._refresh_varying()

    def withdraw_of(self, sites: set[str]) -> None:
        def is_concerned(_service: str, flow: Flow) -> bool:
            return flow.is_varying or not sites.isdisjoint(flow.sites)

        self._take_out(self._table.withdraw(is_concerned))

    def _fingerprints(self) -> dict[str, object]:
        """For each site, everything that a route may depend on, except distances."""
        snapshot = self._node.snapshot()
        return {
            name: (info.up, info.has_reported, info.services, self._addresses(name))
            for name, info in snapshot.sites.items()
        }

    def _addresses(self, site: str) -> object:
        entry = self._node.mesh.entry_of(site)
        return entry.services if entry else None

    def _refresh_varying(self) -> None:
        """Withdraw the old ones of those that depend on distances, and decide the others again, some at a time."""
        self._remove(self._table.varying_until(time.monotonic() - VARYING_S))
        snapshot = self._node.snapshot()
        if not self._due:
            if snapshot is self._examined:
                return  # nothing was measured since
            self._examined, self._due = snapshot, deque(self._table.varying)
        stale = [key for key in self._next_due() if self._is_stale(key, snapshot)]
        if stale:
            self._table.generation += 1
            self._remove(stale)

    def _next_due(self) -> Iterator[FlowKey]:
        for _ in range(min(_AT_A_TIME, len(self._due))):
            yield self._due.popleft()

    def _is_stale(self, key: FlowKey, snapshot: Snapshot) -> bool:
        flow = self._table.get(*key)
        return flow is not None and self._target(key[0], flow.scope, snapshot) != flow.target

    def _remove(self, keys: list[FlowKey]) -> None:
        if keys:
            self._table.drop(keys)
            self._take_out(keys)

    def _target(self, service: str, scope: Scope, snapshot: Snapshot) -> FlowTarget | None:
        try:
            route = resolve_route(scope, service, snapshot, self._functions)
            return flow_target(decide(route, snapshot, reading=True), self._peers.is_up)
        except CheopsError:
            return None
