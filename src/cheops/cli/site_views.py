"""How sites are named on the command line, and how they look there.

Apart from the commands in site.py: those know how a site joins, and who lists sites need not wait for that.
"""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.output import print_table, table
from cheops.cli.words import age, coloured, rounded_ms
from cheops.text import listed, printable

if TYPE_CHECKING:
    from cheops.api.models import Forgotten, Ping, Sites, SiteView

NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The site.")]


def draw_sites(out: Console, found: "Sites", *, wide: bool = False) -> None:
    more = ("URL", "VERSION", "CLOCK", "SERVICES") if wide else ()
    made = table("SITE", "STATE", "AS OF", "RTT", *more)
    for site in found.sites:
        extra = (site.url, site.version or "?", _clock(site), ", ".join(site.services) or "-") if wide else ()
        rtt = (
            f"{'' if site.rtt_measured else '~'}{rounded_ms(site.rtt_ms)}" if site.rtt_ms is not None else "-"
        )
        name = f"{site.name} (asked)" if site.here else site.name
        made.add_row(printable(name), coloured(site.state), age(site.as_of_s), rtt, *extra)
    print_table(out, made)
    of_sites = (
        f"{site.name}: {said}" for site in found.sites for said in site.problems if said != site.state
    )
    for problem in (*found.problems, *of_sites):
        out.print(f"warning: {printable(problem)}", style="yellow", soft_wrap=True)


def _clock(site: "SiteView") -> str:
    return "-" if site.clock_offset_ms is None else f"{site.clock_offset_ms:+.0f} ms"


def draw_pings(out: Console, found: "list[Ping]") -> None:
    if not found:
        out.print("no other site is known")
        return
    made = table("SITE", "ANSWER", "TOOK", "URL", "DETAIL")
    for ping in found:
        answer = coloured("OK" if ping.ok else "failed")
        made.add_row(ping.site, answer, rounded_ms(ping.took_ms), ping.url, printable(ping.detail) or "-")
    print_table(out, made)


def draw_forgotten(out: Console, found: "Forgotten") -> None:
    out.print(f"{printable(found.site)} is forgotten")
    if found.resources:
        out.print(
            f"it does not count any more for: {printable(listed(found.resources))}\n"
            f"  To take it off their lists as well: cheops sites remove ID {printable(found.site)}",
            style="yellow",
            soft_wrap=True,
        )
