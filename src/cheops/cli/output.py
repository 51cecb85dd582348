"""How commands print: text for users, JSON or YAML for programs; statuses, ages, times and errors.

Colours and line wrapping are for terminals only. A pipe gets plain text, with lines as long as needed.

What is printed holds text of clients, services and other sites. No character that a terminal would act on, or that
hides or reorders others, leaves this module: text for users has a mark instead, JSON and YAML have an escape.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from functools import cache
from itertools import islice
from typing import Annotated, Any, TypeAlias

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from cheops.errors import CheopsError
from cheops.text import is_invisible, printable, shortened

_ROWS_AT_ONCE = 1_000  # of a long table
_NEW_LINE = Segment.line()
_PIPE_WIDTH = 1_000_000  # Rich folds cells to the width, and a program that reads a table needs whole lines


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="Output format; wide has more columns than table."),
]


def emit(output: Output, data: Any, show: Callable[[Console], None]) -> None:
    """Write a result: `data` for programs, what `show` prints for users."""
    match output:
        case Output.JSON:
            sys.stdout.write(as_json(data, indent=2) + "\n")
        case Output.YAML:
            sys.stdout.write(as_yaml(data))
        case Output.TABLE | Output.WIDE:
            show(console())


def emit_answer(output: Output, response: Any, draw: Callable[[Console], None]) -> None:
    """Write the response of an agent: the model as data for programs, what `draw` prints for users."""
    from cheops.api.models import plain  # noqa: PLC0415 - slow; not every command needs it

    emit(output, plain(response), draw)


def as_json(data: Any, indent: int | None = None) -> str:
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    return text if _is_safe(text) else json.dumps(data, indent=indent)


def as_yaml(data: Any) -> str:
    import yaml  # noqa: PLC0415 - slow, and seldom needed

    text = str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    return text if _is_safe(text) else str(yaml.safe_dump(data, sort_keys=False))


def _is_safe(text: str) -> bool:
    """Whether nothing in a text needs an escape."""
    return not any(is_invisible(character) for character in set(text) - {"\n"})


class _SafeConsole(Console):
    """A console that writes no invisible character of what it is given; its own colours stay."""

    def render(self, renderable: Any, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable() or segment is _NEW_LINE:
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; plain and unwrapped unless it is a terminal."""
    stream = _SafeConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not stream.is_terminal:
        stream.width = _PIPE_WIDTH
    return stream


def table(*columns: str) -> Table:
    """An empty table: headings, two spaces between columns, no lines."""
    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        rows.add_column(column, overflow="fold")
    return rows


def print_table(out: Console, rows: Table) -> None:
    """Print a table; in a pipe without trailing spaces."""
    if out.is_terminal:
        out.print(rows)
        return
    with out.capture() as captured:
        out.print(rows)
    for line in captured.get().splitlines():
        out.print(line.rstrip(), soft_wrap=True)


Cell: TypeAlias = tuple[str, str]  # a text and its style


def print_long_table(out: Console, columns: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
    """Print a table of very many rows as they come. Columns are as wide as the first rows need, and nothing is wrapped:
    Rich would measure and fold every cell, which takes most of the time."""
    rest = iter(rows)
    some: list[Sequence[Cell]] = [[(column, "bold") for column in columns], *islice(rest, _ROWS_AT_ONCE)]
    widths = [max(cell_len(row[n][0]) for row in some) + 2 for n in range(len(columns))]
    widths[-1] = 0  # no spaces at the end of a line
    style_named = cache(out.get_style)
    while some:
        segments: list[Segment] = []
        for row in some:
            for (text, style), width in zip(row, widths, strict=True):
                wide = len(text) if text.isascii() else cell_len(text)
                segments.append(Segment(text + " " * (width - wide), style_named(style) if style else None))
            segments.append(_NEW_LINE)
        out.print(Segments(segments), soft_wrap=True, end="")
        some = list(islice(rest, _ROWS_AT_ONCE))


def milliseconds(ms: float | None) -> str:
    return "?" if ms is None else f"{ms:g} ms"


def print_error(error: CheopsError) -> None:
    """Print an error to standard error."""
    out = console(stderr=True)
    out.print("error: ", style="bold red", end="", soft_wrap=True)
    for line in str(error).splitlines():
        out.print(printable(line), soft_wrap=True)


_COLOURS = {
    "green": ("OK", "CONVERGED", "up", "effective", "ok"),
    "yellow": ("PENDING", "RUNNING", "CONVERGING", "UNREACHABLE", "suspect", "TIMEOUT", "warning", "unknown"),
    "red": ("KO", "DIVERGED", "UNKNOWN", "down", "failed"),
    "dim": ("SUPERSEDED", "VOID", "superseded", "void", "folded", "silent", "forgotten"),
}
_STYLES = {word: colour for colour, words in _COLOURS.items() for word in words}
_MINUTE_S = 60.0
_HOUR_S = 3600.0


def styled_status(word: str) -> Text:
    """A status in its colour."""
    return Text(word, style=style_of(word))


def style_of(status: str) -> str:
    return _STYLES.get(status, "")


def age(seconds: float | None) -> str:
    """How long ago: `now`, `12 s ago`, `3 min ago`; `never`."""
    if seconds is None:
        return "never"
    if seconds < 1:
        return "now"
    if seconds < _MINUTE_S:
        return f"{seconds:.0f} s ago"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min ago"
    return f"{seconds / _HOUR_S:.1f} h ago"


def last_seen(seconds: float | None) -> str:
    """When a site was last heard of: `seen just now`, `last seen 42 s ago`; `never seen`."""
    if seconds is None:
        return "never seen"
    return "seen just now" if seconds < 1 else f"last seen {age(seconds)}"


def short_time(at: str | None) -> str:
    """A time of the API, to the second."""
    return "-" if at is None else at.replace("T", " ").split(".")[0].removesuffix("Z")


def rounded_ms(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"


def yes_no(value: bool) -> str:
    return "yes" if value else "no"


def printable_lines(text: str) -> str:
    """The output of a command, without characters that a terminal would act on."""
    return "\n".join(map(printable, text.rstrip("\n").splitlines()))


def one_line(text: str, most: int = 60) -> str:
    """A foreign text as one short line of a table."""
    return printable(shortened(" ".join(text.split()), most))


def vector(numbers: dict[str, int]) -> str:
    return ", ".join(f"{site}:{number}" for site, number in numbers.items()) or "-"
