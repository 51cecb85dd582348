"""Durations (`500ms`, `1.5s`, `2m`) and sizes (`64KiB`, `1GB`), as people write them in files.

A number without a unit is refused rather than guessed. KB is 1000 bytes, KiB is 1024. Durations are those of
scope-lang, and minutes and hours.
"""

import re
from collections.abc import Callable
from decimal import Decimal

from cheops.documents import Value
from cheops.errors import ClientError
from cheops.text import listed, printable, shortened

MAX_DURATION_S = 86_400.0
MAX_LONG_DURATION_S = 36_500 * 86_400.0
MAX_SIZE_BYTES = 2**50

_QUANTITY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?) ?([A-Za-z]*)")
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
    """A text is not a duration or a size; it says what would be."""


def duration_us(text: str) -> int:
    """The microseconds of a duration such as 10ms, 1.5s or 2m; raises UnitError."""
    return _whole(text, _MICROSECONDS, "a duration, such as 500ms, 1.5s or 2m", ("s", "ms"))


def size_bytes(text: str) -> int:
    """The bytes of a size such as 64KiB or 1GB; raises UnitError."""
    return _whole(text, _BYTES, "a size, such as 64KiB or 1GB", ("B", "KiB"))


def duration_s(value: Value) -> float:
    """The duration at a place of a document, from 1 ms to a day."""
    return duration_ms(value) / 1_000


def duration_ms(value: Value) -> int:
    us = _read(value, duration_us)
    if us % 1_000 or not 1_000 <= us <= MAX_DURATION_S * 1_000_000:
        raise value.fail(f"expected whole milliseconds from 1ms to 24h, found '{value.string()}'")
    return us // 1_000


def long_duration_us(text: str) -> int:
    """The same with days, such as 30d; raises UnitError."""
    return _whole(text, _LONG_MICROSECONDS, "a duration, such as 12h or 30d", ("d", "h"))


def long_seconds(text: str) -> float:
    """The seconds of a duration such as 12h or 30d; raises UnitError."""
    return _whole(text, _LONG_MICROSECONDS, "a duration, such as 12h or 30d", ("d", "h")) / 1_000_000


def long_duration_s(value: Value) -> float:
    """What may last longer than a day, such as 30d: from a second to a hundred years."""
    us = _read(value, long_duration_us)
    if not 1_000_000 <= us <= MAX_LONG_DURATION_S * 1_000_000:
        raise value.fail(f"expected a duration from 1s to 36500d, found '{value.string()}'")
    return us / 1_000_000


def size(value: Value) -> int:
    """The size at a place of a document, in bytes."""
    found = _read(value, size_bytes)
    if not 1 <= found <= MAX_SIZE_BYTES:
        raise value.fail(f"expected a size from 1B to 1024TiB, found '{value.string()}'")
    return found


def _read(value: Value, parse: Callable[[str], int]) -> int:
    try:
        return parse(value.string())
    except UnitError as error:
        raise value.fail(str(error)) from None


def _whole(text: str, units: dict[str, int], wanted: str, usual: tuple[str, str]) -> int:
    """The text in the smallest unit, which it must not be finer than."""
    shown = printable(shortened(text))
    found = _QUANTITY.fullmatch(text)
    if not found:
        raise UnitError(f"expected {wanted}, found '{shown}'")
    number, unit = found.groups()
    if not unit:
        raise UnitError(f"'{shown}' has no unit; write {number}{usual[0]} or {number}{usual[1]}")
    if unit not in units:
        raise UnitError(f"'{shown}' has an unknown unit; {_meant(number, unit, units)}")
    amount = Decimal(number) * units[unit]
    if amount != amount.to_integral_value():
        raise UnitError(f"'{shown}' is finer than can be told apart")
    return int(amount)


def _meant(number: str, unit: str, units: dict[str, int]) -> str:
    """What to write instead: the unit in its right spelling, or one that it may have stood for."""
    starts = sorted(known for known in units if known.casefold().startswith(unit.casefold()))
    if starts:
        return "write " + " or ".join(f"{number}{known}" for known in starts)
    return f"Units: {listed(units)}"
