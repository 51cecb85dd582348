"""`cheops site …`: the sites of the mesh as one agent sees them, and how a new site joins."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cheops.cli.get import SiteArgument, draw_site_list
from cheops.cli.options import FAILED, AddressOption, UrlOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer, print_table, rounded_ms, styled_status, table
from cheops.config.address import DEFAULT_PORT, Address, AddressError, address_of_url, parse_address, parse_url
from cheops.config.security import DEFAULT_FOLDER
from cheops.config.site import DEFAULT_FILE, parse_site
from cheops.config.template import site_file
from cheops.config.values import UnitError, long_duration_s
from cheops.errors import ClientError
from cheops.text import listed, printable

if TYPE_CHECKING:
    from rich.console import Console

    from cheops.api.models.site import Forgotten, Invitation, Ping
    from cheops.client.enrollment import Welcome
    from cheops.security.invitations import Code


_MAX_CODE_CHARACTERS = 4_000  # far more than a code has: standard input may be any file


def invite_command(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The new site.")],
    address: AddressOption = None,
    valid_for: Annotated[
        str, typer.Option(metavar="TIME", help="How long the code is valid, such as 15m or 2d.")
    ] = "1h",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Invite a new site: print a one-time code for its certificate. Needs an agent with ca_key."""
    from cheops.api.models.site import InviteRequest  # noqa: PLC0415 - slow to import

    try:
        valid_for_s = long_duration_s(valid_for)
    except UnitError as error:
        raise ClientError(f"--valid-for: {error}") from None
    request = InviteRequest(site=name, addresses=tuple(address or ()), valid_for_s=valid_for_s)
    response = agent(url).invite(request)
    emit_answer(output, response, lambda out: _draw_invitation(out, response))


def _draw_invitation(out: "Console", response: "Invitation") -> None:
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(response.expires_ms / 1000))
    out.print(f"{response.site} may join once, until {until}. On its machine:\n", soft_wrap=True)
    out.print(f"  cheops site join {response.code}", soft_wrap=True, highlight=False)


def join_command(  # noqa: PLR0913, PLR0917 - one per option
    code: Annotated[
        str, typer.Argument(metavar="CODE", show_default="standard input", help="The code from 'cheops site invite'.")
    ] = "-",
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            show_default="as the inviting site sees it, 8079",
            help="The address on which the agent listens.",
        ),
    ] = None,
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", show_default="the listen address", help="The URL by which other sites reach it."),
    ] = None,
    address: AddressOption = None,
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file to write.")
    ] = DEFAULT_FILE,
    folder: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", show_default="tls, beside that file", help="The folder for keys and certificates."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Make this machine a site: create keys, get a certificate from the inviting site, and write all files."""
    from cheops.client.enrollment import Inviter  # noqa: PLC0415 - slow
    from cheops.security.certificate_requests import make_request  # noqa: PLC0415 - the same
    from cheops.security.certificates import (  # noqa: PLC0415
        make_key,
        make_signing_key,
    )
    from cheops.security.invitations import parse_code  # noqa: PLC0415 - the same
    from cheops.security.keyring import FILES, KeyFolder, refuse_to_overwrite, write_key_folder  # noqa: PLC0415

    parsed = parse_code(sys.stdin.read(_MAX_CODE_CHARACTERS) if code == "-" else code)
    path = folder or config.absolute().parent / DEFAULT_FOLDER
    if not force:
        refuse_to_overwrite((config, *(path / name for name in FILES)))
    inviter = Inviter(parsed)
    authority = inviter.authority()
    address_ = _listen_address(listen, inviter.own_host)
    url = _advertised_url(advertise, address_)
    hosts = tuple(
        dict.fromkeys((address_of_url(url).host, *([] if address_.is_wildcard else [address_.host]), *(address or ())))
    )
    text = _configuration(parsed, address_, url, {parsed.inviter: parsed.url}, config, path)
    parse_site(text, config)  # a mistake must show before the invitation is used up
    key, signing_key = make_key(), make_signing_key()
    welcome = inviter.join(authority, make_request(parsed.site, key, signing_key, hosts, parsed.secret))
    _check_welcome(parsed, welcome)
    write_key_folder(KeyFolder(path, welcome.authorities, welcome.identity, key, signing_key), force=force)
    peers = {name: at for name, at in welcome.peers.items() if name != parsed.site}
    _write_config(config, _configuration(parsed, address_, url, peers, config, path))
    out = console()
    out.print(f"{parsed.site} has its certificate; wrote {path} and {config}", style="green", soft_wrap=True)
    out.print("Next:", style="bold")
    out.print(
        f"  1. Add the resource types and their allowed commands to {config}.",
        soft_wrap=True,
    )
    out.print(f"  2. cheops agent --config {config}", soft_wrap=True)


def _listen_address(option: str | None, own_host: str) -> Address:
    try:
        return parse_address(option) if option else Address(own_host, DEFAULT_PORT)
    except AddressError as error:
        raise ClientError(f"--listen: {error}") from None


def _advertised_url(option: str | None, listen: Address) -> str:
    if option is None and listen.is_wildcard:
        raise ClientError(f"--advertise is missing: {listen} means every address of this machine, and peers need one")
    try:
        return parse_url(option) if option else listen.url_as("https")
    except AddressError as error:
        raise ClientError(f"--advertise: {error}") from None


def _configuration(  # noqa: PLR0913, PLR0917 - what it contains
    code: "Code", listen: Address, url: str, peers: dict[str, str], config: Path, folder: Path
) -> str:
    beside = config.absolute().parent
    shown = os.path.relpath(folder, beside) if folder.absolute().is_relative_to(beside) else str(folder.absolute())
    advertise = url if url != listen.url_as("https") else None
    return site_file(code.site, listen, advertise, peers, shown)


def _check_welcome(code: "Code", welcome: "Welcome") -> None:
    if welcome.identity.site != code.site:
        raise ClientError(f"{code.inviter} sent the certificate of another site; nothing was written")


def _write_config(config: Path, text: str) -> None:
    try:
        config.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClientError(
            f"{config}: {(error.strerror or str(error)).lower()}. The certificate was written; create a "
            "configuration with 'cheops init'"
        ) from None


app = typer.Typer(no_args_is_help=True)
app.command("invite", epilog="Example: cheops site invite site4")(invite_command)
app.command("join", epilog="Example: cheops site join CODE --listen 10.0.0.4:8079")(join_command)


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
