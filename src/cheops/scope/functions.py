"""Functions of scope-lang: the registry, the built-in ones, and how a call is expanded.

A function is built on the operators: it takes locations and durations and returns a location, which is then
resolved like any other. It is a pure function of its arguments and of what the site knows (`Context`).

To add one, write it here, beside `around`, and list it in `BUILTIN` with its parameters and a line of help. For a
function of sites, locations and durations that is all: parser, resolver, `cheops scope explain` and the error messages
follow from the list. docs/scope-lang.md describes it to users, and tests/transcripts/scope-parse.txt lists all
functions.

A function does not leave out sites that are down: it returns all alternatives in their order of preference
(`Otherwise`), and `route.in_order` moves those that are down to the end, because they may be up again.

A new kind of argument, such as a number, is a change of the language: it needs a member of `Kind` here, a node in
tree.py, its syntax in grammar.lark and parser.py, a case in `explanation.node_data`, and its drawing in
ui/web/views/scope.js.

    def ring(context: Context, centre: At) -> Location: ...

    RING = Function("ring", (Parameter("centre", Kind.SITE),), "the neighbours of a site", ring)
    functions = BUILTIN.with_function(RING)
    parse("ring(site1)", functions)

An installed package adds one to the `cheops` command and the agent with the entry point group
`cheops.scope_functions` (docs/scope-lang.md has the whole example). So functions are not trusted: `expand` checks
the kind, the sites and the size of what they return, and turns what they raise into an error with their name.
"""

import re
from collections.abc import Callable, Iterator
from enum import Enum

from msgspec import Struct

from cheops.scope.errors import ScopeError, ScopeResolutionError
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
    sites_in,
)
from cheops.text import shortened

# A single word of grammar.lark's NAME: anything else could not be written in front of a parenthesis.
_NAME = re.compile(r"\w[\w.\-]*")


class Kind(Enum):
    """What a parameter accepts, and the words for it in a message."""

    SITE = "one site"
    LOCATION = "a location"
    DURATION = "a duration such as 10ms or 1.5s"


class Parameter(Struct, frozen=True):
    name: str
    kind: Kind


class Context(Struct, frozen=True):
    """What a function may look at: the service that is being resolved, and what the site knows."""

    service: str | None
    snapshot: Snapshot


class Function(Struct, frozen=True):
    """A name, the parameters, one line of help, and the function itself."""

    name: str
    parameters: tuple[Parameter, ...]
    summary: str
    # Called with the context, then one At, Location or Duration per parameter, already expanded.
    expand: Callable[..., Location]

    @property
    def signature(self) -> str:
        return f"{self.name}({', '.join(parameter.name for parameter in self.parameters)})"


class Functions:
    """An immutable registry by name. Compared by identity, which makes it a cheap cache key."""

    def __init__(self, functions: tuple[Function, ...]) -> None:
        self._by_name: dict[str, Function] = {}
        for function in functions:
            if not _NAME.fullmatch(function.name):
                raise ValueError(f"'{function.name}' cannot be the name of a scope function")
            if function.name in self._by_name:
                raise ValueError(f"the scope function '{function.name}' is already defined")
            self._by_name[function.name] = function

    def with_function(self, function: Function) -> "Functions":
        """A registry with one more function; a name that is in use is refused."""
        return Functions((*self, function))

    def get(self, name: str) -> Function | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Function]:
        return iter(self._by_name.values())


def around(context: Context, centre: At, radius: Duration) -> Location:
    """The sites that have the service within `radius` of `centre`, nearest first, as `a ; b ; c`.

    The centre itself is the nearest of all. A site whose distance is not known is not near.
    """
    snapshot = context.snapshot
    distances = [
        (rtt_ms, site.name)
        for site in snapshot.offering(context.service)
        if (rtt_ms := snapshot.rtt_ms(centre.site, site.name)) is not None
    ]
    # Sites at the same distance are ordered by name, so that equal snapshots give equal routes.
    near = [At(name) for rtt_ms, name in sorted(distances) if rtt_ms <= radius.ms]
    if not near:
        return _nothing_near(context, centre, radius, sorted(distances))
    return near[0] if len(near) == 1 else Otherwise(tuple(near))


def _nothing_near(context: Context, centre: At, radius: Duration, distances: list[tuple[float, str]]) -> Nowhere:
    wanted = f"service '{context.service}'" if context.service else "site"
    hint = "No round-trip time from there is known."
    if distances:
        hint = f"The nearest is '{distances[0][1]}', {distances[0][0]:g} ms away."
    return Nowhere(f"no {wanted} is known within {radius} of '{centre.site}'", hint)


def _level(level: Consistency, summary: str) -> Function:
    def expand(_context: Context, location: Location) -> Location:
        return _leveled(level, location)

    return Function(level.value, (Parameter("replication", Kind.LOCATION),), summary, expand)


