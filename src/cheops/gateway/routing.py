"""Where a request goes, and whether the next target is tried when one fails. Pure.

`handler` calls it with the scope that `request` has parsed, and gives each target of the decision to `dispatcher`.

    Local            this site's own instance
    Forward(site)    the instance of another site, through its gateway
    InTurn(targets)  the first that works, in this order
    Replicate(route) an operation at each of the sites
    Gather(route)    a read of all parts (%), put together

Raises for what cannot be routed: an invalid scope, unknown sites, and what the gateway does not support.
"""

from typing import Literal, TypeAlias

from msgspec import Struct

from cheops.config.request_rules import SAFE_METHODS
from cheops.errors import CheopsError
from cheops.gateway.headers import EFFECT, Headers, RequestHead, is_idempotent
from cheops.gateway.interfaces import NoGatewayError, SiteDownError, UpstreamError, may_have_had_effect
from cheops.scope.errors import ScopeSyntaxError
from cheops.scope.explanation import Method
from cheops.scope.functions import BUILTIN, Functions
from cheops.scope.parser import parse
from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route, in_order, resolve
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Binding, Scope

_METHODS = {
    **dict.fromkeys(SAFE_METHODS, Method.READ),
    "POST": Method.CREATE,
    "DELETE": Method.DELETE,
}


class Local(Struct, frozen=True):
    pass


class Forward(Struct, frozen=True):
    site: str


class Replicate(Struct, frozen=True):
    route: Replicas


class Gather(Struct, frozen=True):
    route: Cross


Target: TypeAlias = Local | Forward | Replicate | Gather


class InTurn(Struct, frozen=True):
    targets: tuple[Target, ...]


Decision: TypeAlias = Target | InTurn


def parse_scope(lines: list[str], service: str, functions: Functions = BUILTIN) -> Scope | None:
    """The scope that the `Scope` headers of a request hold, one character per byte; None for none.

    A bare scope (`site2`) is about the service of this request. It is written out (`{image: site2}`): passed on by
    the application to another service, the bare form would be about that one.
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
        return None  # an empty scope names no service
    scope = parse(text, functions)
    return Scope((Binding(service, scope.bindings[0].location),)) if scope.is_bare else scope


def resolve_route(
    scope: Scope | None, service: str, snapshot: Snapshot, functions: Functions = BUILTIN
) -> Route | None:
    """The route of a request; None if it has no scope, and so stays at this site."""
    return None if scope is None else resolve(scope, service, snapshot, functions)


def decide(route: Route | None, snapshot: Snapshot, *, reading: bool) -> Decision:
    """What to do with a client's request."""
    if route is None:
        return Local()
    if not reading and any(isinstance(one, Cross) for one in _alternatives(route)):
        raise CheopsError(
            "resources that span sites (%) are not implemented; use & to have one at each site, or one site", status=501
        )
    targets = tuple(_target_of(one, snapshot) for one in in_order(route, snapshot, reading=reading))
    return targets[0] if len(targets) == 1 else InTurn(targets)


def decide_forwarded(route: Route | None, here: str, snapshot: Snapshot, *, reading: bool) -> Target:
    """What to do with a request that another gateway forwarded: it is never forwarded again. It becomes an operation
    here if its route has replicas at this site; otherwise this site's own instance serves it."""
    for one in in_order(route, snapshot, reading=reading) if route else ():
        if isinstance(one, Replicas) and here in one.sites:
            return Replicate(one)
    return Local()


def method_of(method: str) -> Method:
    """The effect of an HTTP method, as scope-lang names it."""
    return _METHODS.get(method, Method.UPDATE)


def kind_of(decision: Decision) -> Literal["local", "forward", "in-turn", "replicate", "gather"]:
    """The decision in one word, for counters."""
    match decision:
        case Local():
            return "local"
        case Forward():
            return "forward"
        case Replicate():
            return "replicate"
        case Gather():
            return "gather"
        case InTurn():
            return "in-turn"


def _alternatives(route: Route) -> tuple[Direct, ...]:
    return route.alternatives if isinstance(route, Fallback) else (route,)


def _target_of(direct: Direct, snapshot: Snapshot) -> Target:
    match direct:
        case One(site) if site == snapshot.here:
            return Local()
        case One(site):
            return Forward(site)
        case Replicas():
            return Replicate(direct)
        case Cross():
            return Gather(direct)


_FAILED = (502, 503, 504)
# A server that sends 503 did nothing. After 502 and 504 the server behind a proxy may have run the request.
_REFUSED_FOR_NOW = 503


class RetryState(Struct, frozen=True):
    """What decides whether the next target can be tried."""

    head: RequestHead
    can_restart: bool  # the part of the body that was read is still in memory
    targets_left: int


def may_try_next_after_response(status: int, headers: Headers, target: Target, retry_state: RetryState) -> bool:
    """Whether the next target may be tried after this response. After a 502 or 504 another gateway reports, if it
    knows, that nothing happened (`Cheops-Effect: none`)."""
    if status not in _FAILED or not retry_state.targets_left or not retry_state.can_restart:
        return False
    reports_none = any(name.lower() == EFFECT.lower() and value == "none" for name, value in headers)
    did_nothing = status == _REFUSED_FOR_NOW or (reports_none and isinstance(target, Forward))
    return did_nothing or is_idempotent(retry_state.head)


def may_try_next_after_error(error: CheopsError, target: Target, retry_state: RetryState) -> bool:
    """The same after an error. A request that may have run is sent again only if it is idempotent."""
    if not retry_state.targets_left or not _is_about_the_target(error, target) or not retry_state.can_restart:
        return False
    return not may_have_had_effect(error) or is_idempotent(retry_state.head)


def final_error(error: CheopsError, name: str, failed: list[str], retry_state: RetryState) -> CheopsError:
    """The error with its context: at which site, after which attempts, and why no other target was tried."""
    if not isinstance(error, UpstreamError):
        return error
    before = f" (before that {'; '.join(failed)})" if failed else ""
    elsewhere = ""
    if retry_state.targets_left and not retry_state.can_restart:
        elsewhere = ". No other site was tried: part of its body was sent, and it is too large to keep"
    elif retry_state.targets_left:
        elsewhere = ". No other site was tried: it may have had an effect, and has no Idempotency-Key"
    text = f"{name}: {error}{before}{elsewhere}"
    return UpstreamError(text, error.why, may_have_had_effect=error.may_have_had_effect, status=error.status)


def short_reason(error: CheopsError) -> str:
    """An error in a word or two, without a comma: it becomes an item of a header."""
    match error:
        case UpstreamError():
            return error.why
        case SiteDownError():
            return "down"
        case NoGatewayError():
            return "no gateway"
        case _:
            return str(error.status)


def _is_about_the_target(error: CheopsError, target: Target) -> bool:
    """Whether another target might do better: the error is not about the request itself."""
    if isinstance(error, UpstreamError | SiteDownError | NoGatewayError):
        return True
    return isinstance(target, Replicate | Gather) and error.status in _FAILED
