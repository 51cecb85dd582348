"""`cheops site …`: the sites of the mesh as one agent sees them, and how a new site joins."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cheops.cli.enrollment import invite_command, join_command, rejoin_command
from cheops.cli.get import SiteArgument, draw_site_list
from cheops.cli.options import FAILED, UrlOption, agent
from cheops.cli.output import Output, OutputOption, emit_answer, print_table, rounded_ms, styled_status, table
from cheops.text import listed, printable

if TYPE_CHECKING:
    from rich.console import Console

    from cheops.api.models.site import Decided, Ping, SignedDecision
    from cheops.client import Agent


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


CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca",
        metavar="FOLDER",
        show_default="the agent signs, with security.ca_key",
        help="Sign the decision here, with the authority's key in this folder; any agent can then pass it on.",
    ),
]


@app.command("forget", epilog="Example: cheops site forget site3 --force")
def forget_command(
    name: SiteArgument,
    force: Annotated[bool, typer.Option("--force", help="Even if the site is up, or resources still use it.")] = False,
    ca: CaOption = None,
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove a site for good, and revoke its certificates. Reports which sites have confirmed it."""
    client = agent(url)
    signed = _signed(client, name, ca, forgotten=True) if ca else None
    response = client.decide(name, signed, force=force) if signed else client.forget(name, force=force)
    emit_answer(output, response, lambda out: _draw_decided(out, response))


@app.command("admit", epilog="Example: cheops site admit site3")
def admit_command(
    name: SiteArgument, ca: CaOption = None, url: UrlOption = None, output: OutputOption = Output.TABLE
) -> None:
    """Admit a forgotten site again. With security on, it needs a new certificate."""
    client = agent(url)
    signed = _signed(client, name, ca, forgotten=False) if ca else None
    response = client.decide(name, signed) if signed else client.admit(name)
    emit_answer(output, response, lambda out: _draw_decided(out, response))


def _signed(client: "Agent", name: str, ca: Path, *, forgotten: bool) -> "SignedDecision":
    """A decision that is later than the last one that the agent knows."""
    from cheops.api.models.site import SignedDecision  # noqa: PLC0415 - slow to import
    from cheops.peers.heartbeat import MembershipRecord  # noqa: PLC0415 - the same
    from cheops.peers.proofs import sign_decision  # noqa: PLC0415 - the same
    from cheops.security.keyring import load_authority_folder  # noqa: PLC0415 - the same

    authority, _ = load_authority_folder(ca)
    last_ms = next((site.decided_ms for site in client.sites().sites if site.name == name), None) or 0
    stamp_ms = max(int(time.time() * 1000), last_ms + 1)
    record = sign_decision(MembershipRecord(name, stamp_ms, forgotten), authority)
    return SignedDecision(
        forgotten=forgotten, stamp_ms=stamp_ms, authority=record.authority, signature=record.signature
    )


def _draw_decided(out: "Console", response: "Decided") -> None:
    site = printable(response.site)
    word = "is forgotten" if response.forgotten else "is part of the mesh again"
    confirmed = f", and at {printable(listed(response.confirmed))}" if response.confirmed else ""
    out.print(f"{site} {word}: at this agent{confirmed}", soft_wrap=True)
    if not response.forgotten:
        out.print(f"With certificates, it also needs new keys: cheops site invite {site} --again", soft_wrap=True)
    if response.waiting:
        out.print(f"no answer yet from {printable(listed(response.waiting))}", style="yellow", soft_wrap=True)
    if response.unreachable:
        still = "still trusts" if response.forgotten else "still refuses"
        out.print(
            f"cannot be reached: {printable(listed(response.unreachable))}. Each {still} {site} until it is back and "
            "has the decision; 'cheops check' shows whether all have it",
            style="yellow",
            soft_wrap=True,
        )
    if response.resources:
        out.print(
            f"it no longer counts for: {printable(listed(response.resources))}\n"
            f"  To remove it from their site lists: cheops sites remove ID {site}",
            style="yellow",
            soft_wrap=True,
        )
