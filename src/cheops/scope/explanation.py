"""What a scope would do, without executing anything: as values, as sentences, and as plain data for JSON.

For each service: the resolved route, the sites involved, and for each method (read, create, update, delete) which
sites it would reach, its expected latency, and one sentence. Latencies are network round trips from the site that
answers the client, as far as they are known; the application's own time comes on top.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from enum import StrEnum
from typing import Any, assert_never

from msgspec import Struct

from cheops.scope.functions import BUILTIN, Context, Functions, expand
from cheops.scope.names import write_name
from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route, in_order, location_for, route, works_now
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import (
    Across,
    And,
    Argument,
    At,
    Call,
    Consistency,
    Duration,
    Leveled,
    Location,
    Nowhere,
    Otherwise,
    Scope,
)
from cheops.text import in_words, is_or_are

_NO_CHANGES = "is refused: changes of resources that span sites (%) are not implemented"
_SHOWN = 3  # alternatives that are named in a sentence


class Method(StrEnum):
    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


_DONE = {Method.CREATE: "is created", Method.UPDATE: "is updated", Method.DELETE: "is deleted"}


class Effect(Struct, frozen=True):
    """What a method would do: the sites it would reach now, when it would be answered, and a sentence."""

    method: Method
    sites: tuple[str, ...]
    latency_ms: float | None
    does: str


def effect(route: Route, method: Method, snapshot: Snapshot) -> Effect:
    """What a method would do if it came now."""
    if problem := _level_problem(route, method, snapshot):
        return Effect(method, (), None, f"is refused: {problem}")
    match route:
        case One(site):
            return _one(site, method, snapshot)
        case Replicas() if method is Method.READ:
            return _read_replica(route, snapshot)
        case Replicas():
            return _write_replicas(route, method, snapshot)
        case Cross():
            return _cross(route, method, snapshot)
        case Fallback():
            return _fallback(route, method, snapshot)


def _one(site: str, method: Method, snapshot: Snapshot) -> Effect:
    if not snapshot.is_up(site):
        return Effect(method, (), None, f"fails: {site} is down")
    does = "is served here" if site == snapshot.here else f"is sent to {site}"
    return Effect(method, (site,), snapshot.rtt_ms(snapshot.here, site), does)


def _read_replica(route: Replicas, snapshot: Snapshot) -> Effect:
    up, _ = _by_distance(route, snapshot)
    if not up:
        return Effect(Method.READ, (), None, "fails: no replica is up")
    return Effect(Method.READ, up[:1], _slowest(up[:1], snapshot), f"reads the replica {_at(up[0], snapshot)}")


def _write_replicas(route: Replicas, method: Method, snapshot: Snapshot) -> Effect:
    up, down = _by_distance(route, snapshot)
    if not up:
        return Effect(method, (), None, "fails: no site is up")
    first, others = up[0], up[1:]
    then = f", then at {in_words(others)}" if others else ""
    later = f"; at {in_words(down)} when {_pronoun(down)} back" if down else ""
    does = f"{_DONE[method]} {_at(first, snapshot)} first{then}{later}"
    return Effect(method, up, _slowest(up[:1], snapshot), does)


def _level_problem(route: Route, method: Method, snapshot: Snapshot) -> str | None:
    """Why a request is refused because of its level, by what is tried first."""
    match route:
        case One():
            return None
        case Replicas():
            return route.level_problem
        case Cross(parts):
            return next(filter(None, (_level_problem(part, method, snapshot) for part in parts)), None)
        case Fallback():
            first, *_ = in_order(route, snapshot, reading=method is Method.READ)
            return _level_problem(first, method, snapshot)


def _cross(route: Cross, method: Method, snapshot: Snapshot) -> Effect:
    if method is not Method.READ:
        return Effect(method, (), None, _NO_CHANGES)
    parts = [effect(part, method, snapshot) for part in route.parts]
    found = [part for part in parts if part.sites]
    texts = [_text(part) if isinstance(part, One) else f"({_text(part)})" for part in route.parts]
    lacking = [text for text, part in zip(texts, parts, strict=True) if not part.sites]
    if not found:
        return Effect(method, (), None, f"fails: {in_words(lacking)} {is_or_are(lacking)} down")
    sites = tuple(dict.fromkeys(site for part in found for site in part.sites))
    asked = [text for text in texts if text not in lacking]
    does = f"asks {in_words(asked)} at once, and gives one list of all, or the item that one of them has"
    if lacking:
        does = f"asks {in_words(asked)}, and reports that {in_words(lacking)} {is_or_are(lacking)} missing"
    return Effect(method, sites, _greatest([part.latency_ms for part in found]), does)


def _greatest(latencies_ms: list[float | None]) -> float | None:
    known = [ms for ms in latencies_ms if ms is not None]
    return max(known) if len(known) == len(latencies_ms) else None


def _fallback(route: Fallback, method: Method, snapshot: Snapshot) -> Effect:
    if method is not Method.READ and any(isinstance(one, Cross) for one in route.alternatives):
        return Effect(method, (), None, _NO_CHANGES)  # whichever is tried first
    first, *rest = in_order(route, snapshot, reading=method is Method.READ)
    now = effect(first, method, snapshot)
    if not now.sites:
        return Effect(method, (), None, f"fails: none of its {len(route.alternatives)} alternatives works now")
    named = ", else ".join(_text(one) for one in rest[:_SHOWN])
    more = f", else {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
    # A create that may have had an effect is not sent again, because it could create a second resource.
    when = "if it is not reached" if method is Method.CREATE else "if that fails"
    return Effect(method, now.sites, now.latency_ms, f"{now.does}; {when}: {named}{more}")


def _by_distance(route: Replicas, snapshot: Snapshot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sites that are up, nearest first, and those that are down."""

    def distance(site: str) -> float:
        rtt_ms = snapshot.rtt_ms(snapshot.here, site)
        return float("inf") if rtt_ms is None else rtt_ms

    up = tuple(sorted(filter(snapshot.is_up, route.sites), key=distance))
    return up, tuple(site for site in route.sites if site not in up)


