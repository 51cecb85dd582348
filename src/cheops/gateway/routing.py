"""Where a request goes: its scope, the service it is for, and what this site knows. Pure.

    Local            this site's own instance
    Forward(site)    the instance of another site, by way of its gateway
    InTurn(choices)  the first that works, in this order
    Replicate(route) an operation at each of the sites

What cannot be is raised: a scope that is none, sites that nobody knows, and what does not exist yet.
"""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from cheops.errors import CheopsError, Fault
from cheops.scope.builtin import BUILTIN
from cheops.scope.errors import ScopeSyntaxError
from cheops.scope.functions import Functions
from cheops.scope.methods import Method
from cheops.scope.parse import parse
from cheops.scope.reach import in_order
from cheops.scope.resolve import resolve
from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Binding, Scope

_METHODS = {
    "GET": Method.READ,
    "HEAD": Method.READ,
    "OPTIONS": Method.READ,
    "TRACE": Method.READ,
    **dict.fromkeys(("PROPFIND", "REPORT", "SEARCH", "QUERY"), Method.READ),
    "POST": Method.CREATE,
    "DELETE": Method.DELETE,
}


class NotThereYetError(CheopsError):
    """Something that scope-lang can say, and the gateway cannot do."""

    fault = Fault.US
    status = 501


@dataclass(frozen=True, slots=True)
class Local:
    pass


@dataclass(frozen=True, slots=True)
class Forward:
    site: str


@dataclass(frozen=True, slots=True)
class Replicate:
    route: Replicas


Choice: TypeAlias = Local | Forward | Replicate


@dataclass(frozen=True, slots=True)
class InTurn:
    choices: tuple[Choice, ...]


Decision: TypeAlias = Choice | InTurn


def scope_of(lines: list[str], service: str, functions: Functions = BUILTIN) -> Scope | None:
    """The scope that the `Scope` headers of a request hold, one character per byte; None for none.

    The bare form speaks of the service that is asked, and is written out: it must not come to mean another
    service where the application passes it on.
    """
    if not lines:
        return None
    if len(lines) > 1:
        raise ScopeSyntaxError(f"the header Scope is given {len(lines)} times; a request has one scope")
    try:
        text = lines[0].encode("latin-1").decode()
    except UnicodeDecodeError:
        raise ScopeSyntaxError("the header Scope is not UTF-8 text") from None
    if not text.strip():
        return None  # it names no service, so it moves none
    scope = parse(text, functions)
    return Scope((Binding(service, scope.bindings[0].location),)) if scope.is_bare else scope


def route_of(
    scope: Scope | None, service: str, snapshot: Snapshot, functions: Functions = BUILTIN
) -> Route | None:
    """The route of a request; None where nothing says that it should leave this site."""
    return None if scope is None else resolve(scope, service, snapshot, functions)


def decide(route: Route | None, snapshot: Snapshot, *, reading: bool) -> Decision:
    """What to do with a request that a client sent."""
    if route is None:
        return Local()
    if any(isinstance(one, Cross) for one in _alternatives(route)):
        raise NotThereYetError(
            "resources that span sites (%) do not exist yet; use & to have one at each site, or one site"
        )
    choices = tuple(_choice(one, snapshot) for one in in_order(route, snapshot, reading=reading))
    return choices[0] if len(choices) == 1 else InTurn(choices)


def decide_forwarded(route: Route | None, here: str, snapshot: Snapshot, *, reading: bool) -> Choice:
    """What to do with what another site's replicating half sent: it goes no further, but here it may become
    an operation for other sites."""
    for one in in_order(route, snapshot, reading=reading) if route else ():
        if isinstance(one, Replicas) and here in one.sites:
            return Replicate(one)
    return Local()


def method_of(method: str) -> Method:
    """What an HTTP method does, in the words of scope-lang."""
    return _METHODS.get(method, Method.UPDATE)


def kind_of(decision: Decision) -> Literal["local", "forward", "in-turn", "replicate"]:
    """One word, for counting."""
    match decision:
        case Local():
            return "local"
        case Forward():
            return "forward"
        case Replicate():
            return "replicate"
        case InTurn():
            return "in-turn"


def _alternatives(route: Route) -> tuple[Direct, ...]:
    return route.alternatives if isinstance(route, Fallback) else (route,)


def _choice(direct: Direct, snapshot: Snapshot) -> Choice:
    match direct:
        case One(site) if site == snapshot.here:
            return Local()
        case One(site):
            return Forward(site)
        case Replicas():
            return Replicate(direct)
        case Cross():
            raise AssertionError("refused before")
