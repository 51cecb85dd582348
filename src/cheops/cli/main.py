"""The entry point: the one place where errors become messages and exit codes. The commands are in tree.py.

Exit codes: 0 done; 1 refused or failed, with the reason on standard error; 2 wrong command line; 3 not everywhere or
not in time, but it continues in the background; 130 interrupted.

Typer, which takes 2 MB, is imported here only for command lines that it reads: not for that of an agent.
"""

import gc
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path

from cheops.errors import CheopsError


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
    if argv[:1] == ["agent"]:
        from cheops.cli.agent_process import plain_options, serve  # noqa: PLC0415 - only the agent needs it

        if options := plain_options(argv[1:]):
            return _served(serve, *options)
    from cheops.cli.commands import with_exec  # noqa: PLC0415 - see above
    from cheops.cli.tree import app  # noqa: PLC0415 - see above

    try:
        app(args=with_exec(argv), prog_name="cheops")
    except SystemExit as stop:
        # Here and not when the interpreter ends: a full disk must give a message and exit code 1, not a traceback.
        sys.stdout.flush()
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    return 0


def _served(serve: Callable[[Path, bool], None], config: Path, is_verbose: bool) -> int:
    try:
        serve(config, is_verbose)
    except KeyboardInterrupt:  # before it handles signals
        return 130
    return 0
