"""The entry point: the tree of commands, and the one place where errors become messages and exit codes.

Exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 wrong command line; 3 not everywhere or
not in time, but it continues in the background; 130 interrupted.

Commands are imported when they are called (commands.py), so that each starts fast.
"""

import gc
import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from cheops import __version__
from cheops.cli.commands import COMMANDS, group_of, with_exec
from cheops.errors import CheopsError

_EXAMPLES = """\
Examples:

  cheops demo

  cheops scope explain 'site1 & site2'

  cheops exec --id counter --sites 'site1 & site2' --type inc --command 'redis-cli incrby counter 13'

  cheops status counter

  cheops explain counter

  cheops check

Documentation: docs/cli.md
"""
app = typer.Typer(
    name="cheops",
    cls=group_of(COMMANDS),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXAMPLES,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cheops {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """Cheops makes one application instance per site act as one geo-distributed application."""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return its exit code. Only a bug shows a traceback."""
    code = _run_reporting_errors(sys.argv[1:] if argv is None else argv)
    if argv is None:
        gc.freeze()  # the program ends: skip the garbage collection of everything imported
    return code


def _run_reporting_errors(argv: list[str]) -> int:
    """Run the command line, and print errors to standard error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # print what a terminal without Unicode can show
    try:
        return _run(argv)
    except CheopsError as error:
        _print_error(error)
    except OSError as error:
        _print_error(CheopsError(f"cannot write the output: {error.strerror or error}"))
        sys.stdout = None  # nothing more to flush when the interpreter ends
    return 1


def _print_error(error: CheopsError) -> None:
    from cheops.cli.output import print_error  # noqa: PLC0415 - rich is slow to import, and errors are rare

    print_error(error)


def _run(argv: list[str]) -> int:
    try:
        app(args=with_exec(argv), prog_name="cheops")
    except SystemExit as stop:
        # Here and not when the interpreter ends: a full disk must give a message and exit code 1, not a traceback.
        sys.stdout.flush()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
