"""Routes: what a scope means for one service, in terms of sites.

    One(site)                     at one site
    Replicas(sites, consistency)  at each of them, kept equal
    Cross(parts)                  one resource in parts; a part is a site, or replicas of that part
    Fallback(alternatives)        the first that works

`resolve` computes the route from a scope, a service and a `Snapshot`. It is a pure function in two steps.
`expand` replaces every function call by its result, so that only operators are left. Then:

    a ; b          the alternatives of a, then those of b
    a & b          replicas at both; distributes over alternatives: (a ; b) & c is a & c ; b & c
    a % b          one resource in parts; distributes over alternatives in the same way
    strong(a & b)  the same replicas with that level

Invariants: every site of a route is known, and has the service or was never contacted; no site is named twice
in one set of replicas; the written order is kept; the size of a route is checked before it is built.

What a route means does not depend on which sites are up. What is tried first does (`in_order`), and it differs
between reads, for which one replica is enough, and writes. No alternative is dropped because its site looks
down: that knowledge may be stale.
"""

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from itertools import product
from math import prod
from typing import TypeAlias

from msgspec import Struct

from cheops.errors import CheopsError
from cheops.scope.errors import ScopeResolutionError, find_name
from cheops.scope.functions import BUILTIN, Context, Functions, expand
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Across, And, At, Call, Consistency, Leveled, Location, Nowhere, Otherwise, Scope, sites_in
from cheops.text import listed, nearest, shortened


class One(Struct, frozen=True):
    site: str

    @property
    def sites(self) -> tuple[str, ...]:
        return (self.site,)


class Replicas(Struct, frozen=True):
    sites: tuple[str, ...]
    consistency: Consistency = Consistency.EVENTUAL

    @property
    def majority(self) -> int:
        return len(self.sites) // 2 + 1

    @property
    def level_problem(self) -> str | None:
        """Why requests with this level are refused; None if they are not."""
        if self.consistency is Consistency.EVENTUAL:
            return None
        return (
            f"the level '{self.consistency.value}' is not implemented yet; without a level replicas become equal "
            "as soon as they can reach each other"
        )

    def check_level(self) -> None:
        """Raises CheopsError if replication with this level is not implemented."""
        if problem := self.level_problem:
            raise CheopsError(problem, status=501)


class Cross(Struct, frozen=True):
    parts: tuple[One | Replicas, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        return _distinct(site for part in self.parts for site in part.sites)


Direct: TypeAlias = One | Replicas | Cross


class Fallback(Struct, frozen=True):
    alternatives: tuple[Direct, ...]

    @property
    def sites(self) -> tuple[str, ...]:
        return _distinct(site for route in self.alternatives for site in route.sites)


Route: TypeAlias = Direct | Fallback


def _distinct(sites: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sites))


def works_now(direct: Direct, snapshot: Snapshot, *, reading: bool) -> bool:
    """Whether enough of its sites are up for a read, or for a write, to succeed."""
    up = sum(map(snapshot.is_up, direct.sites))
    match direct:
        case Cross(parts) if reading:  # what answers is given, and the response says what is missing
            return any(works_now(part, snapshot, reading=reading) for part in parts)
        case Cross(parts):
            return all(works_now(part, snapshot, reading=reading) for part in parts)
        # A read needs one replica at every level: with `strong` it is marked stale if no majority confirms it.
        case Replicas(sites, Consistency.ATOMIC) if not reading:
            return up == len(sites)
        case Replicas(_, Consistency.STRONG) if not reading:
            return up >= direct.majority
        case One() | Replicas():
            return up > 0


def in_order(route: Route, snapshot: Snapshot, *, reading: bool) -> tuple[Direct, ...]:
    """The alternatives in the order in which to try them: those that work now first, else as written."""
    if not isinstance(route, Fallback):
        return (route,)
    # `sorted` is stable, so within each of the two groups the written order is kept.
    return tuple(sorted(route.alternatives, key=lambda one: not works_now(one, snapshot, reading=reading)))


# `(a ; b) & (c ; d) & …` doubles its alternatives with each pair: ten pairs reach this limit.
MAX_ALTERNATIVES = 1_024
MAX_ROUTE_SITES = 8_192  # over all alternatives together


def resolve(scope: Scope, service: str | None, snapshot: Snapshot, functions: Functions = BUILTIN) -> Route:
    """Where a request to a service is executed."""
    context = Context(service, snapshot)
    return route(expand(location_for(scope, context), context, functions), context)


