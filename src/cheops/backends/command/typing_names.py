"""`NamedTuple` and `NoReturn` of typing, for the helper processes: each of them would have 1 MB more with all of it."""

from collections import namedtuple

TYPE_CHECKING = False  # type checkers take it as true, as they take typing's

if TYPE_CHECKING:
    from typing import NamedTuple, NoReturn
else:
    NoReturn = None

    class _OfFields(type):
        def __new__(cls, name, bases, members):
            if not bases:
                return super().__new__(cls, name, bases, members)
            fields = type(name, (), members).__annotations__
            defaults = [members.pop(field) for field in fields if field in members]
            return type(name, (namedtuple(name, fields, defaults=defaults),), {**members, "__slots__": ()})  # noqa: PYI024

    class NamedTuple(metaclass=_OfFields):
        """A class with this base becomes a tuple with the annotated fields."""


__all__ = ["NamedTuple", "NoReturn"]
