"""`cheops demo`: three real sites on this machine play a story, and then stay up to be tried."""

import signal
import sys
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from cheops.cli.demo_playground import stay_up
from cheops.cli.demo_stage import Stage
from cheops.cli.demo_story import play_story
from cheops.cli.demo_tour import play_tour
from cheops.cli.output import console, print_table, table
from cheops.demo.sites import NAMES, Sites

_INTERRUPTED = 130


def demo_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    context: typer.Context,
    fast: Annotated[bool, typer.Option("--fast", help="Play without pauses, then stay up.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Play without pauses, and end; 0 if all went as told.")
    ] = False,
    bare: Annotated[
        bool, typer.Option("--bare", help="Without the story: three sites that stay up.")
    ] = False,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_533, help="Of site1; the others follow. 0: free ones.")
    ] = 0,
    tour: Annotated[
        bool, typer.Option("--tour", help="A tour of scope-lang instead, without any site.")
    ] = False,
) -> None:
    """Play a story with three real sites on this machine: a cut, a conflict, who won and why.

    Then the sites stay up and can be tried, until Ctrl-C. Nothing is left behind, however it ends.
    """
    if tour:
        play_tour(context)
        return
    out = console()
    for number in (signal.SIGTERM, signal.SIGHUP):
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
