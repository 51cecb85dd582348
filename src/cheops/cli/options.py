"""Options, exit codes and the client: what all commands that call an agent share.

This module imports no models and no client: they are slow to import, and `cheops --help` needs neither.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cheops.client import Agent


# Exit codes beyond 0 (done) and 2 (a wrong command line).
FAILED = 1  # refused, failed, or not as it should be
NOT_YET = 3  # not everywhere, or not in time: it continues in the background

UrlOption = Annotated[
    str | None,
    typer.Option("--url", envvar="CHEOPS_URL", help="The agent's URL, or unix:///path.", show_default=False),
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", show_default=False, help="The id of the resource.")]
ShowingOption = Annotated[
    str,
    typer.Option(
        "--command",
        help="The command that reads the state. Default: the type's 'read'. The type's 'show' lists what is allowed.",
    ),
]
TimeoutOption = Annotated[float, typer.Option("--timeout", min=0, max=3600, help="How long to wait, in seconds.")]


def agent(url: str | None) -> "Agent":
    """A client of the agent at --url or CHEOPS_URL; by default of the one on this machine."""
    from cheops.client import (  # noqa: PLC0415
        Agent,
        target_of,
    )

    return Agent(target_of(url, token_file()))


# The value of --token-file, an option that commands.py adds to every command with --url. The token itself is
# never on the command line, which every user of the machine can read.
_token_files: list[Path] = []


def note_token_file(value: Path | None) -> Path | None:
    _token_files[:] = [value] if value else []
    return value


def token_file() -> Path | None:
    return _token_files[0] if _token_files else None


AddressOption = Annotated[
    list[str] | None,
    typer.Option(
        "--address",
        metavar="HOST",
        show_default="none",
        help="A host name or address of the site. Repeatable.",
    ),
]


class Waiting(StrEnum):
    """Which replies to wait for. The same values as the API's `Wait`, which is slow to import."""

    NONE = "none"
    FIRST = "first"
    QUORUM = "quorum"
    ALL = "all"


WaitOption = Annotated[
    Waiting,
    typer.Option(
        "--wait",
        help="Which replies to wait for: all, quorum (a majority), first, or none (only until it is saved).",
    ),
]
