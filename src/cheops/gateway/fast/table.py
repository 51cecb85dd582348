"""Which flows are installed, and which may be. Pure.

The table is bounded: the least recently used leave. Every change that could alter a route raises the
generation, and what was decided before is not installed after it.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice

from cheops.gateway.carriers import Recovered
from cheops.gateway.routing import Decision, Forward, InTurn, Local, Replicate
from cheops.scope.tree import Scope


class Kind(StrEnum):
    LOCAL = "local"
    FORWARD = "forward"
    IN_TURN = "in-turn"


@dataclass(frozen=True, slots=True)
class News:
    """What a request told that others may have in common with it."""

    service: str
    sent: str  # the text of its scope
    scope: Scope
    recovered: Recovered | None = None  # how its scope was found, where it had none


@dataclass(frozen=True, slots=True)
class Target:
    """Who is asked first, and whether another follows where that fails."""

    kind: Kind
    site: str | None  # None: this site's own instance


@dataclass(frozen=True, slots=True)
class Flow:
    """What becomes of requests to a service with a scope. `sites` are all on which it depends."""

    target: Target
    scope: Scope
    sites: frozenset[str]
    is_varying: bool = False  # it may change while everybody stays up


def flow_of(target: Target, scope: Scope, decision: Decision, here: str) -> Flow:
    """Only functions go by distances, and only they (and groups, which cost little to look at again) have
    parentheses."""
    return Flow(target, scope, sites_of(decision, here), is_varying="(" in str(scope))


def target_of(decision: Decision, is_up: Callable[[str], bool]) -> Target | None:
    """What the fast path does for a decision; None where it needs the agent every time."""
    is_in_turn = isinstance(decision, InTurn)
    first = decision.choices[0] if isinstance(decision, InTurn) else decision
    match first:
        case Local():
            return Target(Kind.IN_TURN if is_in_turn else Kind.LOCAL, None)
        case Forward(site) if is_up(site):
            return Target(Kind.IN_TURN if is_in_turn else Kind.FORWARD, site)
        case _:
            return None


def sites_of(decision: Decision, here: str) -> frozenset[str]:
    """All sites on which it depends."""
    found: set[str] = set()
    for one in decision.choices if isinstance(decision, InTurn) else (decision,):
        match one:
            case Local():
                found.add(here)
            case Forward(site):
                found.add(site)
            case Replicate(route):
                found.update(route.sites)
    return frozenset(found)


Key = tuple[str, str]  # of a service, and of a scope


class FlowTable:
    """All flows, the least recently used first."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._flows: OrderedDict[Key, Flow] = OrderedDict()
        self._varying: dict[Key, Flow] = {}
        self.generation = 0

    def __len__(self) -> int:
        return len(self._flows)

    @property
    def is_full(self) -> bool:
        return len(self._flows) >= self._most

    @property
    def varying(self) -> list[tuple[Key, Flow]]:
        return list(self._varying.items())

    def items(self) -> Iterator[tuple[Key, Flow]]:
        return iter(self._flows.items())

    def of(self, service: str) -> list[tuple[str, Flow]]:
        return [(key, flow) for (owner, key), flow in self._flows.items() if owner == service]

    def get(self, service: str, key: str) -> Flow | None:
        return self._flows.get((service, key))

    def used(self, service: str, key: str) -> None:
        """It was seen in use."""
        if (service, key) in self._flows:
            self._flows.move_to_end((service, key))

    def install(self, service: str, key: str, flow: Flow, generation: int) -> list[Key] | None:
        """Those that make room for it; None where it was decided before something changed."""
        if generation != self.generation:
            return None
        self._flows[service, key] = flow
        self._flows.move_to_end((service, key))
        self._varying.pop((service, key), None)
        if flow.is_varying:
            self._varying[service, key] = flow
        left = list(islice(self._flows, max(len(self._flows) - self._most, 0)))
        self.drop(left)
        return left

    def withdraw(self, concerned: Callable[[str, Flow], bool]) -> list[Key]:
        """Take out what a change concerns. What is being decided now is not installed, whatever it is."""
        self.generation += 1
        gone = [key for key, flow in self._flows.items() if concerned(key[0], flow)]
        self.drop(gone)
        return gone

    def drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            self._flows.pop(key, None)
            self._varying.pop(key, None)
