"""`cheops init`: write a first configuration file for a site."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from cheops.cli.output import console
from cheops.config.address import DEFAULT_LISTEN, AddressError, is_loopback, parse_address, parse_url
from cheops.config.security import DEFAULT_FOLDER
from cheops.config.site import DEFAULT_FILE, parse_site
from cheops.config.template import site_file
from cheops.documents import DocumentError
from cheops.errors import ClientError
from cheops.scope.names import name_problem, normal


def init_command(  # noqa: PLR0913, PLR0917 - one per option
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to write.")] = DEFAULT_FILE,
    site: Annotated[str, typer.Option(metavar="NAME", help="The name of the site.")] = "site1",
    listen: Annotated[str, typer.Option(metavar="HOST:PORT", help="Where its agent listens.")] = str(
        DEFAULT_LISTEN
    ),
    advertise: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where others reach it.", show_default="as it listens"),
    ] = None,
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=URL", help="Another site; as often as there are.", show_default="none"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over a file that is there.")] = False,
) -> None:
    """Write a first configuration file for a site, with comments, valid as it stands."""
    text = _new_file(site, listen, advertise, peer or [])
    _check_together(text, file)
    _write(file, text, force=force)
    name = shlex.quote(str(file))
    out = console()
    out.print(f"wrote {file}", style="green", soft_wrap=True)
    out.print("Next:", style="bold")
    out.print("  1. Say in it which types of resources there are, and which commands they allow.")
    out.print(f"  2. cheops config check {name}", soft_wrap=True)
    out.print("  3. Write one for every other site, with cheops init there.")


def _new_file(site: str, listen: str, advertise: str | None, peers: list[str]) -> str:
    if problem := name_problem(normal(site)):
        raise ClientError(f"--site: {problem}")
    try:
        address = parse_address(listen)
    except AddressError as error:
        raise ClientError(f"--listen: {error}") from None
    url = _url_option("--advertise", advertise) if advertise is not None else None
    others = _peer_options(peers)
    urls = [*others.values(), *([url] if url else [])]
    is_here = not address.is_wildcard and all(is_loopback(one) for one in (address.url, *urls))
    return site_file(normal(site), address, url, others, None if is_here else DEFAULT_FOLDER)


def _peer_options(options: list[str]) -> dict[str, str]:
    peers: dict[str, str] = {}
    for option in options:
        name, sign, url = option.partition("=")
        name = normal(name.strip())
        if not sign:
            raise ClientError(f"--peer {option}: expected NAME=URL, such as site2=https://10.0.0.2:8079")
        if problem := name_problem(name):
            raise ClientError(f"--peer {option}: {problem}")
        if name in peers:
            raise ClientError(f"--peer {option}: '{name}' is given twice")
        peers[name] = _url_option(f"--peer {name}", url)
    return peers


def _url_option(option: str, text: str) -> str:
    try:
        return parse_url(text.strip())
    except AddressError as error:
        raise ClientError(f"{option}: {error}") from None


def _check_together(text: str, file: Path) -> None:
    """Each option is right; what is left are those that contradict each other."""
    try:
        parse_site(text, file)
    except DocumentError as error:
        raise ClientError(f"nothing was written, for the file would not be right\n  {error}") from None


def _write(file: Path, text: str, *, force: bool) -> None:
    try:
        with file.open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError:
        raise ClientError(f"{file} is there already; --force writes over it") from None
    except OSError as error:
        raise ClientError(f"{file}: {(error.strerror or str(error)).lower()}") from None
