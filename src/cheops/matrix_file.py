"""A matrix in a file: the JSON of the papers, or YAML. Every error gives file, line and key.

{"ResolutionMatrix": [{"Before": "set", "After": "inc", "Result": "take-both-keep-order"}]}

types: [set, inc]           # optional: all types, so that a misspelt one is noticed
matrix:
  - {before: set, after: inc, result: take-both-keep-order}
  - {before: inc, after: inc, result: take-both}

An entry may carry `concurrent: take-both`. Keys may begin with a capital or not, in either form. JSON is read
as YAML, which includes it; tabs as indentation are harmless between braces.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

from msgspec import Struct

from cheops.log.matrix import Entry, Matrix, MatrixError, Result, result_named
from cheops.scope.names import name_problem, normal
from cheops.text import listed, nearest, printable, shortened
from cheops.yaml_file import Value, parse_yaml, read_yaml

MAX_TYPES = 100  # the closure of the entries grows with the square of this
MAX_ENTRIES = MAX_TYPES**2
MAX_TYPE_CHARACTERS = 100
_RESERVED_MARKS = ("!", "*")

_Row: TypeAlias = tuple[Value, Entry]  # an entry, and its position in the file


class MatrixFile(Struct, frozen=True):
    """The content of a file: the matrix, and the types that it lists or, without a list, those that it mentions."""

    matrix: Matrix
    types: tuple[str, ...]


def read_matrix(path: Path) -> MatrixFile:
    """The matrix of a file in either form; raises YamlFileError."""
    return _matrix_file(read_yaml(path))


def parse_matrix(text: str, source: str) -> MatrixFile:
    """The same from a text, such as the body of a request."""
    return _matrix_file(parse_yaml(text, source))


def matrix_within(value: Value) -> MatrixFile:
    """The matrix inside another YAML file: as in a file of its own, or the entries alone."""
    return _from_entries(value, None) if value.is_list else _matrix_file(value)


def type_problem(name: str) -> str | None:
    """Why this text cannot be the name of an operation type, or None if it can."""
    if name.startswith(_RESERVED_MARKS):
        return f"'{printable(shortened(name))}': names that start with '{name[0]}' are reserved"
    if len(name) > MAX_TYPE_CHARACTERS:
        return f"a type has at most {MAX_TYPE_CHARACTERS} characters"
    return name_problem(name)


def _matrix_file(root: Value) -> MatrixFile:
    record = _record(root, optional=("matrix", "resolutionMatrix", "types"))
    types = _listed_types(record["types"]) if "types" in record else None
    return _from_entries(_entries(root, record), types)


def _from_entries(entries: Value, types: tuple[str, ...] | None) -> MatrixFile:
    matrix = _checked(entries, [(value, _entry(value, types)) for value in _at_most(entries, MAX_ENTRIES)])
    return MatrixFile(matrix, matrix.types if types is None else types)


def _entries(root: Value, record: dict[str, Value]) -> Value:
    """The list of entries, under the name of either form."""
    lists = [record[name] for name in ("matrix", "resolutionMatrix") if name in record]
    if not lists:
        raise root.fail("'matrix' (or 'ResolutionMatrix') is missing")
    if len(lists) > 1:
        raise lists[1].fail("the matrix is given twice; keep one of 'matrix' and 'ResolutionMatrix'")
    return lists[0]


def _entry(value: Value, types: tuple[str, ...] | None) -> Entry:
    record = _record(value, required=("before", "after", "result"), optional=("concurrent",))
    return Entry(
        _known_type(record["before"], types),
        _known_type(record["after"], types),
        _result(record["result"]),
        "concurrent" in record and _both_stay(record["concurrent"]),
    )


def _result(value: Value) -> Result:
    try:
        return result_named(printable(shortened(value.string())))
    except MatrixError as error:
        raise value.fail(str(error)) from None


def _both_stay(value: Value) -> bool:
    """Always True: the key has only one value. Without the key, the replacing operation supersedes concurrent ones."""
    if (text := value.string()) != Result.TAKE_BOTH:
        raise value.fail(
            f"unknown value '{printable(shortened(text))}'; write {Result.TAKE_BOTH}, or leave the key out"
        )
    return True


def _listed_types(value: Value) -> tuple[str, ...]:
    types: list[str] = []
    for item in _at_most(value, MAX_TYPES):
        name = _type(item)
        if name in types:
            raise item.fail(f"'{name}' is given twice")
        types.append(name)
    return tuple(types)


def _known_type(value: Value, types: tuple[str, ...] | None) -> str:
    """A type from the list of the file, if it has one: a misspelt type would silently combine with nothing."""
    name = _type(value)
    if types is not None and name not in types:
        meant = nearest(name, types)
        hint = f"; did you mean '{meant}'?" if meant else "."
        raise value.fail(f"unknown type '{name}'{hint} Types of this file: {listed(types)}")
    return name


def _type(value: Value) -> str:
    name = normal(value.string())
    if problem := type_problem(name):
        raise value.fail(problem)
    return name


def _at_most(value: Value, limit: int) -> list[Value]:
    items = list(value.items())
    if len(items) > limit:
        raise items[limit].fail(f"at most {limit:,} are accepted")
    return items


def _checked(entries: Value, rows: list[_Row]) -> Matrix:
    """The matrix of the entries; a contradiction is reported at the line of its entry."""
    names = {name for _, entry in rows for name in (entry.before, entry.after)}
    if len(names) > MAX_TYPES:
        raise entries.fail(f"{len(names):,} types are mentioned; at most {MAX_TYPES} are accepted")
    try:
        return Matrix(entry for _, entry in rows)
    except MatrixError as error:
        value = next((value for value, entry in rows if entry == error.entry), entries)
        raise value.fail(f"{error}{_see_also(value, error.entry, rows)}") from None


def _see_also(wrong_value: Value, wrong: Entry | None, rows: Iterable[_Row]) -> str:
    """The line of the other entry for the same two types: the contradiction may be with its mirror."""
    pair = {wrong.before, wrong.after} if wrong else set()
    others = [value for value, entry in rows if {entry.before, entry.after} == pair and entry != wrong]
    lines = sorted({value.node.start_mark.line + 1 for value in others} - {wrong_value.node.start_mark.line + 1})
    return f" (see line {lines[0]})" if lines else ""


def _record(value: Value, *, required: tuple[str, ...] = (), optional: tuple[str, ...] = ()) -> dict[str, Value]:
    """The values of these keys, which the file may write with a capital; other keys are refused."""
    written = value.mapping()
    spelling = {name: _spelling(name, written) for name in (*required, *optional)}
    values = value.record(
        required=tuple(spelling[name] for name in required),
        optional=tuple(spelling[name] for name in optional),
    )
    return {name: values[spelled] for name, spelled in spelling.items() if spelled in values}


def _spelling(name: str, written: dict[str, Value]) -> str:
    """How the file spells a key, or would spell it: with a capital if its other keys have one."""
    capitalised = name[0].upper() + name[1:]
    if name in written and capitalised in written:
        raise written[name].fail(f"this is given twice, also as '{capitalised}'")
    if name in written:
        return name
    has_capitals = any(key[:1].isupper() for key in written)
    return capitalised if capitalised in written or has_capitals else name
