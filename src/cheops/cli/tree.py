"""The tree of commands, as Typer reads it. Commands are imported when they are called (commands.py)."""

from typing import Annotated

import typer

from cheops import __version__
from cheops.cli.commands import COMMANDS, group_of

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
