"""The entry point: the tree of commands, and the one place where errors become messages and exit codes.

Exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 the command line itself
is wrong; 130 interrupted.
"""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from cheops import __version__
from cheops.cli import agent, config, demo, init, matrix, run, scope, sim
from cheops.cli.output import complain
from cheops.errors import CheopsError

_EXAMPLES = """\
Examples:

  cheops scope parse '{compute: site1, image: site1 & site2}'

  cheops scope explain 'site1 & site2'

  cheops matrix check examples/matrices/counter.json

  cheops sim --seeds 100

  cheops demo
"""

app = typer.Typer(
    name="cheops",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_EXAMPLES,
)
app.add_typer(scope.app, name="scope", rich_help_panel="Say where")
app.add_typer(matrix.app, name="matrix", rich_help_panel="Say how changes combine")
app.command("demo", rich_help_panel="Get started")(demo.demo_command)
app.command("init", rich_help_panel="Get started")(init.init_command)
app.command("exec", rich_help_panel="Operate")(run.exec_command)
app.command("show", rich_help_panel="Operate")(run.show_command)
app.command("agent", rich_help_panel="Run a site")(agent.agent_command)
app.add_typer(config.app, name="config", rich_help_panel="Run a site")
app.command("sim", rich_help_panel="Trust it")(sim.sim_command)


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
    """Cheops makes one application instance per site act together as one geo-distributed application."""


def main(argv: list[str] | None = None) -> int:
    """Run one command line and give its exit code; nothing escapes as a traceback but a bug."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal without Unicode is no reason to stop
    try:
        return _run(argv)
    except CheopsError as error:
        complain(error)
    except OSError as error:
        complain(CheopsError(f"cannot write the answer: {error.strerror or error}"))
        sys.stdout = None  # nothing more to flush when the interpreter ends
    return 1


def _run(argv: list[str] | None) -> int:
    try:
        app(args=argv, prog_name="cheops")
    except SystemExit as stop:
        sys.stdout.flush()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0
