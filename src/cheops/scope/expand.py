"""Replaces every function in a location by what it stands for, until only operators are left.

Functions may be anybody's (plugins), so nothing they give back is trusted: its kind, its sites and its size
are checked here, and whatever they raise becomes an error that names the function.
"""

from cheops.scope.errors import ScopeError, ScopeResolutionError
from cheops.scope.functions import Context, Function, Functions, Kind
from cheops.scope.tree import (
    Across,
    And,
    Argument,
    At,
    Call,
    Duration,
    Leveled,
    Location,
    Nowhere,
    Otherwise,
    sites_in,
)
from cheops.text import shortened

MAX_EXPANDED_SITES = 8_192
_MAX_NESTING = 16  # functions that expand to functions


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
            raise ScopeResolutionError(
                f"'{function.name}' expands to functions again and again, without an end"
            )
        arguments = [a if isinstance(a, Duration) else self.location(a, depth) for a in call.arguments]
        for argument in arguments:
            if isinstance(argument, Nowhere):
                return argument
        _check_sites(function, arguments)
        result = self._applied(function, arguments)
        return self.location(result, depth + 1)

    def _applied(self, function: Function, arguments: list[Argument]) -> Location:
        try:
            result: object = function.expand(self._context, *arguments)
        except ScopeError:
            raise
        except Exception as error:
            why = shortened(f"{type(error).__name__}: {error}", 200)
            raise ScopeResolutionError(f"the scope function '{function.name}' failed: {why}") from error
        if not isinstance(result, At | And | Across | Otherwise | Call | Leveled | Nowhere):
            raise ScopeResolutionError(
                f"the scope function '{function.name}' gave a {type(result).__name__}, not a location"
            )
        for site in sites_in(result):
            self._sites_left -= 1
            if self._sites_left < 0:
                raise ScopeResolutionError(f"the functions expand to more than {MAX_EXPANDED_SITES:,} sites")
            if site not in self._context.snapshot.sites:
                raise ScopeResolutionError(
                    f"the scope function '{function.name}' gave the unknown site '{site}'"
                )
        return result


def _first_of(parts: tuple[Location, ...]) -> Location:
    """`nowhere ; a` is a: an alternative that is not there now is passed over."""
    there = tuple(part for part in parts if not isinstance(part, Nowhere))
    if not there:
        return parts[0]
    return there[0] if len(there) == 1 else Otherwise(there)


def _check_sites(function: Function, arguments: list[Argument]) -> None:
    for parameter, argument in zip(function.parameters, arguments, strict=True):
        if parameter.kind is Kind.SITE and not isinstance(argument, At):
            raise ScopeResolutionError(
                f"the {parameter.name} in {function.signature} is one site, and '{argument}' is not"
            )
