"""`cheops site invite`, `join` and `rejoin`: how a machine becomes a site, and how a site gets new keys."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cheops.cli.options import AddressOption, UrlOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer
from cheops.config.address import DEFAULT_PORT, Address, AddressError, address_of_url, parse_address, parse_url
from cheops.config.security import DEFAULT_FOLDER
from cheops.config.site import DEFAULT_FILE, SiteConfig, parse_site, read_site
from cheops.config.template import site_file
from cheops.config.values import UnitError, long_duration_s
from cheops.errors import CheopsError, ClientError
from cheops.text import printable

if TYPE_CHECKING:
    from rich.console import Console

    from cheops.api.models.site import Invitation
    from cheops.security.invitations import Code
    from cheops.security.keyring import KeyFolder


# -- codes -----------------------------------------------------------------------------------------------------

_MAX_CODE_CHARACTERS = 4_000  # far more than a code has: the file may be any file

CodeArgument = Annotated[
    str, typer.Argument(metavar="[-]", show_default=False, help="The code is on standard input, also at a terminal.")
]
CodeFileOption = Annotated[
    Path | None,
    typer.Option(
        "--code-file",
        metavar="FILE",
        show_default="asks for it, or reads standard input",
        help="The file with the code from 'cheops site invite'.",
    ),
]


def read_code(argument: str, file: Path | None) -> "Code":
    """The code of an invitation: from a file, from a prompt that does not show it, or from standard input; raises
    ClientError. Never from the command line, which every user of the machine can read."""
    from cheops.security.invitations import parse_code  # noqa: PLC0415 - slow

    if argument not in ("", "-"):
        raise ClientError(
            "the code was on the command line, where every user of this machine can read it. Leave it out: the command "
            "asks for it, or takes it from standard input or --code-file"
        )
    if file is not None:
        try:
            with file.open(encoding="utf-8") as opened:
                return parse_code(opened.read(_MAX_CODE_CHARACTERS))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ClientError(f"--code-file: {file} cannot be read: {reason}") from None
    if not argument and sys.stdin.isatty():
        return parse_code(typer.prompt("Code (it is not shown)", hide_input=True, err=True))
    return parse_code(sys.stdin.read(_MAX_CODE_CHARACTERS))


# -- invite ----------------------------------------------------------------------------------------------------


_MAX_VALID_S = 7 * 24 * 3600  # as the agent's limit, with a message in the units of the option


def invite_command(  # noqa: PLR0913, PLR0917 - one per option
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The site.")],
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="For a site of the mesh that needs new keys: its current certificate is refused from now on, at all "
            "sites.",
        ),
    ] = False,
    address: AddressOption = None,
    valid_for: Annotated[
        str, typer.Option(metavar="TIME", help="How long the code is valid, such as 15m or 2d.")
    ] = "1h",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Invite a site: print a one-time code for its certificate. Needs an agent with ca_key."""
    from cheops.api.models.site import InviteRequest  # noqa: PLC0415 - slow to import

    try:
        valid_for_s = long_duration_s(valid_for)
    except UnitError as error:
        raise ClientError(f"--valid-for: {error}") from None
    if not name:
        raise ClientError("the name of the site is empty")
    if not 1 <= valid_for_s <= _MAX_VALID_S:
        raise ClientError(f"--valid-for: expected 1s to 7d, found '{valid_for}'")
    request = InviteRequest(site=name, addresses=tuple(address or ()), valid_for_s=valid_for_s, again=again)
    response = agent(url).invite(request)
    emit_answer(output, response, lambda out: _draw_invitation(out, response, again=again))


def _draw_invitation(out: "Console", response: "Invitation", *, again: bool) -> None:
    """The code alone goes to standard output, so that it can go straight into a file or to the other machine."""
    until = time.strftime("%Y-%m-%d %H:%M", time.localtime(response.expires_ms / 1000))
    ended = ""
    if again:
        ended = " Its current certificate is refused from now on."
    elif response.ends_certificates:
        ended = " A certificate from an earlier code for this name is refused from now on."
    command = "rejoin" if again else "join"
    console(stderr=True).print(
        f"{printable(response.site)} may {command} once, until {until}.{ended} "
        f"Run 'cheops site {command}' on its machine, with this code:",
        soft_wrap=True,
        highlight=False,
    )
    out.print(response.code, soft_wrap=True, highlight=False)