def location_for(scope: Scope, context: Context) -> Location:
    """The location of a service, after a check of all names. A service that the scope does not name runs here."""
    check_names(scope, context)
    location = scope.location_of(context.service)
    if location is not None:
        return location
    if context.service is not None and context.snapshot.here is not None:
        return At(context.snapshot.here)
    what = f"service '{context.service}'" if context.service else "a request"
    raise ScopeResolutionError(
        f"'{shortened(str(scope))}' does not say where {what} goes",
        hint=f"It names: {listed(str(binding.service) for binding in scope.bindings)}.",
    )


def route(location: Location, context: Context) -> Route:
    """The route of a location that holds operators only (see `expand`)."""
    if isinstance(location, Nowhere):
        # No site is there now, but one may be later: the client may try again.
        raise ScopeResolutionError(location.why, hint=location.hint or None, status=503)
    _check_size(location)
    alternatives = tuple(dict.fromkeys(_alternatives(location, context)))
    return alternatives[0] if len(alternatives) == 1 else Fallback(alternatives)


def _check_size(location: Location) -> None:
    alternatives, sites = _size(location)
    if alternatives > MAX_ALTERNATIVES or sites > MAX_ROUTE_SITES:
        raise ScopeResolutionError(
            f"'{shortened(str(location))}' has {alternatives:,} alternatives with {sites:,} sites together",
            hint=f"At most {MAX_ALTERNATIVES:,} alternatives and {MAX_ROUTE_SITES:,} sites are accepted.",
        )


def _size(location: Location) -> tuple[int, int]:
    """How many alternatives a location has, and how many sites these name together."""
    match location:
        case Otherwise(parts):
            sizes = [_size(part) for part in parts]
            return sum(size[0] for size in sizes), sum(size[1] for size in sizes)
        case And(parts) | Across(parts):
            sizes = [_size(part) for part in parts]
            alternatives = prod(size[0] for size in sizes)
            return alternatives, sum(sites * (alternatives // own) for own, sites in sizes)
        case Leveled(_, inner):
            return _size(inner)
        case _:
            return 1, 1


def _alternatives(location: Location, context: Context) -> list[Direct]:
    match location:
        case At(site):
            return [_one(site, context)]
        case Otherwise(parts):
            return [one for part in parts for one in _alternatives(part, context)]
        case And(parts):
            _refuse_partial_level(parts, location)
            return _combined(parts, location, context, _replicas)
        case Across(parts):
            return _combined(parts, location, context, _cross)
        case Leveled(level, inner):
            return [_with_level(one, level, location) for one in _alternatives(inner, context)]
        case Call() | Nowhere():
            raise AssertionError("expand leaves no function behind")


def _one(site: str, context: Context) -> One:
    service = context.service
    if service is not None and context.snapshot.sites[site].lacks(service):
        offering = (other.name for other in context.snapshot.offering(service))
        raise ScopeResolutionError(f"site '{site}' has no service '{service}'", hint=f"It is at: {listed(offering)}.")
    return One(site)


def _combined(
    parts: tuple[Location, ...],
    location: Location,
    context: Context,
    combine: Callable[[tuple[Direct, ...], Location], Direct],
) -> list[Direct]:
    choices = (_alternatives(part, context) for part in parts)  # `_check_size` has limited their product
    return [combine(chosen, location) for chosen in product(*choices)]


def _replicas(chosen: tuple[Direct, ...], location: Location) -> Direct:
    if any(isinstance(part, Cross) for part in chosen):
        raise ScopeResolutionError(
            f"'{shortened(str(location))}' replicates a resource that spans sites, which is not possible",
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
                    f"'{shortened(str(location))}' gives a level to some of its replicas only",
                    hint=f"Put it around the whole replication: {level}(a & b & c).",
                )
            case Otherwise(inner):
                _refuse_partial_level(inner, location)


def _cross(chosen: tuple[Direct, ...], _location: Location) -> Direct:
    nested = ((part.parts if isinstance(part, Cross) else (part,)) for part in chosen)
    parts = tuple(dict.fromkeys(part for group in nested for part in group))
    return parts[0] if len(parts) == 1 else Cross(parts)


def _with_level(direct: Direct, level: Consistency, location: Location) -> Direct:
    if isinstance(direct, Replicas):
        return Replicas(direct.sites, level)
    what = "a single site" if isinstance(direct, One) else "a spanning resource"
    raise ScopeResolutionError(f"'{shortened(str(location))}' gives a level to {what}, not to replicas")


def check_names(scope: Scope, context: Context) -> None:
    """Refuse a scope that names an unknown site or service anywhere, even for another service: a typo must not show up
    half-way through a workflow."""
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
        hint = f"Is an operator missing, as in '{shortened(' & '.join(words))}'? {hint}"
    elif suggestion := nearest(name, known):
        hint = f"Did you mean '{suggestion}'? {hint}"
    place = find_name(str(scope), name, service=what == "service")
    raise ScopeResolutionError(f"unknown {what} '{shortened(name)}'", place=place, hint=hint)