def _slowest(sites: Iterable[str], snapshot: Snapshot) -> float | None:
    slowest = 0.0
    for site in sites:
        rtt_ms = snapshot.rtt_ms(snapshot.here, site)
        if rtt_ms is None:
            return None
        slowest = max(slowest, rtt_ms)
    return slowest


def _text(direct: Direct) -> str:
    """A route as the scope that would give it."""
    match direct:
        case One(site):
            return write_name(site)
        case Replicas(sites, consistency):
            text = " & ".join(map(write_name, sites))
            return text if consistency is Consistency.EVENTUAL else f"{consistency}({text})"
        case Cross(parts):
            return " % ".join(_text(part) for part in parts)


def _at(site: str, snapshot: Snapshot) -> str:
    return "here" if site == snapshot.here else f"at {site}"


def _pronoun(names: tuple[str, ...]) -> str:
    return "it is" if len(names) == 1 else "they are"


class InvolvedSite(Struct, frozen=True):
    """A site and its part in the route, in the order in which sites are tried."""

    site: str
    role: str
    up: bool
    rtt_ms: float | None


class ServiceExplanation(Struct, frozen=True):
    """What the scope means for one service (None: for any, in the bare form)."""

    service: str | None
    location: str
    tree: Location
    means: str  # the location with functions replaced by operators
    route: Route
    sites: tuple[InvolvedSite, ...]
    effects: tuple[Effect, ...]
    notes: tuple[str, ...]


class Explanation(Struct, frozen=True):
    scope: str
    here: str | None
    services: tuple[ServiceExplanation, ...]


def explain(
    scope: Scope, snapshot: Snapshot, service: str | None = None, functions: Functions = BUILTIN
) -> Explanation:
    """Explain a scope for one service, or for each service that it names."""
    services = (service,) if service or scope.is_bare else tuple(b.service for b in scope.bindings)
    explained = tuple(_explain_service(scope, one, snapshot, functions) for one in services)
    return Explanation(str(scope), snapshot.here, explained)


def _explain_service(scope: Scope, service: str | None, snapshot: Snapshot, functions: Functions) -> ServiceExplanation:
    context = Context(service, snapshot)
    location = location_for(scope, context)
    means = expand(location, context, functions)
    resolved = route(means, context)
    notes = [*_notes(means, resolved, snapshot), *_expansion_notes(location, context, functions)]
    if scope.location_of(service) is None:
        notes.append(f"The scope does not name {service}: its requests stay here.")
    return ServiceExplanation(
        service,
        str(location),
        location,
        str(means),
        resolved,
        tuple(
            InvolvedSite(site, role, snapshot.is_up(site), snapshot.rtt_ms(snapshot.here, site))
            for site, role in _roles(resolved, snapshot)
        ),
        tuple(effect(resolved, method, snapshot) for method in Method),
        tuple(notes),
    )