# -- join ------------------------------------------------------------------------------------------------------


def join_command(  # noqa: PLR0913, PLR0917 - one per option
    code: CodeArgument = "",
    code_file: CodeFileOption = None,
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
    force: Annotated[
        bool,
        typer.Option("--force", help="Replace existing keys and certificates. An existing configuration file is kept."),
    ] = False,
) -> None:
    """Make this machine a site: create keys, get a certificate from the inviting site, and write all files."""
    from cheops.client.enrollment import Inviter  # noqa: PLC0415 - slow
    from cheops.security.keyring import FILES, refuse_to_overwrite, write_key_folder  # noqa: PLC0415 - the same

    parsed = read_code(code, code_file)
    path = folder or config.absolute().parent / DEFAULT_FOLDER
    kept = config.exists()
    if not force:
        refuse_to_overwrite(path / name for name in FILES)
        if kept:
            raise CheopsError(
                f"{config} exists already, and nothing was written; --force keeps it and writes keys and certificates "
                "only. For new keys of a site that is part of the mesh, use 'cheops site rejoin'"
            )
    if kept:
        _check_kept_file(read_site(config), parsed, path)
    inviter = Inviter(parsed)
    authority = inviter.authority()
    address_ = _listen_address(listen, inviter.own_host)
    url = _advertised_url(advertise, address_)
    hosts = _hosts(url, address_, address or ())
    text = _configuration(parsed, address_, url, {parsed.inviter: parsed.url}, config, path)
    parse_site(text, config)  # a mistake must show before the invitation is used up
    keys, welcome = inviter.get_certificate(authority, hosts, path)
    write_key_folder(keys, force=force)
    out = console()
    if kept:
        out.print(f"{parsed.site} has its certificate; wrote {path}, and kept {config}", style="green", soft_wrap=True)
        out.print(f"Next: cheops agent --config {config}", soft_wrap=True)
        return
    peers = {name: at for name, at in welcome.peers.items() if name != parsed.site}
    _write_config(config, _configuration(parsed, address_, url, peers, config, path))
    out.print(f"{parsed.site} has its certificate; wrote {path} and {config}", style="green", soft_wrap=True)
    out.print("Next:", style="bold")
    out.print(f"  1. Add the resource types and their allowed commands to {config}.", soft_wrap=True)
    out.print(f"  2. cheops agent --config {config}", soft_wrap=True)


def _check_kept_file(kept: SiteConfig, code: "Code", folder: Path) -> None:
    """An existing configuration file must fit what is about to be written."""
    _check_code_is_for(kept, code)
    if kept.security.folder is None or kept.security.folder.absolute() != folder.absolute():
        raise ClientError(
            f"{kept.source} is kept, and its security.folder is {kept.security.folder or 'not set'}, not {folder}: "
            f"set it there, or use --folder"
        )


def _check_code_is_for(config: SiteConfig, code: "Code") -> None:
    if config.name != code.site:
        raise ClientError(
            f"the code is for '{code.site}', and {config.source} is of '{config.name}'; nothing was changed. A new "
            "name is a new site: see docs/certificates-trouble.md#rename-a-site"
        )


def _hosts(url: str, listen: Address, more: "tuple[str, ...] | list[str]") -> tuple[str, ...]:
    """What the certificate of a site names, for clients; other sites go by the name of the site."""
    own = [] if listen.is_wildcard else [listen.host]
    return tuple(dict.fromkeys((address_of_url(url).host, *own, *more)))


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


def _write_config(config: Path, text: str) -> None:
    try:
        config.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ClientError(
            f"{config}: {(error.strerror or str(error)).lower()}. The certificate was written; create a "
            "configuration with 'cheops init'"
        ) from None


