"""`cheops watch`: what happens, as it happens."""

import json
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from cheops.cli.asking import UrlOption, agent
from cheops.cli.output import Output, OutputOption, as_yaml, console
from cheops.cli.words import coloured, moment, one_line
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import Event

_AGAIN_S = 1.0


def watch_command(
    id_: Annotated[
        str, typer.Argument(metavar="[ID]", show_default="all resources and sites", help="The resource.")
    ] = "",
    since: Annotated[
        str, typer.Option("--since", help="Begin after this place, of an event.", show_default="now")
    ] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what happens to a resource, or to all, line by line until Ctrl-C.

    With -o json an event per line, with -o yaml a document per event. When the agent goes away, it is asked
    again until it is back, and nothing that happened meanwhile is left out.
    """
    from cheops.client import UnreachableError  # noqa: PLC0415 - see asking.py

    asked = agent(url)
    last = since or asked.changes(id_ or None, limit=1).last
    gone = False
    while True:
        with suppress(UnreachableError):
            for event in asked.events(id_ or None, last):
                last, gone = event.place, False
                _write(event, output)
        if not gone:
            console(stderr=True).print("the agent is gone; asking again until it is back", style="yellow")
        gone = True
        time.sleep(_AGAIN_S)


def _write(event: "Event", output: Output) -> None:
    from cheops.api.models import plain  # noqa: PLC0415 - see asking.py

    match output:
        case Output.JSON:
            sys.stdout.write(json.dumps(plain(event), ensure_ascii=False) + "\n")
        case Output.YAML:
            sys.stdout.write(f"---\n{as_yaml(plain(event))}")
        case _:
            console().print(event_line(event, wide=output is Output.WIDE), soft_wrap=True)
    sys.stdout.flush()


def event_line(event: "Event", *, wide: bool = False) -> Text:
    """Time, what, and whom it is about; what does not apply is left out."""
    line = Text.assemble((moment(event.time), "dim"), f"  {printable(event.kind):<18}")
    about = (event.resource, event.operation, event.type, ", ".join(event.sites), f"at {event.site}")
    line.append("  ".join(printable(part) for part in about if part))
    if event.status:
        line.append("  ").append(coloured(event.status))
    for result in event.results:
        line.append(f"  {printable(result.site)} ").append(coloured(result.status))
    if event.detail:
        line.append(f"  {printable(event.detail) if wide else one_line(event.detail, 100)}")
    if wide:
        line.append(f"  [{event.place}]", "dim")
    return line
