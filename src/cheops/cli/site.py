"""`cheops site …`: the sites of the mesh as one agent sees them, and how a new site joins."""

from typing import TYPE_CHECKING, Annotated

import typer

from cheops.cli.enrollment import invite_command, join_command, rejoin_command
from cheops.cli.get import SiteArgument, draw_site_list
from cheops.cli.options import FAILED, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, rounded_ms, styled_status, table
from cheops.text import listed, printable

if TYPE_CHECKING:
    from rich.console import Console

    from cheops.api.models.site import Forgotten, Ping


app = typer.Typer(no_args_is_help=True)
app.command("invite", epilog="Example: cheops site invite site4")(invite_command)
app.command("join", epilog="Example: cheops site join --listen 10.0.0.4:8079")(join_command)
app.command("rejoin", epilog="Example: cheops site rejoin --config site.yaml")(rejoin_command)


@app.command("list", epilog="Example: cheops site list -o wide")
def list_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the sites, with their state and distance."""
    response = agent(url).sites()
    emit_answer(output, response, lambda out: draw_site_list(out, response, wide=output is Output.WIDE))


@app.command("ping", epilog="Example: cheops site ping site2")
def ping_command(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", show_default="all sites except forgotten ones", help="The site.")
    ] = "",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Ping one site, or all, from the agent. Exit code: 1 if one does not reply."""
    client = agent(url)
    names = [name] if name else [s.name for s in client.sites().sites if s.state != "forgotten" and not s.here]
    response = [client.ping(one) for one in names]
    emit_answer(output, response, lambda out: _draw_pings(out, response))
    raise typer.Exit(0 if all(ping.ok for ping in response) else FAILED)


def _draw_pings(out: "Console", response: "list[Ping]") -> None:
    if not response:
        out.print("no other sites")
        return
    rows = table("SITE", "REPLY", "TOOK", "URL", "DETAIL")
    for ping in response:
        answer = styled_status("OK" if ping.ok else "failed")
        rows.add_row(ping.site, answer, rounded_ms(ping.took_ms), ping.url, printable(ping.detail) or "-")
    print_table(out, rows)


@app.command("forget", epilog="Example: cheops site forget site3 --force")
def forget_command(
    name: SiteArgument,
    force: Annotated[bool, typer.Option("--force", help="Even if the site is up, or resources still use it.")] = False,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove a site that is gone for good. Its resources no longer wait for it."""
    response = agent(url).forget(name, force=force)
    emit_answer(output, response, lambda out: _draw_forgotten(out, response))


def _draw_forgotten(out: "Console", response: "Forgotten") -> None:
    out.print(f"{printable(response.site)} is forgotten")
    if response.resources:
        out.print(
            f"it no longer counts for: {printable(listed(response.resources))}\n"
            f"  To remove it from their site lists: cheops sites remove ID {printable(response.site)}",
            style="yellow",
            soft_wrap=True,
        )


@app.command("admit", epilog="Example: cheops site admit site3")
def admit_command(name: SiteArgument, url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """Admit a forgotten site again."""
    response = agent(url).admit(name)
    emit_answer(output, response, lambda out: out.print(f"{printable(response.name)} is part of the mesh again"))