# -- rejoin ----------------------------------------------------------------------------------------------------


def rejoin_command(
    code: CodeArgument = "",
    code_file: CodeFileOption = None,
    config: Annotated[
        Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file of the site; not changed.")
    ] = DEFAULT_FILE,
    address: Annotated[
        list[str] | None,
        typer.Option(
            "--address",
            metavar="HOST",
            show_default="those of the current certificate",
            help="A host name or address, besides those in the configuration file. Repeatable.",
        ),
    ] = None,
    ca: Annotated[
        Path | None,
        typer.Option(
            "--ca",
            metavar="FOLDER",
            show_default=False,
            help="Instead of a code: the folder of a new authority, at the site that has its key.",
        ),
    ] = None,
) -> None:
    """Give this site new keys and a new certificate. Its configuration and its data stay as they are."""
    settings = read_site(config)
    path = settings.security.folder
    if path is None:
        raise ClientError(f"{config}: 'security' has no folder, so this site has no certificate to replace")
    hosts = _hosts(settings.advertise, settings.listen, _kept_addresses(path) if address is None else address)
    keys = _own_certificate(settings, ca, hosts) if ca else _invited(settings, read_code(code, code_file), hosts)
    from cheops.security.keyring import write_key_folder  # noqa: PLC0415 - slow

    write_key_folder(keys, force=True)
    out = console()
    out.print(f"{settings.name} has new keys and a new certificate in {path}", style="green", soft_wrap=True)
    if problem := _authority_problem(settings, keys, ca):
        out.print(problem, style="yellow", soft_wrap=True)
    out.print("Next: restart its agent", soft_wrap=True)


def _authority_problem(settings: SiteConfig, keys: "KeyFolder", ca: Path | None) -> str:
    """What is wrong with security.ca_key after the change: the agent would not start, or would use an old authority."""
    from cheops.security.keyring import CA_KEY, load_authority  # noqa: PLC0415 - slow

    ca_key = settings.security.ca_key
    if ca_key is None:
        return f"To invite other sites, set security.ca_key in {settings.source} to {ca / CA_KEY}." if ca else ""
    change = f"Set security.ca_key in {settings.source} to {ca / CA_KEY}." if ca else "Remove it, or put the key there."
    try:
        authority = load_authority(ca_key, keys.authorities)
    except CheopsError as error:
        return f"security.ca_key: {error}. {change}"
    if ca and keys.authorities.issuer_of(keys.identity) != authority.certificate:
        return f"security.ca_key is the key of another authority than {ca}. {change}"
    return ""


def _kept_addresses(path: Path) -> tuple[str, ...]:
    """The addresses in the current certificate; none if that is lost."""
    from cheops.security.keyring import load_certificate  # noqa: PLC0415 - slow

    try:
        return load_certificate(path).addresses
    except CheopsError:
        return ()


def _invited(settings: SiteConfig, code: "Code", hosts: tuple[str, ...]) -> "KeyFolder":
    from cheops.client.enrollment import Inviter  # noqa: PLC0415 - slow

    _check_code_is_for(settings, code)
    assert settings.security.folder is not None  # noqa: S101 - the caller has checked
    inviter = Inviter(code)
    keys, _ = inviter.get_certificate(inviter.authority(), hosts, settings.security.folder)
    return keys


def _own_certificate(settings: SiteConfig, ca: Path, hosts: tuple[str, ...]) -> "KeyFolder":
    """From an authority whose key is here. Authorities that this site trusted before stay trusted, after the new one:
    other sites have their certificates until they rejoin, and documents were signed with them."""
    from cheops.security.keyring import issue_keys, known_authorities, load_authority_folder  # noqa: PLC0415 - slow

    folder = settings.security.folder
    assert folder is not None  # noqa: S101 - the caller has checked
    authority, new = load_authority_folder(ca)
    trusted = new.followed_by(known_authorities(folder))
    return issue_keys(authority, trusted, folder, settings.name, hosts, settings.security.valid_for_s)
