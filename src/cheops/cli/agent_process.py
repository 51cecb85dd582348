"""The process of `cheops agent`. It runs for months, so it imports neither Typer nor another command."""

import gc
import logging
from pathlib import Path
from typing import Any

from cheops.config.site import DEFAULT_FILE, read_site
from cheops.text import escaped


class LogFormatter(logging.Formatter):
    """One line per message, which nothing in it can end or alter: messages hold text of clients, services and other
    sites, and the log is read on terminals. The lines of a traceback are indented, so that none looks like another
    message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name is logging's
        return escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:  # noqa: N802 - the name is logging's
        return "\n".join(f"    {escaped(line)}" for line in super().formatException(ei).split("\n"))

    def formatStack(self, stack_info: str) -> str:  # noqa: N802 - the name is logging's
        return "\n".join(f"    {escaped(line)}" for line in stack_info.split("\n"))


def plain_options(words: list[str]) -> tuple[Path, bool] | None:
    """`--config` and `--verbose` of a command line that has nothing else; None for any other, which Typer reads."""
    config, is_verbose, left = DEFAULT_FILE, False, list(words)
    while left:
        word = left.pop(0)
        if word in ("--verbose", "-v"):
            is_verbose = True
        elif word in ("--config", "-c") and left and left[0] and not left[0].startswith("-"):
            config = Path(left.pop(0))
        else:
            return None
    return config, is_verbose


def serve(config: Path, is_verbose: bool) -> None:
    """Run the agent of one site until it is stopped."""
    # The server is slow to import, and only this command needs it. Its modules live as long as the process, so the
    # garbage collector is kept away from them, both during the import and later.
    gc.disable()
    from cheops.agent import run_agent  # noqa: PLC0415

    gc.collect()  # dataclasses with slots are made twice, and only the second class is used
    gc.freeze()
    gc.enable()
    handler = logging.StreamHandler()
    handler.setFormatter(LogFormatter())
    logging.basicConfig(level=logging.DEBUG if is_verbose else logging.INFO, handlers=[handler])
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # else any client could fill the log
    site = read_site(config)
    log = logging.getLogger("cheops")
    for warning in site.warnings:
        log.warning("%s", warning)
    for problem in site.problems() if site.security.is_specified else ():
        log.error("%s", problem)  # the agent starts: other types may work
    peers = ", ".join(site.peers) or "none configured"
    url = site.listen.url_as(site.security.scheme)
    run_agent(site, lambda: log.info("%s listens on %s; peers: %s", site.name, url, peers))
    log.info("%s has stopped", site.name)
