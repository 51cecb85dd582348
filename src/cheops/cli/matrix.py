"""`cheops matrix …`: look at matrices, which say how operations combine. Nothing is executed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.options import IdArgument, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit, emit_answer, print_table, table
from cheops.errors import ClientError
from cheops.log.matrix import Result
from cheops.matrix_file import MAX_TYPES, MatrixFile, read_matrix, type_problem
from cheops.scope.names import normal
from cheops.text import in_words, nearest, printable

if TYPE_CHECKING:
    from cheops.api.models.operations import MatrixPair, MatrixView


app = typer.Typer(no_args_is_help=True)


@app.command("check", epilog="Example: cheops matrix check examples/matrices/counter.json --types set,inc")
def check_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False, help="The matrix, in JSON or YAML.")],
    types: Annotated[
        str | None,
        typer.Option(
            metavar="A,B,C",
            help="The types of your operations, to check that the matrix mentions them.",
            show_default="those of the file",
        ),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check a matrix for contradictions, and show what it means for every pair of types."""
    from cheops.api.views.log import matrix_view  # noqa: PLC0415 - slow to import

    read = read_matrix(file)
    extra_types = _types_option(types) if types is not None else ()
    response = matrix_view(read.matrix, _all_types(read, extra_types))
    emit(output, _data(response), lambda console: _show(console, response, _meant(read, extra_types)))


@app.command("show", epilog="Example: cheops matrix show counter")
def show_command(id_: IdArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Show the matrix of a resource, and what it means for every pair of types."""
    response = agent(url).matrix(id_)
    emit_answer(output, response, lambda console: draw_matrix(console, response))


def draw_matrix(out: Console, response: "MatrixView") -> None:
    by = f", introduced by {response.introduced_by}" if response.introduced_by else ""
    out.print(f"in force for {printable(response.resource or '')}{by}\n", style="bold", soft_wrap=True)
    _show(out, response, {})


def _all_types(read: MatrixFile, extra_types: tuple[str, ...]) -> tuple[str, ...]:
    types = tuple(dict.fromkeys((*read.types, *extra_types)))
    if len(types) > MAX_TYPES:
        raise ClientError(f"--types: {len(types):,} types with those of the file; at most {MAX_TYPES} are accepted")
    return types


def _meant(read: MatrixFile, extra_types: tuple[str, ...]) -> dict[str, str]:
    """For a type of --types that the file does not know: the nearest that an entry mentions."""
    near = {name: nearest(name, read.matrix.types) for name in extra_types if name not in read.types}
    return {name: meant for name, meant in near.items() if meant}


def _types_option(text: str) -> tuple[str, ...]:
    names = tuple(normal(name.strip()) for name in text.split(","))
    if problem := next(filter(None, map(type_problem, names)), None):
        raise ClientError(f"--types: {problem}")
    return names


def _data(response: "MatrixView") -> dict[str, Any]:
    return {
        "types": list(response.types),
        "pairs": [
            {
                "before": pair.before,
                "after": pair.after,
                "result": pair.result,
                "class": pair.class_,
                "inferred": pair.inferred,
                "concurrent": Result.TAKE_BOTH.value if pair.concurrent_both else None,
            }
            for pair in response.pairs
        ],
        "replaces": {name: list(replaced) for name, replaced in response.replaces.items()},
        "never_mentioned": list(response.never_mentioned),
        "hash": response.hash,
    }


_WORDS = {
    Result.TAKE_ONE.value: "one",
    Result.TAKE_BOTH.value: "both",
    Result.KEEP_ORDER.value: "keep-order",
    Result.REVERSE_ORDER.value: "reverse-order",
    None: "ordered",
}
_STYLES = {1: "green", 2: "cyan", 3: "yellow"}
_LEGEND = "class 1: commute, 2: one replaces the other, 3: order matters; * inferred, not in the file"


def _show(console: Console, response: "MatrixView", meant: dict[str, str]) -> None:
    _show_pairs(console, response)
    for name in response.types:
        console.print(_what_it_replaces(response, name), soft_wrap=True)
    for name in response.never_mentioned:
        console.print(_warning(name, meant.get(name)), style="yellow", soft_wrap=True)
    console.print(f"hash {response.hash}", soft_wrap=True)


def _show_pairs(console: Console, response: "MatrixView") -> None:
    if not response.types:
        console.print("no types are mentioned: all pairs are ordered")
        return
    listing = table("BEFORE \\ AFTER", *response.types)
    cells = [_cell(pair) for pair in response.pairs]
    width = len(response.types)
    for row, before in enumerate(response.types):
        listing.add_row(Text(before, style="bold"), *cells[row * width : (row + 1) * width])
    print_table(console, listing)
    console.print(f"{_LEGEND}\n", style="dim", soft_wrap=True)


def _cell(pair: "MatrixPair") -> Text:
    mark = "*" if pair.inferred else ""
    return Text(f"{_WORDS[pair.result]} {pair.class_}{mark}", style=_STYLES[pair.class_])


def _what_it_replaces(response: "MatrixView", name: str) -> str:
    replaced = response.replaces.get(name)
    if replaced is None:
        return f"{name} replaces nothing"
    both = {pair.before for pair in response.pairs if pair.after == name and pair.concurrent_both}
    staying = [other for other in response.types if other in both and other in replaced]
    exception = f"; if concurrent with {in_words(staying)}, both stay, {name} first" if staying else ""
    return f"{name} replaces {', '.join(replaced)}{exception}"


def _warning(name: str, meant: str | None) -> str:
    hint = f"; did you mean '{meant}'?" if meant else ""
    return f"warning: type '{name}' is never mentioned: all its pairs are ordered, and it replaces nothing{hint}"