def _roles(resolved: Route, snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    if not isinstance(resolved, Fallback):
        yield from _direct_roles(resolved)
        return
    for number, alternative in enumerate(in_order(resolved, snapshot, reading=False), 1):
        for site, role in _direct_roles(alternative):
            yield site, f"choice {number}" if isinstance(alternative, One) else f"choice {number}: {role}"


def _direct_roles(direct: Direct) -> Iterator[tuple[str, str]]:
    match direct:
        case One(site):
            yield site, "executes"
        case Replicas(sites):
            for site in sites:
                yield site, "replica"
        case Cross(parts):
            for number, part in enumerate(parts, 1):
                for site, role in _direct_roles(part):
                    yield site, f"part {number}" if isinstance(part, One) else f"part {number}: {role}"


def _notes(means: Location, resolved: Route, snapshot: Snapshot) -> Iterator[str]:
    for site in dict.fromkeys(_named_twice(means)):
        yield f"{site} is named twice: it gets one part."
    if isinstance(resolved, Fallback):
        last = [a for a in resolved.alternatives if not works_now(a, snapshot, reading=False)]
        if last and len(last) < len(resolved.alternatives):
            sites = dict.fromkeys(s for a in last for s in a.sites if not snapshot.is_up(s))
            yield f"{in_words(sites)} {is_or_are(sites)} down: what needs {_them(sites)} is tried last."


def _them(sites: Collection[str]) -> str:
    return "it" if len(sites) == 1 else "them"


def _expansion_notes(location: Location, context: Context, functions: Functions) -> Iterator[str]:
    """Calls that expand to nothing now: their alternative is left out, and the user should see that."""
    calls = list(_calls(location))
    for call in calls:
        if isinstance(expanded := expand(call, context, functions), Nowhere):
            yield f"{call}: {expanded.why}. {expanded.hint}".strip()
    if calls and not context.snapshot.rtts_ms:
        yield "No round-trip times are known: functions such as around find no neighbours."


def _calls(node: Argument) -> Iterator[Call]:
    match node:
        case Call():
            yield node
        case And(parts) | Across(parts) | Otherwise(parts):
            for part in parts:
                yield from _calls(part)


def _named_twice(location: Location) -> Iterator[str]:
    match location:
        case And(parts) | Across(parts):
            named = Counter(part.site for part in parts if isinstance(part, At))
            yield from (site for site, times in named.items() if times > 1)
            for part in parts:
                yield from _named_twice(part)
        case Otherwise(parts):
            for part in parts:
                yield from _named_twice(part)
        case Leveled(_, inner):
            yield from _named_twice(inner)


Data = dict[str, Any]

_KINDS = {And: "replication", Across: "cross", Otherwise: "otherwise"}


def scope_data(scope: Scope) -> Data:
    return {
        "canonical": str(scope),
        "bindings": [{"service": b.service, "location": node_data(b.location)} for b in scope.bindings],
    }


def node_data(node: Argument) -> Data:
    match node:
        case At(site):
            return {"kind": "site", "site": site}
        case And(parts) | Across(parts) | Otherwise(parts):
            return {"kind": _KINDS[type(node)], "parts": [node_data(part) for part in parts]}
        case Call(function, arguments):
            return {"kind": "call", "function": function, "arguments": [node_data(a) for a in arguments]}
        case Leveled(level, location):
            return {"kind": "level", "level": level.value, "location": node_data(location)}
        case Duration():
            return {"kind": "duration", "ms": node.ms}
        case Nowhere(why):
            return {"kind": "nowhere", "why": why}
        case _:
            assert_never(node)


def route_data(route: Route) -> Data:
    match route:
        case One(site):
            return {"kind": "one", "site": site}
        case Replicas(sites, consistency):
            return {"kind": "replicas", "sites": list(sites), "consistency": consistency.value}
        case Cross(parts):
            return {"kind": "cross", "parts": [route_data(part) for part in parts]}
        case Fallback(alternatives):
            return {"kind": "fallback", "alternatives": [route_data(one) for one in alternatives]}
        case _:
            assert_never(route)


def explanation_data(explanation: Explanation) -> Data:
    return {
        "scope": explanation.scope,
        "here": explanation.here,
        "services": [_service_data(service) for service in explanation.services],
    }


def _service_data(service: ServiceExplanation) -> Data:
    return {
        "service": service.service,
        "location": service.location,
        "tree": node_data(service.tree),
        "means": service.means,
        "route": route_data(service.route),
        "sites": [{"site": s.site, "role": s.role, "up": s.up, "rtt_ms": s.rtt_ms} for s in service.sites],
        "methods": [
            {"method": e.method.value, "sites": list(e.sites), "latency_ms": e.latency_ms, "does": e.does}
            for e in service.effects
        ],
        "notes": list(service.notes),
    }
