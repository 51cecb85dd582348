"""`cheops token …`: who may ask at a site."""

import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cheops.cli.asking import UrlOption, agent
from cheops.cli.output import Output, OutputOption, console, emit_answer, print_table, table
from cheops.cli.words import moment
from cheops.config.units import UnitError, long_seconds
from cheops.security.principal import Role
from cheops.text import printable

if TYPE_CHECKING:
    from cheops.api.models import MadeToken, TokenList, TokenView

app = typer.Typer(
    no_args_is_help=True, help="Make, list and revoke the tokens with which people and programs ask."
)
_FOR_EVER = "never"
NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", show_default=False, help="Whose it is, or what for.")
]
_LIMIT = "if left out, there is no limit. Several: say it again."


@app.command("create", epilog="Example: cheops token create ci --role operator --type counter --expires 30d")
def create_command(  # noqa: PLR0913, PLR0917 - what can be said of a token
    name: NameArgument,
    role: Annotated[
        Role, typer.Option("--role", help="A viewer reads, an operator changes resources, an admin does all.")
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
        typer.Option("--site", help=f"Only what is at this site; {_LIMIT}", show_default=False),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", help="For how long it is good, such as 12h or 30d, or 'never'.")
    ] = "90d",
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Make a token, and print it: this once, for only its hash is kept."""
    from cheops.api.models import NewToken  # noqa: PLC0415 - see asking.py

    asked = NewToken(
        name=name,
        role=role,
        types=tuple(types) if types else None,
        services=tuple(services) if services else None,
        sites=tuple(sites) if sites else None,
        lasts_s=_seconds(expires),
    )
    made = agent(url).create_token(asked)
    emit_answer(output, made, lambda out: _draw_made(out, made))


def _seconds(text: str) -> float | None:
    if text == _FOR_EVER:
        return None
    try:
        return long_seconds(text)
    except UnitError as error:
        raise typer.BadParameter(f"{error}, or '{_FOR_EVER}'", param_hint="--expires") from None


def _draw_made(out: Console, made: "MadeToken") -> None:
    """The secret alone goes to standard output, so that it can go straight into a file."""
    ends = f"good until {moment(made.token.ends_at)}" if made.token.ends_at else "good for ever"
    told = f"{made.token.name}: {made.token.role.value}{_limits(made.token)}, {ends}. It is shown this once:"
    console(stderr=True).print(printable(told), soft_wrap=True)
    out.print(made.secret, soft_wrap=True)
    sys.stdout.flush()


@app.command("list", epilog="Example: cheops token list")
def list_command(url: UrlOption = None, output: OutputOption = Output.TABLE) -> None:
    """List the tokens of a site: whose, what they may, and until when."""
    found = agent(url).tokens()
    emit_answer(output, found, lambda out: draw_tokens(out, found))


@app.command("revoke", epilog="Example: cheops token revoke ci")
def revoke_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", show_default=False, help="The token, by its name or id.")
    ],
    url: UrlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Revoke a token: it is good for nothing from now on, and what was begun with it ends."""
    found = agent(url).revoke_token(name)
    emit_answer(output, found, lambda out: out.print(f"{printable(found.name)} is revoked"))


def draw_tokens(out: Console, found: "TokenList") -> None:
    if not found.tokens:
        out.print("no token was made at this site; its own machine needs none")
        return
    made = table("NAME", "ROLE", "LIMITED TO", "GOOD UNTIL", "MADE", "BY", "ID")
    for token in found.tokens:
        ends = moment(token.ends_at) if token.ends_at else _FOR_EVER
        until = ends if token.good else f"{ends} (expired)"
        limits = _limits(token).removeprefix(", only ") or "-"
        made.add_row(
            printable(token.name),
            token.role.value,
            limits,
            until,
            moment(token.made_at),
            printable(token.made_by),
            token.id,
        )
    print_table(out, made)


def _limits(token: "TokenView") -> str:
    named = (("types", token.types), ("services", token.services), ("sites", token.sites))
    told = [f"{what} {', '.join(map(printable, names))}" for what, names in named if names is not None]
    return f", only {'; '.join(told)}" if told else ""
