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
from cheops.gateway.gateway import Gateway
from cheops.gateway.listening import Listening, open_all
from cheops.gateway.replicas.replicating import Replicating
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
    listening, entrances = _listen(config), Listening({})
    node = Node(config)
    try:
        entrances = open_all(config)
        gateway = Gateway(node) if entrances.sockets else None
        if gateway:
            # Before anything runs: what was left over may cause calls whose scope must be known.
            gateway.replicate_with(Replicating(node, gateway.services))
        await node.start()
    except BaseException:
        listening.close()
        entrances.close()
        raise
    server = _Server(
        uvicorn.Config(
            application(node, gateway),
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
    if gateway:
        await gateway.start(entrances)
    started()
    failed = asyncio.create_task(node.failed())
    try:
        told = asyncio.create_task(stopping.wait())
        await asyncio.wait({told, failed, serving}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
    finally:
        broken = failed.result() if failed.done() else None
        failed.cancel()
        if gateway:
            await gateway.stop()
        node.databases.close()  # ends long polls, for which the server would wait
        node.notifier.feed.close()  # and streams
        server.should_exit = True
        await asyncio.gather(serving, return_exceptions=True)
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
