"""`cheops ca …` and `cheops token …`: certificates for sites, and access tokens for people and programs."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.options import AddressOption, UrlOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer, print_table, short_time, table
from cheops.config.security import MAX_VALID_FOR_S
from cheops.config.values import UnitError, long_duration_s
from cheops.errors import ClientError
from cheops.scope.names import name_problem, normal
from cheops.security.principal import Role
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models.site import MadeToken, TokenList, TokenView


ca_app = typer.Typer(no_args_is_help=True)
_DAY_S = 86_400.0


@ca_app.command("init", epilog="Example: cheops ca init ca")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write to.")] = Path("ca"),
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing one: its sites then need new certificates.")
    ] = False,
) -> None:
    """Create the authority of a mesh: ca.pem, which all sites trust, and ca.key, which must stay secret."""
    from cheops.security.certificates import (  # noqa: PLC0415
        Authorities,
        fingerprint,
        make_authority,
    )
    from cheops.security.keyring import AUTHORITIES, CA_KEY, key_pem, make_directory, refuse_to_overwrite, write_file  # noqa: PLC0415

    if not force:
        refuse_to_overwrite((folder / AUTHORITIES, folder / CA_KEY))
    authority = make_authority(time.time())
    make_directory(folder)
    write_file(folder / CA_KEY, key_pem(authority.key), secret=True)
    write_file(folder / AUTHORITIES, Authorities([authority.certificate]).pem, secret=False)
    out = console()
    out.print(f"wrote {folder / AUTHORITIES} and {folder / CA_KEY}", style="green", soft_wrap=True)
    out.print(f"fingerprint (SHA-256): {fingerprint(authority.certificate).hex(':')}", soft_wrap=True)
    out.print("The owner of the key decides who is a site: keep it secret, with a backup elsewhere.")


@ca_app.command("issue", epilog="Example: cheops ca issue site1 --address 10.0.0.1 --folder tls")
def issue_command(  # noqa: PLR0913, PLR0917 - one per option
    site: Annotated[str, typer.Argument(metavar="SITE", show_default=False, help="The name of the site.")],
    address: AddressOption = None,
    ca: Annotated[Path, typer.Option("--ca", metavar="FOLDER", help="The authority's folder.")] = Path("ca"),
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder to write to.", show_default="tls-SITE"),
    ] = None,
    valid_for: Annotated[str, typer.Option(metavar="TIME", help="How long it is valid, such as 90d.")] = "365d",
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Create keys and a certificate for a site: for the first one, or where 'site join' cannot be used."""
    from cheops.security.certificates import (  # noqa: PLC0415
        Authorities,
        CertificateSpec,
        make_key,
        make_signing_key,
        raw_public_key,
    )
    from cheops.security.keyring import (  # noqa: PLC0415
        AUTHORITIES,
        CA_KEY,
        KeyFolder,
        load_authorities,
        load_authority,
        write_key_folder,
    )

    name = normal(site)
    if problem := name_problem(name):
        raise ClientError(f"SITE: {problem}")
    path = folder or Path(f"tls-{_file_name(name)}")
    trusted = Authorities(load_authorities(ca / AUTHORITIES))
    authority = load_authority(ca / CA_KEY, trusted)
    key, signing_key = make_key(), make_signing_key()
    request = CertificateSpec(name, key.public_key(), raw_public_key(signing_key), tuple(address or ()))
    issued = authority.issue(request, time.time(), _valid_for_s(valid_for))
    write_key_folder(KeyFolder(path, trusted, issued, key, signing_key), force=force)
    out = console()
    out.print(f"wrote the certificate and the keys of {name} into {path}", style="green", soft_wrap=True)
    out.print(f"Set in its configuration: security: {{folder: {path}}}", soft_wrap=True)


def _valid_for_s(text: str) -> float:
    try:
        seconds = long_duration_s(text)
    except UnitError as error:
        raise ClientError(f"--valid-for: {error}") from None
    if not 1 <= seconds <= MAX_VALID_FOR_S:
        raise ClientError(f"--valid-for: expected a time from 1s to {MAX_VALID_FOR_S / _DAY_S:.0f}d")
    return seconds


