"""`cheops demo`: three real sites on this machine play a story and then stay up; or a tour of scope-lang."""

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

from cheops.cli.demo_story import Stage, play_story
from cheops.cli.output import console, print_error, print_table, table
from cheops.demo.sites import NAMES, Sites
from cheops.demo.wires import WireError
from cheops.errors import CheopsError

_EXEC = "cheops exec --id shopping"
_TRY = (
    ("what there is", "cheops get resources"),
    ("is all well", "cheops status shopping"),
    ("what happened, site by site", "cheops log shopping"),
    ("another line", f"{_EXEC} --type add --command 'note add shopping tea'"),
    ("what would a new list replace", f"{_EXEC} --type set --command 'note set shopping tea' --dry-run"),
    ("the real state everywhere", "cheops verify shopping"),
)
_HELP = "cut (no site reaches another), cut site3 (only that one is cut off), heal, quit"


def stay_up(sites: Sites, out: Console, *, played: bool) -> None:
    """Until the visitor ends it: with a word, or with Ctrl-C, which is raised as KeyboardInterrupt."""
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
            signal.pause()  # nobody will say anything any more: until a signal
        if not _handle_input(sites, out, line.split()):
            return


def _handle_input(sites: Sites, out: Console, words: list[str]) -> bool:
    """Whether to go on."""
    match words:
        case [] | ["help" | "?"]:
            out.print(f"Type here: {_HELP}")
        case ["cut", *alone]:
            try:
                sites.wires.cut(*alone)
            except WireError as error:
                print_error(error)
            else:
                out.print(_network(sites))
        case ["heal"]:
            sites.wires.heal()
            out.print(_network(sites))
        case ["quit" | "exit" | "q"]:
            return False
        case _:
            out.print(f"not understood. Type here: {_HELP}", style="red")
    return True


def _network(sites: Sites) -> str:
    severed = sorted(" and ".join(sorted(pair)) for pair in sites.wires.severed)
    return f"cut: {', '.join(severed)}" if severed else "every site reaches every other"


def _show_hints(sites: Sites, out: Console, *, played: bool) -> None:
    out.print()
    out.print("The three sites stay up. In another terminal:", style="bold")
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
        _print_command(out, f"{images} -H 'Scope: {{image: site2}}'", "the images of site2, asked at site1")
    out.print()
    out.print(f"In a browser: {sites.urls[first]}/ui/ shows all this, and can cut sites off.", soft_wrap=True)
    out.print(f"Their files are in {sites.path}, until the end.", soft_wrap=True)
    out.print(f"Type here: {_HELP}")


def _print_command(out: Console, line: str, what: str = "") -> None:
    out.print(Text.assemble("  ", (line, "green"), (f"   # {what}" if what else "", "dim")), soft_wrap=True)


def _own_command() -> str:
    """How this command is started where it is not in PATH."""
    started = Path(sys.argv[0])
    return str(started.absolute()) if started.name == "cheops" else f"{sys.executable} -m cheops"


@dataclass(frozen=True, slots=True)
class Step:
    """What the visitor should look for, and the command that shows it; {sites} is the file of sites."""

    says: str
    command: str


STEPS = (
    Step(
        "A request says where it is executed. Here: servers at paris, made from the images of lyon.",
        "cheops scope parse '{compute: paris, image: lyon}'",
    ),
    Step(
        "Before anything runs, Cheops says what it would do. One image, replicated at two sites:",
        "cheops scope explain '{image: paris & lyon}' --sites {sites}",
    ),
    Step(
        "Stay near: whatever has the service within 10 ms of paris, nearest first.",
        "cheops scope explain '{compute: around(paris, 10ms)}' --sites {sites}",
    ),
    Step(
        "brest is cut off. Replicas catch up when it is back; a strong level goes on with a majority.",
        "cheops scope explain '{image: strong(paris & lyon & brest)}' --sites {sites}",
    ),
    Step(
        "A mistake is refused, with the place and what was probably meant.",
        "cheops scope explain '{image: paris & loyn}' --sites {sites}",
    ),
)


def play_tour(context: typer.Context) -> None:
    out = console()
    with as_file(files("cheops.cli") / "demo_sites.yaml") as sites:
        for number, step in enumerate(STEPS, 1):
            out.print(f"\n{number}. {step.says}", style="bold", soft_wrap=True)
            out.print(f"$ {step.command.replace('{sites}', 'sites.yaml')}\n", style="green", soft_wrap=True)
            _run_step(context, step.command.replace("{sites}", shlex.quote(str(sites))))
        out.print("\nNow you: try your own scope against the same four sites.", style="bold", soft_wrap=True)
        out.print(f"  cheops scope explain 'lyon ; paris' --service compute --sites {sites}", soft_wrap=True)


def _run_step(context: typer.Context, command: str) -> None:
    """Run a command line of ours in this process, errors shown as the command itself would."""
    root = context.find_root().command
    try:
        root.main(args=shlex.split(command)[1:], prog_name="cheops", standalone_mode=False)
    except CheopsError as error:
        sys.stdout.flush()
        print_error(error)


_INTERRUPTED = 130


def demo_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Play without pauses, then stay up.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Play without pauses, and end; 0 if all went as told.")
    ] = False,
    bare: Annotated[bool, typer.Option("--bare", help="Without the story: three sites that stay up.")] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_533, help="Of site1; the others follow. 0: free ones.")
    ] = 0,
    tour: Annotated[bool, typer.Option("--tour", help="A tour of scope-lang instead, without any site.")] = False,
) -> None:
    """Run a guided tour with three real sites on this machine: a network cut, a conflict, and how it is merged.

    Then the sites stay up and can be tried, until Ctrl-C. Nothing is left behind, however it ends.
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
                play_story(Stage(sites, context, out, pauses=not (fast or check)))
            played = True
            if not check:
                stay_up(sites, out, played=not bare)
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends already
            out.print()
    except (KeyboardInterrupt, typer.Abort):
        out.print()
        if not played:
            raise typer.Exit(_INTERRUPTED) from None
    out.print("The sites are stopped, and nothing of them is left.")


def _started(out: Console, port: int) -> Sites:
    out.print("Three sites on this machine, each with an agent and applications of its own:")
    sites = Sites(port)
    redis = "a Redis" if sites.redis_server else "no Redis: redis-server is not installed"
    made = table("SITE", "AGENT", "APPLICATIONS")
    for name in NAMES:
        made.add_row(name, sites.urls[name], f"plain files, minicloud, {redis}")
    out.print()
    print_table(out, made)
    sys.stdout.flush()
    return sites


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
