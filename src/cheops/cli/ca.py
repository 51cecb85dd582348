"""`cheops ca …`: the authority of a mesh, and certificates for its sites. No agent is asked."""

import time
from pathlib import Path
from typing import Annotated

import typer

from cheops.cli.output import console
from cheops.config.security import MAX_VALID_FOR_S
from cheops.config.units import UnitError, long_duration_us
from cheops.errors import ClientError
from cheops.scope.names import name_problem, normal

app = typer.Typer(no_args_is_help=True, help="Make the authority of a mesh, and certificates for its sites.")
_DAY_S = 86_400.0

AddressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="HOST",
        show_default="none",
        help="A host name or address by which people reach the site; as often as there are.",
    ),
]


@app.command("init", epilog="Example: cheops ca init ca")
def init_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it.")] = Path("ca"),
    force: Annotated[
        bool, typer.Option("--force", help="Write over one that is there: its sites need new certificates.")
    ] = False,
) -> None:
    """Make the authority of a mesh: ca.pem, which all sites believe, and ca.key, which few should have."""
    from cheops.security.certificates import Authorities, fingerprint, make_authority  # noqa: PLC0415 - slow
    from cheops.security.folder import (  # noqa: PLC0415 - the same
        AUTHORITIES,
        CA_KEY,
        key_pem,
        make_directory,
        refuse_to_overwrite,
        write_file,
    )

    if not force:
        refuse_to_overwrite((folder / AUTHORITIES, folder / CA_KEY))
    made = make_authority(time.time())
    make_directory(folder)
    write_file(folder / CA_KEY, key_pem(made.key), secret=True)
    write_file(folder / AUTHORITIES, Authorities([made.certificate]).pem, secret=False)
    out = console()
    out.print(f"wrote {folder / AUTHORITIES} and {folder / CA_KEY}", style="green", soft_wrap=True)
    out.print(f"fingerprint (SHA-256): {fingerprint(made.certificate).hex(':')}", soft_wrap=True)
    out.print(
        "Whoever has the key decides who is a site: keep it where few can read it, and a copy elsewhere."
    )


@app.command("issue", epilog="Example: cheops ca issue site1 --address 10.0.0.1 --folder tls")
def issue_command(  # noqa: PLR0913, PLR0917 - one per option
    site: Annotated[str, typer.Argument(metavar="SITE", show_default=False, help="The name of the site.")],
    address: AddressOption = None,
    ca: Annotated[Path, typer.Option("--ca", metavar="FOLDER", help="The authority's folder.")] = Path("ca"),
    folder: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where to write.", show_default="tls-SITE"),
    ] = None,
    valid_for: Annotated[str, typer.Option(metavar="TIME", help="How long, such as 90d.")] = "365d",
    force: Annotated[bool, typer.Option("--force", help="Write over what is there.")] = False,
) -> None:
    """Make keys and a certificate for a site, here: for the first, and where 'site join' cannot be used."""
    from cheops.security.certificates import (  # noqa: PLC0415 - slow
        Authorities,
        Request,
        make_key,
        make_signing_key,
        raw_public_key,
    )
    from cheops.security.folder import (  # noqa: PLC0415 - the same
        AUTHORITIES,
        CA_KEY,
        Folder,
        load_authorities,
        load_authority,
        write_folder,
    )

    name = normal(site)
    if problem := name_problem(name):
        raise ClientError(f"SITE: {problem}")
    path = folder or Path(f"tls-{_file_name(name)}")
    believed = Authorities(load_authorities(ca / AUTHORITIES))
    authority = load_authority(ca / CA_KEY, believed)
    key, signing_key = make_key(), make_signing_key()
    request = Request(name, key.public_key(), raw_public_key(signing_key), tuple(address or ()))
    issued = authority.issue(request, time.time(), _seconds(valid_for))
    write_folder(Folder(path, believed, issued, key, signing_key), force=force)
    out = console()
    out.print(f"wrote the certificate and the keys of {name} into {path}", style="green", soft_wrap=True)
    out.print(f"Its configuration says: security: {{folder: {path}}}", soft_wrap=True)


def _seconds(text: str) -> float:
    try:
        found = long_duration_us(text) / 1_000_000
    except UnitError as error:
        raise ClientError(f"--valid-for: {error}") from None
    if not 1 <= found <= MAX_VALID_FOR_S:
        raise ClientError(f"--valid-for: expected a time from 1s to {MAX_VALID_FOR_S / _DAY_S:.0f}d")
    return found


def _file_name(site: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in site)
