"""The types of values in the configuration file: durations, sizes, addresses, paths, names, counts and choices.

A `ValueType` reads one value and raises YamlFileError, with file and line, for anything else. Its name and its limits
appear in the documentation and in error messages. A duration carries its unit (`500ms`, `1.5s`, `2m`), and so does a
size (`64KiB`, `1GB`; KB is 1000 bytes, KiB is 1024): a number without a unit is refused rather than guessed.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from cheops.config.address import Address, parse_address, parse_url
from cheops.errors import ClientError
from cheops.scope.names import name_problem, normal
from cheops.text import listed, nearest, printable, shortened
from cheops.yaml_file import Value

if TYPE_CHECKING:
    from cheops.config.settings import Setting

T = TypeVar("T")

DAY_S = 86_400.0
MAX_COUNT = 1_000_000
KIB, MIB, GIB = 1024, 1024**2, 1024**3

_MIN_DURATION_S = 0.001
_MAX_LONG_DURATION_S = 36_500 * DAY_S  # a hundred years
_MAX_SIZE_BYTES = 2**50
_QUANTITY = re.compile(r"([0-9]{1,16}(?:\.[0-9]{1,15})?) ?([A-Za-z]*)")
_MICROSECONDS = {"ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000}
_LONG_MICROSECONDS = {**_MICROSECONDS, "d": 86_400_000_000}
_BYTES = {
    "B": 1,
    "kB": 1000,
    "KB": 1000,
    "MB": 1000**2,
    "GB": 1000**3,
    "TB": 1000**4,
    "KiB": 1024,
    "MiB": 1024**2,
    "GiB": 1024**3,
    "TiB": 1024**4,
}


class UnitError(ClientError):
    """A text is not a duration or a size; the message says what would be."""

    reason = "unit"


@dataclass(frozen=True, slots=True)
class ValueType(Generic[T]):
    """How one type of values is read, and how documentation names it and writes a default."""

    name: str
    read: Callable[[Value], T]
    write: Callable[[T], str] = str
    settings: "tuple[Setting, ...]" = ()  # of a section: its keys
    is_named: bool = False  # whether there are many such sections, each under a name of the user's choice


def from_text(name: str, parse: Callable[[str], T], write: Callable[[T], str] = str) -> ValueType[T]:
    """The type of values that `parse` creates from a text; it raises ClientError for a wrong one."""
    return ValueType(name, lambda value: _parse(value, parse), write)


def list_of(item: ValueType[T], name: str) -> ValueType[tuple[T, ...]]:
    return ValueType(
        name,
        lambda value: tuple(item.read(one) for one in value.items()),
        lambda values: f"[{', '.join(map(item.write, values))}]",
    )


def count(minimum: int = 1, maximum: int = MAX_COUNT) -> ValueType[int]:
    return ValueType(f"number, {minimum:,} to {maximum:,}", lambda value: value.whole(minimum=minimum, maximum=maximum))


def choice(known: Iterable[str], convert: Callable[[str], T]) -> ValueType[T]:
    """One of a few words; `convert` turns the word into the value."""
    names = [str(name) for name in known]

    def read(value: Value) -> T:
        text = value.string()
        if text not in names:
            meant = nearest(text, names)
            hint = f"; did you mean '{meant}'?" if meant else "."
            shown = printable(shortened(text))
            raise value.fail(f"unknown value '{shown}'{hint} Known here: {listed(names, most=len(names))}")
        return convert(text)

    return ValueType(", ".join(f"`{name}`" for name in names), read)


def read_name(value: Value) -> str:
    name = normal(value.string())
    if problem := name_problem(name):
        raise value.fail(problem)
    return name


def read_names(value: Value) -> dict[str, Value]:
    """Names as scope-lang accepts them, and the value of each."""
    values = value.mapping()
    for name, at in values.items():
        if problem := name_problem(name):
            raise at.fail(problem)
    return values


def folder_of(value: Value) -> Path:
    """The directory of the file that holds a value: relative paths start there."""
    return Path(value.source).absolute().parent


def read_path(value: Value) -> Path:
    text = value.string()
    if not text.strip() or "\0" in text:
        raise value.fail("a path cannot be empty or contain the character U+0000")
    try:
        return folder_of(value) / Path(text).expanduser()
    except RuntimeError:
        raise value.fail(f"there is no such home directory: {text.split('/')[0]}") from None


def long_duration_s(text: str) -> float:
    """The seconds of a duration such as 12h or 30d; raises UnitError."""
    return _parse_quantity(text, _LONG_MICROSECONDS, "a duration, such as 12h or 30d", ("d", "h")) / 1_000_000


def _duration_us(text: str) -> int:
    return _parse_quantity(text, _MICROSECONDS, "a duration, such as 500ms, 1.5s or 2m", ("s", "ms"))


def _read_duration_ms(value: Value, minimum_s: float = _MIN_DURATION_S, maximum_s: float = DAY_S) -> int:
    us = _parse(value, _duration_us)
    if us % 1_000 or not minimum_s <= us / 1_000_000 <= maximum_s:
        limits = f"{duration_text(minimum_s)} to {duration_text(maximum_s)}"
        raise value.fail(f"expected whole milliseconds from {limits}, found '{value.string()}'")
    return us // 1_000


def duration(minimum_s: float = _MIN_DURATION_S, maximum_s: float = DAY_S) -> ValueType[float]:
    """A duration within these limits, which documentation shows unless they are the usual ones (1ms to 24h)."""
    limits = []
    if minimum_s > _MIN_DURATION_S:
        limits.append(f"from {duration_text(minimum_s)}")
    if maximum_s < DAY_S:
        limits.append(f"up to {duration_text(maximum_s)}")

    def read(value: Value) -> float:
        return _read_duration_ms(value, minimum_s, maximum_s) / 1_000

    return ValueType(", ".join(["duration", *limits]), read, duration_text)


def long_duration(maximum_s: float = _MAX_LONG_DURATION_S) -> ValueType[float]:
    """A duration that may exceed a day, from a second to a hundred years or less."""

    def read(value: Value) -> float:
        seconds = _parse(value, long_duration_s)
        if not 1 <= seconds <= maximum_s:
            raise value.fail(f"expected a duration from 1s to {maximum_s / DAY_S:.0f}d, found '{value.string()}'")
        return seconds

    return ValueType(f"duration, up to {maximum_s / DAY_S:.0f}d", read, duration_text)


def size(minimum: int = 1, maximum: int = _MAX_SIZE_BYTES) -> ValueType[int]:
    def read(value: Value) -> int:
        number = _parse(value, _size_bytes)
        if not minimum <= number <= maximum:
            limits = f"{size_text(minimum)} to {size_text(maximum)}"
            raise value.fail(f"expected a size from {limits}, found '{value.string()}'")
        return number

    limits = []
    if minimum > 1:
        limits.append(f"from {size_text(minimum)}")
    if maximum < _MAX_SIZE_BYTES:
        limits.append(f"up to {size_text(maximum)}")
    return ValueType(", ".join(["size", *limits]), read, size_text)


def duration_text(seconds: float) -> str:
    """The shortest spelling of a duration in a configuration file."""
    us = round(seconds * 1_000_000)
    units = _LONG_MICROSECONDS if seconds > DAY_S else _MICROSECONDS  # most settings do not accept days
    return _quantity_text(us, units)


def size_text(number: int) -> str:
    return _quantity_text(number, _BYTES)


def _quantity_text(amount: int, units: dict[str, int]) -> str:
    by_length = sorted((len(str(amount // factor)), unit) for unit, factor in units.items() if amount % factor == 0)
    length = by_length[0][0]
    # 1024TiB and 4MB, but 2KiB and not 2048B: among units of the same length the largest is the clearest.
    unit = max((unit for digits, unit in by_length if digits == length), key=lambda unit: units[unit])
    return f"{amount // units[unit]}{unit}"


def _size_bytes(text: str) -> int:
    return _parse_quantity(text, _BYTES, "a size, such as 64KiB or 1GB", ("B", "KiB"))


def _parse(value: Value, parse: Callable[[str], T]) -> T:
    text = value.string()
    try:
        return parse(text)
    except ClientError as error:  # a parser of texts has no file and no line for its message
        raise value.fail(str(error)) from None


def _parse_quantity(text: str, units: dict[str, int], wanted: str, usual: tuple[str, str]) -> int:
    """The quantity as a whole number of the smallest unit."""
    shown = printable(shortened(text))
    quantity = _QUANTITY.fullmatch(text)
    if not quantity:
        raise UnitError(f"expected {wanted}, found '{shown}'")
    number, unit = quantity.groups()
    if not unit:
        raise UnitError(f"'{shown}' has no unit; write {number}{usual[0]} or {number}{usual[1]}")
    if unit not in units:
        raise UnitError(f"'{shown}' has an unknown unit; {_unit_hint(number, unit, units)}")
    # Decimal, because 0.1 * 1_000_000 and the like are not exact in binary fractions.
    amount = Decimal(number) * units[unit]
    if amount != amount.to_integral_value():
        raise UnitError(f"'{shown}' is more precise than possible here")
    return int(amount)


def _unit_hint(number: str, unit: str, units: dict[str, int]) -> str:
    """What to write instead: the unit in its right spelling, or one that it may abbreviate."""
    starts = sorted(known for known in units if known.casefold().startswith(unit.casefold()))
    if starts:
        return "write " + " or ".join(f"{number}{known}" for known in starts)
    return f"units: {', '.join(sorted(units, key=units.__getitem__))}"


def _boolean_text(value: bool) -> str:
    return "true" if value else "false"


TEXT = ValueType("text", Value.string)
BOOLEAN = ValueType("`true`, `false`", Value.boolean, _boolean_text)
COUNT = count()
NAME = ValueType("name", read_name)
PATH: ValueType[Path] = ValueType("path", read_path)
ADDRESS: ValueType[Address] = from_text("host:port", parse_address)
URL = from_text("URL", parse_url)
URL_WITH_PATH = from_text("URL", lambda text: parse_url(text, with_path=True))
DURATION = duration()
DURATION_MS = ValueType("duration", _read_duration_ms, lambda ms: duration_text(ms / 1_000))
SIZE = size()
