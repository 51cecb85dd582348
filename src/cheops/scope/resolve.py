"""R: from scope and service to a route, given what the site knows. A pure function.

Two steps. `expand` replaces every function by the location it stands for, so that only operators are
left. Then the operators mean:

    a ; b          the alternatives of a, then those of b
    a & b          replicas at both; over alternatives it distributes: (a ; b) & c is a & c ; b & c
    a % b          one resource in parts; distributes over alternatives in the same way
    strong(a & b)  the same replicas with that level

Invariants: every site of a route is known and has the service; no site is named twice in one
set of replicas; alternatives that cannot work now come after those that can, otherwise the written
order stands. Nothing is dropped because it looks dead: that knowledge may be stale.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import product
from math import prod

from cheops.scope.builtin import BUILTIN
from cheops.scope.errors import ScopeResolutionError, find_name
from cheops.scope.functions import Context, Functions, Kind
from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import (
    Across,
    And,
    At,
    Call,
    Consistency,
    Duration,
    Leveled,
    Location,
    Otherwise,
    Scope,
    sites_in,
)
from cheops.text import listed, nearest

MAX_ALTERNATIVES = 1_024
_MAX_EXPANSIONS = 16  # functions that expand to functions


def resolve(scope: Scope, service: str | None, snapshot: Snapshot, functions: Functions = BUILTIN) -> Route:
    """Where a request to a service is executed."""
    context = Context(service, snapshot)
    return route(expand(location_for(scope, context), context, functions), context)


def location_for(scope: Scope, context: Context) -> Location:
    """What the scope says of a service, all its names checked; one that it does not name stays here."""
    check_names(scope, context)
    location = scope.location_of(context.service)
    if location is not None:
        return location
    if context.service is not None and context.snapshot.here is not None:
        return At(context.snapshot.here)
    what = f"service '{context.service}'" if context.service else "a request"
    raise ScopeResolutionError(
        f"'{scope}' does not say where {what} goes",
        hint=f"It names: {listed(str(binding.service) for binding in scope.bindings)}.",
    )


def route(location: Location, context: Context) -> Route:
    """The route of a location that holds operators only (see `expand`)."""
    alternatives = tuple(dict.fromkeys(_alternatives(location, context)))
    if len(alternatives) == 1:
        return alternatives[0]
    return Fallback(tuple(sorted(alternatives, key=lambda one: not works_now(one, context.snapshot))))


def works_now(direct: Direct, snapshot: Snapshot) -> bool:
    """Whether enough of its sites are up, as far as we know, for a write to succeed."""
    up = sum(map(snapshot.is_up, direct.sites))
    match direct:
        case One():
            return up == 1
        case Replicas(sites, Consistency.ATOMIC):
            return up == len(sites)
        case Replicas(_, Consistency.STRONG):
            return up >= direct.majority
        case Replicas():
            return up > 0
        case Cross(parts):
            return all(works_now(part, snapshot) for part in parts)


def expand(location: Location, context: Context, functions: Functions = BUILTIN, depth: int = 0) -> Location:
    """The same location with every function replaced by what it stands for."""
    match location:
        case At():
            return location
        case And(parts) | Across(parts) | Otherwise(parts):
            return type(location)(tuple(expand(part, context, functions, depth) for part in parts))
        case Leveled(level, inner):
            return Leveled(level, expand(inner, context, functions, depth))
        case Call():
            return _expand_call(location, context, functions, depth)


def _expand_call(call: Call, context: Context, functions: Functions, depth: int) -> Location:
    function = functions.get(call.function)
    if function is None:
        raise ScopeResolutionError(f"unknown function '{call.function}'")
    if depth == _MAX_EXPANSIONS:
        raise ScopeResolutionError(f"'{function.name}' expands to functions again and again, without an end")
    arguments = [
        argument if isinstance(argument, Duration) else expand(argument, context, functions, depth)
        for argument in call.arguments
    ]
    for parameter, argument in zip(function.parameters, arguments, strict=True):
        if parameter.kind is Kind.SITE and not isinstance(argument, At):
            raise ScopeResolutionError(
                f"the {parameter.name} in {function.signature} is one site, and '{argument}' is not"
            )
    return expand(function.expand(context, *arguments), context, functions, depth + 1)


def _alternatives(location: Location, context: Context) -> list[Direct]:
    match location:
        case At(site):
            return [_one(site, context)]
        case Otherwise(parts):
            return _limited([one for part in parts for one in _alternatives(part, context)], location)
        case And(parts):
            _refuse_partial_level(parts, location)
            return _combined(parts, location, context, _replicas)
        case Across(parts):
            return _combined(parts, location, context, _cross)
        case Leveled(level, inner):
            return [_with_level(one, level, location) for one in _alternatives(inner, context)]
        case Call():
            raise AssertionError("expand leaves no function behind")


def _one(site: str, context: Context) -> One:
    service = context.service
    if service is not None and service not in context.snapshot.sites[site].services:
        offering = (other.name for other in context.snapshot.offering(service))
        raise ScopeResolutionError(
            f"site '{site}' has no service '{service}'", hint=f"It is at: {listed(offering)}."
        )
    return One(site)


def _combined(
    parts: tuple[Location, ...],
    location: Location,
    context: Context,
    combine: Callable[[tuple[Direct, ...], Location], Direct],
) -> list[Direct]:
    choices = [_alternatives(part, context) for part in parts]
    if prod(map(len, choices)) > MAX_ALTERNATIVES:
        raise _too_many(location)
    return [combine(chosen, location) for chosen in product(*choices)]


def _replicas(chosen: tuple[Direct, ...], location: Location) -> Direct:
    if any(isinstance(part, Cross) for part in chosen):
        raise ScopeResolutionError(
            f"'{location}' replicates a resource that spans sites, which is not possible",
            hint="Replicate its parts instead: (a & b) % (c & d).",
        )
    sites = tuple(dict.fromkeys(site for part in chosen for site in part.sites))
    return One(sites[0]) if len(sites) == 1 else Replicas(sites)


def _refuse_partial_level(parts: tuple[Location, ...], location: Location) -> None:
    """`strong(a & b) & c` would leave open how c is kept equal to the others."""
    for part in parts:
        match part:
            case Leveled(level, _):
                raise ScopeResolutionError(
                    f"'{location}' gives a level to some of its replicas only",
                    hint=f"Put it around the whole replication: {level}(a & b & c).",
                )
            case Otherwise(inner):
                _refuse_partial_level(inner, location)


def _cross(chosen: tuple[Direct, ...], _location: Location) -> Direct:
    nested = ((part.parts if isinstance(part, Cross) else (part,)) for part in chosen)
    parts = tuple(dict.fromkeys(part for group in nested for part in group))
    return parts[0] if len(parts) == 1 else Cross(parts)


def _with_level(direct: Direct, level: Consistency, location: Location) -> Direct:
    match direct:
        case Replicas(sites):
            return Replicas(sites, level)
        case One():
            return direct
        case Cross():
            raise ScopeResolutionError(f"'{location}': only replicas have a level, not a spanning resource")


def _limited(alternatives: list[Direct], location: Location) -> list[Direct]:
    if len(alternatives) > MAX_ALTERNATIVES:
        raise _too_many(location)
    return alternatives


def _too_many(location: Location) -> ScopeResolutionError:
    shown = f"{str(location)[:60]}…"
    return ScopeResolutionError(f"'{shown}' has more than {MAX_ALTERNATIVES:,} alternatives")


def check_names(scope: Scope, context: Context) -> None:
    """Refuse a scope that names an unknown site or service anywhere, also for another service:
    a typo must not show half-way through a workflow."""
    services, sites = context.snapshot.services, context.snapshot.sites.keys()
    for service in (context.service, *(binding.service for binding in scope.bindings)):
        if service is not None:
            _known(scope, service, services, "service")
    for binding in scope.bindings:
        for site in sites_in(binding.location):
            _known(scope, site, sites, "site")


def _known(scope: Scope, name: str, known: AbstractSet[str], what: str) -> None:
    if name in known:
        return
    hint = f"Known {what}s: {listed(known)}."
    words = name.split()
    if len(words) > 1 and all(word in known for word in words):
        hint = f"Is an operator missing, as in '{' & '.join(words)}'? {hint}"
    elif suggestion := nearest(name, known):
        hint = f"Did you mean '{suggestion}'? {hint}"
    place = find_name(str(scope), name, service=what == "service")
    raise ScopeResolutionError(f"unknown {what} '{name}'", place=place, hint=hint)
