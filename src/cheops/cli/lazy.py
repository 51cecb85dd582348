"""A tree of commands that is imported branch by branch: a command costs what it needs, and no other.

The table names each command with its summary, so that the list of commands and the completion of their names
need no module at all. A summary must be the first line of what the command says of itself; a test compares.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from inspect import cleandoc
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_group


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
        _make_readable(made)
        return made

    def _single(self, function: Any) -> Any:
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        epilog = f"Example: {self.example}" if self.example else None
        app.command(self.name, epilog=epilog)(function)
        return get_command(app)


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
