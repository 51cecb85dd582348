"""One agent: the configuration of a site, brought to life, until it is told to stop or something breaks."""

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Iterator

import uvicorn
import uvloop

from cheops.api.app import application
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.node.node import Node

_KEEP_ALIVE_S = 75
_BACKLOG = 2048
_log = logging.getLogger(__name__)


class AgentError(CheopsError):
    """The agent cannot start, or had to stop."""


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # ours to handle: the site is stopped before the server


def run_agent(config: SiteConfig, started: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT. `started` is called when requests are answered."""
    uvloop.run(_serve(config, started))


async def _serve(config: SiteConfig, started: Callable[[], None]) -> None:
    listening = _listen(config)
    node = Node(config)
    try:
        await node.start()
    except BaseException:
        listening.close()
        raise
    server = _Server(
        uvicorn.Config(
            application(node),
            log_config=None,
            access_log=False,
            lifespan="off",
            http="httptools",
            ws="none",
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=3,
            server_header=False,
            proxy_headers=False,
        )
    )
    serving = asyncio.create_task(server.serve([listening]))
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    while not server.started and not serving.done():
        await asyncio.sleep(0.001)
    started()
    failed = asyncio.create_task(node.failed())
    try:
        told = asyncio.create_task(stopping.wait())
        await asyncio.wait({told, failed, serving}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
    finally:
        node.databases.close()  # ends long polls, for which the server would wait
        node.events.close()
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
        broken = failed.result() if failed.done() else None
        failed.cancel()
        await node.stop()
    if broken:
        raise AgentError(f"the agent of {config.name} stopped: {broken}")


def _listen(config: SiteConfig) -> socket.socket:
    """Bind first of all: a second agent on the same address must not touch the store."""
    host, port = config.listen.host, config.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise AgentError(
            f"cannot listen on {host}:{port}: {error.strerror}. Is another agent running there? "
            f"'listen' in {config.source} says where this one listens"
        ) from error
    return listening
