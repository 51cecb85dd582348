"""`cheops agent`: run one site."""

from pathlib import Path
from typing import Annotated

import typer

from cheops.cli.agent_process import serve
from cheops.config.site import DEFAULT_FILE


def agent_command(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The configuration file of the site; see 'cheops init'.")
    ] = DEFAULT_FILE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages.")] = False,
) -> None:
    """Run the agent of one site until it is stopped (Ctrl-C or SIGTERM)."""
    serve(config, verbose)
