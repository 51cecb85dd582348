"""`cheops clock`: the clock of a site beside those of the others, and the cure for wrong stamps."""

from typing import TYPE_CHECKING, Annotated

import typer

from cheops.cli.options import FAILED, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.text import duration_text, printable

if TYPE_CHECKING:
    from rich.console import Console

    from cheops.api.models.site import Clocks


def clock_command(
    cure: Annotated[
        bool,
        typer.Option("--cure", help="Issue again what other sites refuse because this site's clock was ahead."),
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show a site's clock beside each peer's, and what is held back because of stamps.

    Set the clock right before you use --cure: the agent then starts again, under a new incarnation of its store. Exit
    code: 1 if other sites refuse what this one makes.
    """
    client = agent(url)
    response = client.cure_clock() if cure else client.clock()
    emit_answer(output, response, lambda out: _draw_cured(out, response) if cure else _draw(out, response))
    raise typer.Exit(FAILED if response.is_held_back and not cure else 0)


def _draw(out: "Console", response: "Clocks") -> None:
    rows = table("SITE", "CLOCK", "STATE")
    most = response.majority_offset_ms
    majority = "too few sites to compare" if most is None else f"most sites: {_offset(most)}"
    rows.add_row(response.site, response.time, majority)
    for peer in response.clocks:
        offset = "not measured yet" if peer.offset_ms is None else _offset(peer.offset_ms)
        rows.add_row(printable(peer.site), offset, "up" if peer.up else "when last seen")
    print_table(out, rows)
    if response.is_held_back:
        ahead, allowed = duration_text(response.stamps_ahead_ms), duration_text(response.allowed_ms)
        out.print(
            f"the clock of {printable(response.site)} was {ahead} ahead when it made its last operations, and the "
            f"other sites allow {allowed}: they refuse them. Set the clock right, then run: cheops clock --cure",
            style="red",
            soft_wrap=True,
        )
    for one in response.refused:
        out.print(f"refused here, {one.times} times: {printable(one.detail)}", style="yellow", soft_wrap=True)


def _draw_cured(out: "Console", response: "Clocks") -> None:
    ahead = duration_text(response.stamps_ahead_ms)
    out.print(
        f"{printable(response.site)} starts again: what is stamped up to {ahead} ahead is issued again with right "
        "stamps, once the other sites of its resources have answered",
        soft_wrap=True,
    )


def _offset(offset_ms: float) -> str:
    return f"{offset_ms:+,.0f} ms" if abs(offset_ms) < 10_000 else f"{offset_ms / 1000:+,.0f} s"
