"""`cheops site …`: the sites of the mesh, as one agent sees them."""

from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.asking import FAILED, UrlOption, agent
from cheops.cli.joining import invite_command, join_command
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, table
from cheops.cli.words import age, coloured, rounded_ms
from cheops.text import listed, printable

if TYPE_CHECKING:
    from cheops.api.models import Forgotten, Ping, Sites, SiteView

app = typer.Typer(no_args_is_help=True, help="Invite, see, ping and forget the sites of the mesh.")
app.command("invite", epilog="Example: cheops site invite site4")(invite_command)
app.command("join", epilog="Example: cheops site join CODE --listen 10.0.0.4:8079")(join_command)
NameArgument = Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The site.")]


@app.command("list", epilog="Example: cheops site list -o wide")
def list_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the sites, whether they are up, and how far away."""
    found = agent(url).sites()
    emit_answer(output, found, lambda out: draw_sites(out, found, wide=output is Output.WIDE))


@app.command("ping", epilog="Example: cheops site ping site2")
def ping_command(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", show_default="all but forgotten ones", help="The site.")
    ] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Have the agent ask one site, or each, for an answer now. Ends with 1 if one does not answer."""
    asked = agent(url)
    names = [name] if name else [s.name for s in asked.sites().sites if s.state != "forgotten" and not s.here]
    found = [asked.ping(one) for one in names]
    emit_answer(output, found, lambda out: draw_pings(out, found))
    raise typer.Exit(0 if all(ping.ok for ping in found) else FAILED)


@app.command("forget", epilog="Example: cheops site forget site3 --force")
def forget_command(
    name: NameArgument,
    force: Annotated[
        bool, typer.Option("--force", help="Also one that is up, or that resources still have.")
    ] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove a site that is gone for good. Resources count without it from then on."""
    found = agent(url).forget(name, force=force)
    emit_answer(output, found, lambda out: draw_forgotten(out, found))


@app.command("admit", epilog="Example: cheops site admit site3")
def admit_command(name: NameArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Take a forgotten site in again."""
    found = agent(url).admit(name)
    emit_answer(output, found, lambda out: out.print(f"{printable(found.name)} is part of the mesh again"))


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
