"""`cheops token …`: access tokens for people and programs."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.options import UrlOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer, print_table, short_time, table
from cheops.config.values import UnitError, long_duration_s
from cheops.security.principal import Role
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models.site import MadeToken, TokenList, TokenView


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