def _file_name(site: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in site)


token_app = typer.Typer(no_args_is_help=True)
_FOR_EVER = "never"
TokenNameArgument = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, help="A name for the token: its owner or purpose.")
]
_LIMIT = "default: no limit. Repeatable."


@token_app.command("create", epilog="Example: cheops token create ci --role operator --type counter --expires 30d")
def create_command(  # noqa: PLR0913, PLR0917 - one parameter per option
    name: TokenNameArgument,
    role: Annotated[
        Role, typer.Option("--role", help="A viewer reads, an operator changes resources, an admin may do everything.")
    ] = Role.VIEWER,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", help=f"Only resources of this type; {_LIMIT}", show_default=False),
    ] = None,
    services: Annotated[
        list[str] | None,
        typer.Option("--service", help=f"Only resources of this service; {_LIMIT}", show_default=False),
    ] = None,
    sites: Annotated[
        list[str] | None,
        typer.Option("--site", help=f"Only resources at this site; {_LIMIT}", show_default=False),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", help="How long it is valid, such as 12h or 30d, or 'never'.")
    ] = "90d",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a token and print it. It is shown only once: the agent keeps its hash."""
    from cheops.api.models.site import NewToken  # noqa: PLC0415 - slow to import

    request = NewToken(
        name=name,
        role=role,
        types=tuple(types) if types else None,
        services=tuple(services) if services else None,
        sites=tuple(sites) if sites else None,
        lasts_s=_expires_s(expires),
    )
    response = agent(url).create_token(request)
    emit_answer(output, response, lambda out: _draw_new_token(out, response))


def _expires_s(text: str) -> float | None:
    if text == _FOR_EVER:
        return None
    try:
        return long_duration_s(text)
    except UnitError as error:
        raise typer.BadParameter(f"{error}, or '{_FOR_EVER}'", param_hint="--expires") from None


def _draw_new_token(out: Console, response: "MadeToken") -> None:
    """The secret alone goes to standard output, so that it can go straight into a file."""
    ends = f"valid until {short_time(response.token.ends_at)}" if response.token.ends_at else "never expires"
    summary = (
        f"{response.token.name}: {response.token.role.value}{_limits(response.token)}, {ends}. It is shown only once:"
    )
    console(stderr=True).print(printable(summary), soft_wrap=True)
    out.print(response.secret, soft_wrap=True)
    sys.stdout.flush()


@token_app.command("list", epilog="Example: cheops token list")
def list_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the tokens of a site, with their rights and expiry."""
    response = agent(url).tokens()
    emit_answer(output, response, lambda out: draw_tokens(out, response))


@token_app.command("revoke", epilog="Example: cheops token revoke ci")
def revoke_command(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="The token, by its name or id.")],
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a token: it is refused from now on, and its open sessions end."""
    response = agent(url).revoke_token(name)
    emit_answer(output, response, lambda out: out.print(f"{printable(response.name)} is revoked"))


def draw_tokens(out: Console, response: "TokenList") -> None:
    if not response.tokens:
        out.print("no tokens; clients on the site's own machine need none")
        return
    rows = table("NAME", "ROLE", "LIMITED TO", "VALID UNTIL", "CREATED", "BY", "ID")
    for token in response.tokens:
        ends = short_time(token.ends_at) if token.ends_at else _FOR_EVER
        until = ends if token.good else f"{ends} (expired)"
        limits = _limits(token).removeprefix(", only ") or "-"
        rows.add_row(
            printable(token.name),
            token.role.value,
            limits,
            until,
            short_time(token.made_at),
            printable(token.made_by),
            token.id,
        )
    print_table(out, rows)


def _limits(token: "TokenView") -> str:
    named = (("types", token.types), ("services", token.services), ("sites", token.sites))
    limits = [f"{what} {', '.join(map(printable, names))}" for what, names in named if names is not None]
    return f", only {'; '.join(limits)}" if limits else ""
