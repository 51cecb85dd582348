"""A tree of commands that is imported branch by branch: a command costs what it needs, and no other.

The table names each command with its summary, so that the list of commands and the completion of their names
need no module at all. A summary must be the first line of what the command says of itself; a test compares.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group

from cheops.cli.asking import note_token_file


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command is: `module:name` below cheops.cli, a function or a Typer app."""

    name: str
    panel: str
    where: str
    summary: str
    example: str = ""

    def load(self) -> Any:
        """The real command, with its options."""
        module, attribute = self.where.split(":")
        found = getattr(import_module(f"cheops.cli.{module}"), attribute)
        made = get_group(found) if isinstance(found, typer.Typer) else self._single(found)
        made.name = self.name
        _add_token_file(made)
        _make_readable(made)
        return made

    def _single(self, function: Any) -> Any:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        epilog = f"Example: {self.example}" if self.example else None
        app.command(self.name, epilog=epilog)(function)
        return get_command(app)


def _add_token_file(command: Any) -> None:
    """To each command that asks an agent, which is one with --url."""
    if any(parameter.name == "url" for parameter in command.params):
        command.params.append(_token_file())
    for below in getattr(command, "commands", {}).values():
        _add_token_file(below)


def _token_file() -> Any:
    """The option by itself, as Typer makes it."""
    app = typer.Typer(add_completion=False)

    @app.command()
    def _with_it(
        _file: Annotated[
            Path | None,
            typer.Option(
                "--token-file",
                envvar="CHEOPS_TOKEN_FILE",
                callback=note_token_file,
                help="A file with the token to show; else CHEOPS_TOKEN.",
            ),
        ] = None,
    ) -> None: ...

    option = next(parameter for parameter in get_command(app).params if "--token-file" in parameter.opts)
    option.expose_value = False
    return option


def _make_readable(command: Any) -> None:
    """Help as it is meant: paragraphs are wrapped to the window, and not where a source line ends; the usage
    has arguments as we write them, with brackets around those that may be left out."""
    if command.help:
        command.help = "\n\n".join(" ".join(part.split()) for part in cleandoc(command.help).split("\n\n"))
    for parameter in command.params:
        if parameter.param_type_name == "argument" and (written := parameter.metavar):
            left_out = not parameter.required and not written.startswith("[")
            shown = f"[{written}]" if left_out else written
            parameter.get_usage_pieces = lambda _ctx, shown=shown: [shown]
    for below in getattr(command, "commands", {}).values():
        _make_readable(below)


class LazyGroup(TyperGroup):
    """Lists its commands from a table; the one that is called is imported."""

    places: dict[str, Place] = {}  # noqa: RUF012 - set once, by the subclass

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for place in self.places.values():
            self.commands[place.name] = TyperCommand(
                place.name, help=place.summary, rich_help_panel=place.panel
            )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.loaded(name) if name in self.places else command, rest

    def loaded(self, name: str) -> Any:
        return self.places[name].load()


def group_of(places: Iterable[Place]) -> type[LazyGroup]:
    """A kind of group with these commands."""
    return type("Commands", (LazyGroup,), {"places": {place.name: place for place in places}})
