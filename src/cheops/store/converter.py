"""From a value to its JSON form and back, field by field, by what the form's annotations say.

A *form* is a msgspec struct with the fields of the value it stands for. A field that looks different in
JSON has a *shape* in its annotation: the type that msgspec checks, and the two functions into it and back.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, get_args, get_type_hints

from msgspec import Struct

VERSION = 1  # of the format, in the field `v`; it grows only when an older reader would misunderstand


@dataclass(frozen=True, slots=True)
class Shape:
    """Into the form, and back. `unpack` raises ValueError for what the form's type could not forbid."""

    pack: Callable[[Any], Any]
    unpack: Callable[[Any], Any]

    def optional(self) -> "Shape":
        return Shape(
            lambda value: None if value is None else self.pack(value),
            lambda value: None if value is None else self.unpack(value),
        )

    def each(self) -> "Shape":
        """For a tuple of such values, a list in the form."""
        return Shape(
            lambda values: [self.pack(value) for value in values],
            lambda values: tuple([self.unpack(value) for value in values]),
        )


class Converter:
    """Between values, made with `build` from keywords, and their form."""

    def __init__(self, form: type[Struct], build: Callable[..., Any]) -> None:
        hints = get_type_hints(form, include_extras=True)
        self.form, self._build = form, build
        self._fixed = (VERSION,) if "v" in hints else ()
        self.names = tuple(name for name in form.__struct_fields__ if name != "v")
        self._get = _getter(self.names)
        shapes = ((name, _shape_in(hints[name])) for name in self.names)
        self._shapes = [(place, name, shape) for place, (name, shape) in enumerate(shapes) if shape]

    @property
    def shape(self) -> Shape:
        """For a field that holds such a value."""
        return Shape(self.pack, self.unpack)

    def pack(self, value: object) -> Struct:
        values = list(self._get(value))
        for place, _, shape in self._shapes:
            values[place] = shape.pack(values[place])
        return self.form(*self._fixed, *values)

    def unpack(self, form: Struct) -> Any:
        values = {name: getattr(form, name) for name in self.names}
        for _, name, shape in self._shapes:
            values[name] = shape.unpack(values[name])
        return self._build(**values)


def _getter(names: tuple[str, ...]) -> Callable[[object], tuple[Any, ...]]:
    """All these attributes of a value, whose documents are made thousands of times a second."""
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda value: (get(value),)


def _shape_in(annotation: Any) -> Shape | None:
    parts = get_args(annotation)
    if found := _first_shape(parts):
        return found
    if type(None) not in parts:
        return None
    inner = _first_shape(part for option in parts for part in get_args(option))
    return inner.optional() if inner else None


def _first_shape(parts: Iterable[Any]) -> Shape | None:
    return next((part for part in parts if isinstance(part, Shape)), None)
