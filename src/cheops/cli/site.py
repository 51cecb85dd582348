"""`cheops site …`: the sites of the mesh, as one agent sees them."""

from typing import Annotated

import typer

from cheops.cli.asking import FAILED, UrlOption, agent
from cheops.cli.joining import invite_command, join_command
from cheops.cli.output import Output, OutputOption, emit_answer
from cheops.cli.site_views import NameArgument, draw_forgotten, draw_pings, draw_sites
from cheops.text import printable

app = typer.Typer(no_args_is_help=True, help="Invite, see, ping and forget the sites of the mesh.")
app.command("invite", epilog="Example: cheops site invite site4")(invite_command)
app.command("join", epilog="Example: cheops site join CODE --listen 10.0.0.4:8079")(join_command)


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
