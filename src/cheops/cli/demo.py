"""`cheops demo`: a guided tour with three real sites, which then stay up; or a tour of scope-lang without sites."""

import shlex
import shutil
import signal
import sys
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from cheops.cli.demo_story import Stage, run_story
from cheops.cli.output import console, print_error, print_table, table
from cheops.demo.network import UnknownSiteError
from cheops.demo.sites import NAMES, Sites
from cheops.errors import CheopsError

_EXEC = "cheops exec --id shopping"
_TRY = (
    ("list the resources", "cheops get resources"),
    ("are the sites in sync?", "cheops status shopping"),
    ("what happened at each site", "cheops log shopping"),
    ("add a line", f"{_EXEC} --type add --command 'note add shopping tea'"),
    ("what would a new list replace?", f"{_EXEC} --type set --command 'note set shopping tea' --dry-run"),
    ("compare the real state of all sites", "cheops verify shopping"),
)
_HELP = "cut (all sites from each other), cut site3 (only that site), heal, quit"


def stay_up(sites: Sites, out: Console, *, played: bool) -> None:
    """Read commands until the user quits, or presses Ctrl-C, which is raised as KeyboardInterrupt."""
    _show_hints(sites, out, played=played)
    is_terminal = sys.stdin.isatty()
    while True:
        if is_terminal:
            out.print(Text("demo> ", style="bold cyan"), end="")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not line and is_terminal:
            return  # Ctrl-D
        while not line:
            signal.pause()  # standard input is closed: only a signal ends it
        if not _handle_input(sites, out, line.split()):
            return


def _handle_input(sites: Sites, out: Console, words: list[str]) -> bool:
    """Return whether to continue."""
    match words:
        case [] | ["help" | "?"]:
            out.print(f"Type here: {_HELP}")
        case ["cut", *alone]:
            try:
                sites.network.cut(*alone)
            except UnknownSiteError as error:
                print_error(error)
            else:
                out.print(_network(sites))
        case ["heal"]:
            sites.network.heal()
            out.print(_network(sites))
        case ["quit" | "exit" | "q"]:
            return False
        case _:
            out.print(f"unknown command. Type here: {_HELP}", style="red")
    return True


def _network(sites: Sites) -> str:
    severed = sorted(" and ".join(sorted(pair)) for pair in sites.network.severed)
    return f"cut: {', '.join(severed)}" if severed else "all sites are connected"


def _show_hints(sites: Sites, out: Console, *, played: bool) -> None:
    out.print()
    out.print("The three sites stay up. Try these in another terminal:", style="bold")
    out.print()
    if shutil.which("cheops") is None:
        _print_command(out, f"alias cheops={shlex.quote(_own_command())}")
    first, *others = NAMES
    also = ", ".join(f"{name}: {sites.urls[name]}" for name in others)
    _print_command(out, f"export CHEOPS_URL={sites.urls[first]}", f"{first}; {also}")
    for what, command in _TRY if played else ():
        _print_command(out, command, what)
    if played:
        images = f"curl {sites.cloud.url(first, 'image')}/images"
        _print_command(out, f"{images} -H 'Scope: {{image: site2}}'", "the images of site2, through site1")
    out.print()
    out.print(f"In a browser: {sites.urls[first]}/ui/ shows the same, and can cut sites off.", soft_wrap=True)
    out.print(f"Their files are in {sites.path} while the demo runs.", soft_wrap=True)
    out.print(f"Type here: {_HELP}")


def _print_command(out: Console, line: str, what: str = "") -> None:
    out.print(Text.assemble("  ", (line, "green"), (f"   # {what}" if what else "", "dim")), soft_wrap=True)


def _own_command() -> str:
    """How to start this command where it is not in PATH."""
    started = Path(sys.argv[0])
    return str(started.absolute()) if started.name == "cheops" else f"{sys.executable} -m cheops"


@dataclass(frozen=True, slots=True)
class Step:
    """What to look for, and the command that shows it; {sites} is replaced by the path of the file of sites."""

    text: str
    command: str


STEPS = (
    Step(
        "A request says where it runs. Here: servers at paris, made from images at lyon.",
        "cheops scope parse '{compute: paris, image: lyon}'",
    ),
    Step(
        "Cheops can show what it would do before anything runs. One image, replicated at two sites:",
        "cheops scope explain '{image: paris & lyon}' --sites {sites}",
    ),
    Step(
        "Stay near: all sites with the service within 10 ms of paris, nearest first.",
        "cheops scope explain '{compute: around(paris, 10ms)}' --sites {sites}",
    ),
    Step(
        "brest is unreachable. A strong level continues with a majority; brest catches up when it is back.",
        "cheops scope explain '{image: strong(paris & lyon & brest)}' --sites {sites}",
    ),
    Step(
        "A mistake is refused, with its position and a suggestion.",
        "cheops scope explain '{image: paris & loyn}' --sites {sites}",
    ),
)


def play_tour(context: typer.Context) -> None:
    out = console()
    with as_file(files("cheops.cli") / "demo_sites.yaml") as sites:
        for number, step in enumerate(STEPS, 1):
            out.print(f"\n{number}. {step.text}", style="bold", soft_wrap=True)
            out.print(f"$ {step.command.replace('{sites}', 'sites.yaml')}\n", style="green", soft_wrap=True)
            _run_step(context, step.command.replace("{sites}", shlex.quote(str(sites))))
        out.print("\nNow try your own scope with the same four sites.", style="bold", soft_wrap=True)
        out.print(f"  cheops scope explain 'lyon ; paris' --service compute --sites {sites}", soft_wrap=True)


def _run_step(context: typer.Context, command: str) -> None:
    """Run a cheops command line in this process; errors are printed as the command itself would."""
    root = context.find_root().command
    try:
        root.main(args=shlex.split(command)[1:], prog_name="cheops", standalone_mode=False)
    except CheopsError as error:
        sys.stdout.flush()
        print_error(error)


_INTERRUPTED = 130


def demo_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Run without pauses, then stay up.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Run without pauses, then stop; exit code 0 if every check passed.")
    ] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Skip the tour: only start three sites.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_533, help="The port of site1; the others follow. 0: free ports.")
    ] = 0,
    tour: Annotated[bool, typer.Option("--tour", help="A tour of scope-lang instead, without sites.")] = False,
) -> None:
    """Run a guided tour with three real sites on this machine: a network cut, a conflict, and how it is merged.

    The sites then stay up for you to try, until Ctrl-C. Nothing is left behind, however it ends.
    """
    if tour:
        play_tour(context)
        return
    out = console()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # under nohup a hang-up stays ignored
            signal.signal(number, _interrupt)
    played = False
    try:
        with _started(out, port) as sites:
            if not bare:
                run_story(Stage(sites, context, out, pauses=not (fast or check)))
            played = True
            if not check:
                stay_up(sites, out, played=not bare)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C must not stop the clean-up
            out.print()
    except (KeyboardInterrupt, typer.Abort):
        out.print()
        if not played:
            raise typer.Exit(_INTERRUPTED) from None
    out.print("The sites are stopped; nothing is left behind.")


def _started(out: Console, port: int) -> Sites:
    out.print("Starting three sites on this machine, each with its own agent and applications:")
    sites = Sites(port)
    redis = "a Redis" if sites.redis_server else "no Redis: redis-server is not installed"
    rows = table("SITE", "AGENT", "APPLICATIONS")
    for name in NAMES:
        rows.add_row(name, sites.urls[name], f"plain files, minicloud, {redis}")
    out.print()
    print_table(out, rows)
    sys.stdout.flush()
    return sites


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
