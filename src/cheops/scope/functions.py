"""Functions of scope-lang: what `around(site1, 10ms)` stands for, and how to add one.

A function is built on the operators: it takes places and durations and gives back a location, which
is then resolved like any other. So a new function needs no change of parser or interpreter. It is a
pure function of its arguments and of what the site knows (`Context`).

    def ring(context: Context, centre: At) -> Location: ...

    RING = Function("ring", (Parameter("centre", Kind.SITE),), "the neighbours of a site", ring)
    functions = BUILTIN.with_function(RING)
    parse("ring(site1)", functions)

An installed package adds one to the `cheops` command and the agent by naming such a `Function` under the
entry point group `cheops.scope_functions` (docs/scope-lang.md shows it whole).
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Location

_NAME = re.compile(r"\w[\w.\-]*")


class Kind(Enum):
    """What a parameter takes, and how that is called in a message."""

    SITE = "one site"
    LOCATION = "a location"
    DURATION = "a duration such as 10ms or 1.5s"


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class Context:
    """What a function may look at: the service that is being resolved, and what the site knows."""

    service: str | None
    snapshot: Snapshot


@dataclass(frozen=True, slots=True)
class Function:
    """A name, what it takes, one line that says what it gives, and the function itself."""

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
        """A registry that knows one more; a name that is taken is refused."""
        return Functions((*self, function))

    def get(self, name: str) -> Function | None:
        return self._by_name.get(name)

    def __iter__(self) -> Iterator[Function]:
        return iter(self._by_name.values())
