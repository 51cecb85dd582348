"""How answers leave the command line: for people as text, for programs as JSON or YAML.

Colours and wrapping to the window only where a person looks on: on a terminal. Into a pipe goes plain
text whose lines are as long as they need to be.
"""

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from cheops.errors import CheopsError
from cheops.text import printable

_PIPE_WIDTH = 1_000_000


class Output(StrEnum):
    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    WIDE = "wide"


OutputOption = Annotated[
    Output,
    typer.Option("--output", "-o", help="For people (table; wide: with more columns) or for programs."),
]


def emit(output: Output, data: Any, show: Callable[[Console], None]) -> None:
    """Write an answer: `data` to programs, whatever `show` draws to people."""
    match output:
        case Output.JSON:
            sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")
        case Output.YAML:
            sys.stdout.write(as_yaml(data))
        case Output.TABLE | Output.WIDE:
            show(console())


def emit_answer(output: Output, found: Any, draw: Callable[[Console], None]) -> None:
    """Write what an agent answered: the model as data to programs, what `draw` makes of it to people."""
    from cheops.api.models import plain  # noqa: PLC0415 - who asks no agent need not wait for the models

    emit(output, plain(found), draw)


def as_yaml(data: Any) -> str:
    import yaml  # noqa: PLC0415 - only who asks for it pays for it

    return str(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))


def console(*, stderr: bool = False) -> Console:
    """A console on the stream as it is now; plain and unwrapped unless it is a terminal."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = _PIPE_WIDTH
    return made


def table(*columns: str) -> Table:
    """An empty table in the house style: headings, two blanks between columns, no lines."""
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    return made


def print_table(out: Console, made: Table) -> None:
    """Print a table; into a pipe without the blanks that fill its last column."""
    if out.is_terminal:
        out.print(made)
        return
    with out.capture() as captured:
        out.print(made)
    for line in captured.get().splitlines():
        out.print(line.rstrip(), soft_wrap=True)


def milliseconds(ms: float | None) -> str:
    return "?" if ms is None else f"{ms:g} ms"


def complain(error: CheopsError) -> None:
    """Say on standard error what is wrong."""
    out = console(stderr=True)
    out.print("error: ", style="bold red", end="", soft_wrap=True)
    for line in str(error).splitlines():
        out.print(printable(line), soft_wrap=True)
