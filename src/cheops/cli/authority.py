"""`cheops ca …`: the authority of a mesh, its replacement, and certificates that it issues by hand."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cheops.cli.options import AddressOption
from cheops.cli.output import console
from cheops.config.security import MAX_VALID_FOR_S
from cheops.config.site import DEFAULT_FILE, SiteConfig, read_site
from cheops.config.values import UnitError, long_duration_s
from cheops.errors import CheopsError, ClientError
from cheops.scope.names import name_problem, normal

if TYPE_CHECKING:
    from cheops.security.certificates import Authorities, Authority


app = typer.Typer(no_args_is_help=True)
_DAY_S = 86_400.0
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The configuration file of the site; not changed.")
]
NewArgument = Annotated[Path, typer.Argument(metavar="FOLDER", show_default=False, help="The new authority's folder.")]


@app.command("init", epilog="Example: cheops ca init ca")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder to write to.")] = Path("ca"),
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite an existing one: its sites then need new certificates.")
    ] = False,
) -> None:
    """Create the authority of a mesh: ca.pem, which all sites trust, and ca.key, which must stay secret."""
    from cheops.security.certificates import fingerprint, make_authority  # noqa: PLC0415 - slow
    from cheops.security.keyring import (  # noqa: PLC0415 - the same
        AUTHORITIES,
        CA_KEY,
        refuse_to_overwrite,
        write_authority_folder,
    )

    if not force:
        refuse_to_overwrite((folder / AUTHORITIES, folder / CA_KEY))
    authority = make_authority(time.time())
    write_authority_folder(folder, authority)
    out = console()
    out.print(f"wrote {folder / AUTHORITIES} and {folder / CA_KEY}", style="green", soft_wrap=True)
    out.print(f"fingerprint (SHA-256): {fingerprint(authority.certificate).hex(':')}", soft_wrap=True)
    out.print("The owner of the key decides who is a site: keep it secret, with a backup elsewhere.")


@app.command("issue", epilog="Example: cheops ca issue site1 --address 10.0.0.1 --folder tls")
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
    from cheops.security.keyring import issue_keys, load_authority_folder, write_key_folder  # noqa: PLC0415 - slow

    name = normal(site)
    if problem := name_problem(name):
        raise ClientError(f"SITE: {problem}")
    path = folder or Path(f"tls-{_file_name(name)}")
    authority, trusted = load_authority_folder(ca)
    keys = issue_keys(authority, trusted, path, name, tuple(address or ()), _valid_for_s(valid_for))
    write_key_folder(keys, force=force)
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


# -- replacing the authority: at the site that has its key, one command after the other ------------------------


@app.command("trust", epilog="Example: cheops ca trust ca-new")
def trust_command(new: NewArgument, config: ConfigOption = DEFAULT_FILE) -> None:
    """Replace the authority, step 1: trust a new one as well. The other sites follow."""
    from cheops.security.keyring import load_authority_folder  # noqa: PLC0415 - slow

    folder, _, trusted = _issuing_site(config)
    authority, _ = load_authority_folder(new)
    _write_trusted(folder, trusted.followed_by(_only(authority)))
    _print_next(f"{folder} trusts the new authority too", "when all sites are up: cheops ca use")


@app.command("use", epilog="Example: cheops ca use ca-new")
def use_command(new: NewArgument, config: ConfigOption = DEFAULT_FILE) -> None:
    """Replace the authority, step 2: let the new one issue. All sites get new certificates."""
    from cheops.security.keyring import load_authority_folder, write_authority_files  # noqa: PLC0415 - slow

    folder, ca_key, trusted = _issuing_site(config)
    authority, _ = load_authority_folder(new)
    if authority.certificate not in trusted.certificates:
        raise ClientError(
            f"{folder} does not trust {new} yet, so other sites do not either: 'cheops ca trust {new}' comes first"
        )
    first = _only(authority).followed_by(trusted)
    _write_trusted(folder, first)
    write_authority_files(ca_key, authority, first)
    _print_next(f"the new authority issues: its key is {ca_key}", "when all sites have new ones: cheops ca retire")


@app.command("retire", epilog="Example: cheops ca retire")
def retire_command(config: ConfigOption = DEFAULT_FILE) -> None:
    """Replace the authority, step 3: trust only the one that issues. Certificates of others are refused."""
    from cheops.security.keyring import load_authority, load_certificate, write_authority_files  # noqa: PLC0415 - slow

    folder, ca_key, trusted = _issuing_site(config)
    authority = load_authority(ca_key, trusted)
    only = _only(authority)
    if only.issuer_of(load_certificate(folder)) is None:
        raise ClientError(
            f"the certificate of this site is not of the authority whose key is {ca_key} yet: reload its agent "
            "(kill -HUP), which renews it within seconds, and wait until all sites have new ones"
        )
    _write_trusted(folder, only)
    write_authority_files(ca_key, authority, only)
    _print_next(f"{folder} trusts only the authority whose key is {ca_key}", "")


def _issuing_site(config: Path) -> "tuple[Path, Path, Authorities]":
    """The folder of the site, the path of its authority's key, and the authorities that it trusts."""
    from cheops.security.keyring import known_authorities  # noqa: PLC0415 - slow

    settings: SiteConfig = read_site(config)
    folder, ca_key = settings.security.folder, settings.security.ca_key
    if folder is None or ca_key is None:
        raise ClientError(
            f"{config} has no security.ca_key: the authority is replaced at the site that has its key. If the key is "
            "lost: docs/certificates-trouble.md#the-authoritys-key-is-lost"
        )
    return folder, ca_key, known_authorities(folder)


def _only(authority: "Authority") -> "Authorities":
    from cheops.security.certificates import Authorities  # noqa: PLC0415 - slow

    return Authorities([authority.certificate])


def _write_trusted(folder: Path, trusted: "Authorities") -> None:
    from cheops.security.keyring import AUTHORITIES, MAX_AUTHORITIES, write_file  # noqa: PLC0415 - slow

    if len(trusted.certificates) > MAX_AUTHORITIES:
        raise CheopsError(f"{folder} trusts {MAX_AUTHORITIES} authorities already: 'cheops ca retire' drops old ones")
    write_file(folder / AUTHORITIES, trusted.pem, secret=False)


def _print_next(done: str, then: str) -> None:
    out = console()
    out.print(done, style="green", soft_wrap=True)
    out.print(f"Next: kill -HUP the agent of this site{f'; {then}' if then else ''}", soft_wrap=True)
