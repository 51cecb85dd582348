"""What commands that call an agent have in common: options, exit codes, and the client.

The client and the models are imported by the commands that use them, when they run: they are slow to import.
"""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cheops.client import Agent


# Exit codes beyond 0 (done) and 2 (a wrong command line).
FAILED = 1  # refused, failed, or not as it should be
NOT_YET = 3  # not everywhere, or not in time: it goes on

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
TimeoutOption = Annotated[
    float, typer.Option("--timeout", min=0, max=3600, help="How long to wait for replies, in seconds.")
]


def agent(url: str | None) -> "Agent":
    """The agent that --url, CHEOPS_URL or nothing names."""
    from cheops.client import (  # noqa: PLC0415
        Agent,
        target_of,
    )

    return Agent(target_of(url, token_file()))


# The value of --token-file, an option that lazy.py gives to every command with --url. The token itself is
# never on the command line: everybody on the machine can read those.
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
    """For which answers to wait; the same as the API's."""

    NONE = "none"
    FIRST = "first"
    QUORUM = "quorum"
    ALL = "all"


WaitOption = Annotated[
    Waiting,
    typer.Option(
        "--wait",
        help="Which replies to wait for: from all sites, a majority, the first, or none (only until it is saved).",
    ),
]
