"""`cheops matrix …`: look at matrices, which say how operations combine. Nothing is executed."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.asking import IdArgument, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit, print_table, table
from cheops.errors import ClientError
from cheops.log.matrix import Entry, Matrix, Result
from cheops.matrix_file import MAX_TYPES, MatrixFile, read_matrix, type_problem
from cheops.scope.names import normal
from cheops.text import in_words, nearest, printable

if TYPE_CHECKING:
    from cheops.api.models import MatrixView

app = typer.Typer(
    no_args_is_help=True,
    help="Show and check matrices: how operations on a resource combine when they meet.",
)


@dataclass(frozen=True, slots=True)
class _Pair:
    """What holds for two types in this order, written or not."""

    before: str
    after: str
    result: Result | None  # None: ordered
    number: int  # the papers' class
    inferred: bool
    concurrent_both: bool


@dataclass(frozen=True, slots=True)
class _Checked:
    """A matrix and everything that follows from it for these types."""

    matrix: Matrix
    types: tuple[str, ...]
    meant: dict[str, str]  # for a type of --types that no entry mentions: the nearest that one does

    @property
    def pairs(self) -> list[_Pair]:
        written = {(entry.before, entry.after) for entry in self.matrix.entries}
        return [
            _pair(self.matrix, before, after, inferred=(before, after) not in written)
            for before in self.types
            for after in self.types
        ]

    @property
    def never_mentioned(self) -> list[str]:
        mentioned = self.matrix.types
        return [name for name in self.types if name not in mentioned]


@app.command("check", epilog="Example: cheops matrix check examples/matrices/counter.json --types set,inc")
def check_command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", show_default=False, help="The matrix, in JSON or YAML.")
    ],
    types: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="The types of your operations, to see that the matrix knows them.",
            show_default="those of the file",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether a matrix is free of contradictions, and what it means for every pair of types."""
    read = read_matrix(file)
    checked = _checked(read, _types_option(types) if types is not None else ())
    emit(output, _data(checked), lambda console: _show(console, checked))


@app.command("show", epilog="Example: cheops matrix show counter")
def show_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the matrix that is in force for a resource, and what it means for every pair of types."""
    from cheops.api.models import plain  # noqa: PLC0415 - see asking.py

    found = agent(url).matrix(id_)
    emit(output, plain(found), lambda console: draw_matrix(console, found))


def draw_matrix(out: Console, found: "MatrixView") -> None:
    """As for a file: what follows from the entries is the same here and there."""
    entries = [Entry(e.before, e.after, Result(e.result), e.concurrent_both) for e in found.entries]
    by = f", brought by {found.introduced_by}" if found.introduced_by else ""
    out.print(f"in force for {printable(found.resource or '')}{by}\n", style="bold", soft_wrap=True)
    _show(out, _Checked(Matrix(entries), found.types, {}))


def _checked(read: MatrixFile, asked: tuple[str, ...]) -> _Checked:
    types = tuple(dict.fromkeys((*read.types, *asked)))
    if len(types) > MAX_TYPES:
        raise ClientError(
            f"--types: {len(types):,} types with those of the file; at most {MAX_TYPES} are accepted"
        )
    near = {name: nearest(name, read.matrix.types) for name in asked if name not in read.types}
    return _Checked(read.matrix, types, {name: meant for name, meant in near.items() if meant})


def _types_option(text: str) -> tuple[str, ...]:
    names = tuple(normal(name.strip()) for name in text.split(","))
    if problem := next(filter(None, map(type_problem, names)), None):
        raise ClientError(f"--types: {problem}")
    return names


def _pair(matrix: Matrix, before: str, after: str, *, inferred: bool) -> _Pair:
    return _Pair(
        before,
        after,
        matrix.result(before, after) or _result_that_follows(matrix, before, after),
        matrix.class_of_pair(before, after),
        inferred,
        matrix.both_stay_when_concurrent(before, after) or matrix.both_stay_when_concurrent(after, before),
    )


def _result_that_follows(matrix: Matrix, before: str, after: str) -> Result | None:
    """What one could have written for a pair of which nobody wrote anything."""
    match matrix.replaces(after, before), matrix.replaces(before, after):
        case True, True:
            return Result.TAKE_ONE
        case True, False:
            return Result.REVERSE_ORDER
        case False, True:
            return Result.KEEP_ORDER
        case _:
            return None


def _data(checked: _Checked) -> dict[str, Any]:
    return {
        "types": list(checked.types),
        "pairs": [
            {
                "before": pair.before,
                "after": pair.after,
                "result": pair.result.value if pair.result else None,
                "class": pair.number,
                "inferred": pair.inferred,
                "concurrent": Result.TAKE_BOTH.value if pair.concurrent_both else None,
            }
            for pair in checked.pairs
        ],
        "replaces": {
            name: list(checked.matrix.wiped_by(name))
            for name in checked.types
            if checked.matrix.is_replace_type(name)
        },
        "never_mentioned": checked.never_mentioned,
        "hash": checked.matrix.hash,
    }


_WORDS = {
    Result.TAKE_ONE: "one",
    Result.TAKE_BOTH: "both",
    Result.KEEP_ORDER: "keep-order",
    Result.REVERSE_ORDER: "reverse-order",
    None: "ordered",
}
_STYLES = {1: "green", 2: "cyan", 3: "yellow"}
_LEGEND = (
    "class 1: they commute, 2: one replaces the other, 3: their order counts; * inferred, not in the file"
)


def _show(console: Console, checked: _Checked) -> None:
    _show_pairs(console, checked)
    for name in checked.types:
        console.print(_what_it_replaces(checked, name), soft_wrap=True)
    for name in checked.never_mentioned:
        console.print(_warning(name, checked.meant.get(name)), style="yellow", soft_wrap=True)
    console.print(f"hash {checked.matrix.hash}", soft_wrap=True)


def _show_pairs(console: Console, checked: _Checked) -> None:
    if not checked.types:
        console.print("no type is mentioned: all pairs are ordered")
        return
    listing = table("BEFORE \\ AFTER", *checked.types)
    cells = [_cell(pair) for pair in checked.pairs]
    width = len(checked.types)
    for row, before in enumerate(checked.types):
        listing.add_row(Text(before, style="bold"), *cells[row * width : (row + 1) * width])
    print_table(console, listing)
    console.print(f"{_LEGEND}\n", style="dim", soft_wrap=True)


def _cell(pair: _Pair) -> Text:
    mark = "*" if pair.inferred else ""
    return Text(f"{_WORDS[pair.result]} {pair.number}{mark}", style=_STYLES[pair.number])


def _what_it_replaces(checked: _Checked, name: str) -> str:
    if not checked.matrix.is_replace_type(name):
        return f"{name} replaces nothing"
    staying = [
        other for other in checked.types if checked.matrix.both_stay_when_concurrent(after=name, before=other)
    ]
    exception = f"; made at the same time as {in_words(staying)}, both stay, {name} first" if staying else ""
    return f"{name} replaces {', '.join(checked.matrix.wiped_by(name))}{exception}"


def _warning(name: str, meant: str | None) -> str:
    hint = f"; did you mean '{meant}'?" if meant else ""
    return (
        f"warning: type '{name}' is never mentioned: all its pairs are ordered, and it replaces nothing{hint}"
    )