def _leveled(level: Consistency, location: Location) -> Location:
    match location:
        case And():
            return Leveled(level, location)
        case Otherwise(parts):  # strong(a & b ; c & d): each alternative gets the level
            return Otherwise(tuple(_leveled(level, part) for part in parts))
        case Leveled(other, _):
            raise ScopeResolutionError(
                f"'{shortened(str(location))}' has a level already: it is either {other} or {level}"
            )
        case Nowhere():
            return location
        case At() | Across() | Call():
            raise ScopeResolutionError(
                f"{level}(…) is a level of replication, and '{shortened(str(location))}' is not replicated",
                hint=f"Put it around a whole replication: {level}(site1 & site2).",
            )


BUILTIN = Functions(
    (
        Function(
            "around",
            (Parameter("site", Kind.SITE), Parameter("radius", Kind.DURATION)),
            "the sites within a round-trip time of a site, nearest first, as a ; b ; c",
            around,
        ),
        _level(Consistency.NONE, "replicas get each request once; nothing is repeated or repaired"),
        _level(Consistency.EVENTUAL, "replicas become equal as soon as they can reach each other (the default)"),
        _level(Consistency.ATOMIC, "a write happens at every replica or at none"),
        _level(Consistency.STRONG, "a majority of the replicas agrees on one order of all writes"),
    )
)


# Functions multiply what a client typed: without a limit, a short scope could expand to millions of sites. The same
# limit as for a route (MAX_ROUTE_SITES), because each of these sites would be part of it.
MAX_EXPANDED_SITES = 8_192
_MAX_NESTING = 16  # functions that expand to functions: far more than is useful, and it ends a circle


def expand(location: Location, context: Context, functions: Functions) -> Location:
    """The same location without functions; `Nowhere` if nothing is left of it."""
    return _Expansion(context, functions).location(location, 0)


class _Expansion:
    def __init__(self, context: Context, functions: Functions) -> None:
        self._context = context
        self._functions = functions
        self._sites_left = MAX_EXPANDED_SITES

    def location(self, location: Location, depth: int) -> Location:
        match location:
            case At() | Nowhere():
                return location
            case And(parts) | Across(parts):
                expanded = tuple(self.location(part, depth) for part in parts)
                # All parts are needed, so one that is nowhere makes the whole nowhere.
                missing = next((part for part in expanded if isinstance(part, Nowhere)), None)
                return missing or type(location)(expanded)
            case Otherwise(parts):
                return _first_of(tuple(self.location(part, depth) for part in parts))
            case Leveled(level, inner):
                inner = self.location(inner, depth)
                return inner if isinstance(inner, Nowhere) else Leveled(level, inner)
            case Call():
                return self._call(location, depth)

    def _call(self, call: Call, depth: int) -> Location:
        function = self._functions.get(call.function)
        if function is None:
            raise ScopeResolutionError(f"unknown function '{call.function}'")
        if depth == _MAX_NESTING:
            raise ScopeResolutionError(f"'{function.name}' expands to functions again and again, without an end")
        arguments = [a if isinstance(a, Duration) else self.location(a, depth) for a in call.arguments]
        for argument in arguments:
            if isinstance(argument, Nowhere):
                return argument
        _check_sites(function, arguments)
        result = self._apply(function, arguments)
        return self.location(result, depth + 1)

    def _apply(self, function: Function, arguments: list[Argument]) -> Location:
        try:
            result: object = function.expand(self._context, *arguments)
        except ScopeError:
            raise
        except Exception as error:  # installed packages add functions: their bugs must not stop the agent
            why = shortened(f"{type(error).__name__}: {error}", 200)
            raise ScopeResolutionError(f"the scope function '{function.name}' failed: {why}") from error
        if not isinstance(result, At | And | Across | Otherwise | Call | Leveled | Nowhere):
            raise ScopeResolutionError(
                f"the scope function '{function.name}' returned a {type(result).__name__}, not a location"
            )
        for site in sites_in(result):
            self._sites_left -= 1
            if self._sites_left < 0:
                raise ScopeResolutionError(f"the functions expand to more than {MAX_EXPANDED_SITES:,} sites")
            if site not in self._context.snapshot.sites:
                raise ScopeResolutionError(f"the scope function '{function.name}' returned the unknown site '{site}'")
        return result


def _first_of(parts: tuple[Location, ...]) -> Location:
    """`nowhere ; a` is `a`: an alternative that does not exist now is skipped."""
    available = tuple(part for part in parts if not isinstance(part, Nowhere))
    if not available:
        return parts[0]
    return available[0] if len(available) == 1 else Otherwise(available)


def _check_sites(function: Function, arguments: list[Argument]) -> None:
    for parameter, argument in zip(function.parameters, arguments, strict=True):
        if parameter.kind is Kind.SITE and not isinstance(argument, At):
            raise ScopeResolutionError(
                f"the {parameter.name} in {function.signature} is one site, and '{argument}' is not"
            )
