"""Everything there is to say about a scope before anything is executed, as data for table, JSON or page."""

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from cheops.scope.builtin import BUILTIN
from cheops.scope.expand import expand
from cheops.scope.functions import Context, Functions
from cheops.scope.methods import Effect, Method, effect
from cheops.scope.reach import in_order, works_now
from cheops.scope.resolve import location_for, route
from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Across, And, Argument, At, Call, Leveled, Location, Nowhere, Otherwise, Scope
from cheops.text import in_words, is_or_are


@dataclass(frozen=True, slots=True)
class InvolvedSite:
    """A site and its part in the route, in the order in which it is turned to."""

    site: str
    role: str
    up: bool
    rtt_ms: float | None


@dataclass(frozen=True, slots=True)
class ServiceExplanation:
    """What the scope means for one service (None: for any, in the bare form)."""

    service: str | None
    location: str
    tree: Location
    means: str  # the location with functions replaced by operators
    route: Route
    sites: tuple[InvolvedSite, ...]
    effects: tuple[Effect, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Explanation:
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


def _explain_service(
    scope: Scope, service: str | None, snapshot: Snapshot, functions: Functions
) -> ServiceExplanation:
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
    """What functions could not find: an alternative that is not there now is passed over, not silently."""
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
