"""After the story: the sites stay up to be tried, and the wires between them can be cut here."""

import shlex
import shutil
import signal
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

from cheops.cli.output import complain
from cheops.demo.sites import NAMES, Sites
from cheops.demo.wires import WireError

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
    _invite(sites, out, played=played)
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
        if not _obey(sites, out, line.split()):
            return


def _obey(sites: Sites, out: Console, words: list[str]) -> bool:
    """Whether to go on."""
    match words:
        case [] | ["help" | "?"]:
            out.print(f"Type here: {_HELP}")
        case ["cut", *alone]:
            try:
                sites.wires.cut(*alone)
            except WireError as error:
                complain(error)
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


def _invite(sites: Sites, out: Console, *, played: bool) -> None:
    out.print()
    out.print("The three sites stay up. In another terminal:", style="bold")
    out.print()
    if shutil.which("cheops") is None:
        _command(out, f"alias cheops={shlex.quote(_ourselves())}")
    first, *others = NAMES
    also = ", ".join(f"{name}: {sites.urls[name]}" for name in others)
    _command(out, f"export CHEOPS_URL={sites.urls[first]}", f"{first}; {also}")
    for what, command in _TRY if played else ():
        _command(out, command, what)
    if played:
        images = f"curl {sites.cloud.url(first, 'image')}/images"
        _command(out, f"{images} -H 'Scope: {{image: site2}}'", "the images of site2, asked at site1")
    out.print()
    out.print(f"In a browser: {sites.urls[first]}/ui/ shows all this, and can cut sites off.", soft_wrap=True)
    out.print(f"Their files are in {sites.path}, until the end.", soft_wrap=True)
    out.print(f"Type here: {_HELP}")


def _command(out: Console, line: str, what: str = "") -> None:
    out.print(Text.assemble("  ", (line, "green"), (f"   # {what}" if what else "", "dim")), soft_wrap=True)


def _ourselves() -> str:
    """How this command is started where it is not in PATH."""
    started = Path(sys.argv[0])
    return str(started.absolute()) if started.name == "cheops" else f"{sys.executable} -m cheops"
