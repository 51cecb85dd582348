"""The tree of scope-lang: what a text says, as frozen values.

Invariants:
- A tree is in normal form: an operator has two or more parts and none of them is the same operator
  again (`(a & b) & c` is `a & b & c`), so equal trees have equal texts.
- `str(tree)` is its canonical text, and parsing that gives an equal tree. Order is kept as written:
  it matters for `;`, and output should look like what the user typed.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import ClassVar, TypeAlias

from msgspec import Struct, structs

from cheops.scope.names import write_name


class Consistency(StrEnum):
    """How replicas are kept equal."""

    NONE = "none"
    EVENTUAL = "eventual"
    ATOMIC = "atomic"
    STRONG = "strong"


class Duration(Struct, frozen=True):
    """A length of time in whole microseconds, so that equality is exact."""

    us: int

    @property
    def ms(self) -> float:
        return self.us / 1000

    def __str__(self) -> str:
        if self.us and self.us % 1_000_000 == 0:
            return f"{self.us // 1_000_000}s"
        whole, rest = divmod(self.us, 1000)
        return f"{whole}.{rest:03}".rstrip("0").rstrip(".") + "ms"


class At(Struct, frozen=True):
    """One location."""

    binding: ClassVar[int] = 4
    site: str

    def __str__(self) -> str:
        return write_name(self.site)


class _Operator(Struct, frozen=True):
    """Parts joined by a sign. `binding` is how tightly it binds: a looser part needs parentheses."""

    binding: ClassVar[int]
    sign: ClassVar[str]
    parts: "tuple[Location, ...]"

    def __post_init__(self) -> None:
        flat = tuple(leaf for part in self.parts for leaf in self._same(part))
        if len(flat) < 2:
            raise ValueError(f"{type(self).__name__} needs two or more parts")
        structs.force_setattr(self, "parts", flat)  # it is frozen; this is still construction

    def _same(self, part: "Location") -> "tuple[Location, ...]":
        return part.parts if isinstance(part, _Operator) and type(part) is type(self) else (part,)

    def __str__(self) -> str:
        return f" {self.sign} ".join(f"({part})" if part.binding < self.binding else str(part) for part in self.parts)


class And(_Operator, frozen=True):
    """`a & b`: at each of them, a replica."""

    binding: ClassVar[int] = 3
    sign: ClassVar[str] = "&"


class Across(_Operator, frozen=True):
    """`a % b`: one resource that spans them."""

    binding: ClassVar[int] = 2
    sign: ClassVar[str] = "%"


class Otherwise(_Operator, frozen=True):
    """`a ; b`: the first, or the next if the first fails."""

    binding: ClassVar[int] = 1
    sign: ClassVar[str] = ";"


class Call(Struct, frozen=True):
    """`around(a, 10ms)`: a function of the registry, before it is expanded."""

    binding: ClassVar[int] = 4
    function: str
    arguments: "tuple[Argument, ...]"

    def __str__(self) -> str:
        return f"{self.function}({', '.join(map(str, self.arguments))})"


class Leveled(Struct, frozen=True):
    """What `strong(a & b)` expands to: a replication with its level. The parser never returns it."""

    binding: ClassVar[int] = 4
    level: Consistency
    location: "Location"

    def __str__(self) -> str:
        return f"{self.level}({self.location})"


class Nowhere(Struct, frozen=True):
    """What a function expands to when there is no such place now. The parser never returns it."""

    binding: ClassVar[int] = 4
    why: str
    hint: str = ""

    def __str__(self) -> str:
        return "nowhere"


Location: TypeAlias = At | And | Across | Otherwise | Call | Leveled | Nowhere
Argument: TypeAlias = Location | Duration


class Binding(Struct, frozen=True):
    """Where one service is executed; a service of None is the bare form, good for any service."""

    service: str | None
    location: Location

    def __str__(self) -> str:
        return str(self.location) if self.service is None else f"{write_name(self.service)}: {self.location}"


class Scope(Struct, frozen=True):
    """For each service, the location(s) where a request is executed."""

    bindings: tuple[Binding, ...]

    @property
    def is_bare(self) -> bool:
        return self.bindings[0].service is None

    def location_of(self, service: str | None) -> Location | None:
        """The location of a service (the papers' sigma[s]), or None if the scope does not name it."""
        for binding in self.bindings:
            if binding.service is None or binding.service == service:
                return binding.location
        return None

    def __str__(self) -> str:
        text = ", ".join(map(str, self.bindings))
        return text if self.is_bare else f"{{{text}}}"


def sites_in(node: Argument) -> Iterator[str]:
    """Every site that a tree names, in reading order, with repetitions."""
    match node:
        case At(site):
            yield site
        case And(parts) | Across(parts) | Otherwise(parts):
            for part in parts:
                yield from sites_in(part)
        case Call(_, arguments):
            for argument in arguments:
                yield from sites_in(argument)
        case Leveled(_, location):
            yield from sites_in(location)
        case Duration() | Nowhere():
            return
