"""`cheops agent`: run one site."""

import gc
import logging
from pathlib import Path
from typing import Annotated

import typer

from cheops.config.site import DEFAULT_FILE, read_site


def agent_command(
    config: Annotated[
        Path, typer.Option("--config", "-c", help="The configuration file of the site; see 'cheops init'.")
    ] = DEFAULT_FILE,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log debug messages.")] = False,
) -> None:
    """Run the agent of one site until it is stopped (Ctrl-C or SIGTERM)."""
    # The server is slow to import, and only this command needs it. Its modules live as long as the process, so the
    # garbage collector is kept away from them, both during the import and later.
    gc.disable()
    from cheops.agent import run_agent  # noqa: PLC0415

    gc.freeze()
    gc.enable()
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # else any client could fill the log
    site = read_site(config)
    log = logging.getLogger("cheops")
    for warning in site.warnings:
        log.warning("%s", warning)
    peers = ", ".join(site.peers) or "none configured"
    url = site.listen.url_as(site.security.scheme)
    run_agent(site, lambda: log.info("%s listens on %s; peers: %s", site.name, url, peers))
    log.info("%s has stopped", site.name)
