"""The tree of commands as it really is, every branch imported."""

from collections.abc import Iterator
from typing import Any

from typer.main import get_command

from cheops.cli.commands import COMMANDS, LazyGroup
from cheops.cli.tree import app

COMMON = frozenset(("--url", "--token-file", "--output", "-o", "--help", "-h"))


def root() -> LazyGroup:
    made = get_command(app)
    assert isinstance(made, LazyGroup)
    return made


def commands() -> Iterator[tuple[str, Any]]:
    """Each command that can be called, under its full name."""
    for place in COMMANDS:
        yield from _below(f"cheops {place.name}", root().loaded(place.name))


def _below(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield name, command
    for child, found in getattr(command, "commands", {}).items():
        yield from _below(f"{name} {child}", found)


def names_of(command: Any) -> set[str]:
    """Its options and arguments, as a user writes them; without those that all have."""
    found: set[str] = set()
    for parameter in command.params:
        is_argument = parameter.param_type_name == "argument"
        found |= {parameter.metavar} if is_argument else {*parameter.opts, *parameter.secondary_opts}
    return found - COMMON
