"""One agent: the configuration of a site, brought to life, until it is told to stop or something breaks."""

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

import uvloop

from cheops.api.app import application
from cheops.api.guard import ConnectionGuard
from cheops.api.peers import peer_endpoint
from cheops.api.server import BACKLOG, Servers
from cheops.backends.http.replication import HttpReplication
from cheops.config.security import MISSING_SECURITY
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.server import Gateway, ListenerSockets, open_listeners
from cheops.node.node import Node
from cheops.ui.server import WebInterface

_log = logging.getLogger(__name__)


class AgentError(CheopsError):
    """The agent cannot start, or had to stop."""


def run_agent(config: SiteConfig, started: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT. `started` is called when requests are answered."""
    if not config.security.is_specified:
        raise AgentError(f"{config.source}: {MISSING_SECURITY}")
    uvloop.run(_serve(config, started))


async def _serve(config: SiteConfig, started: Callable[[], None]) -> None:
    listening, entrances = _listen(config), ListenerSockets({})
    try:
        node = Node(config)
        entrances = open_listeners(config)
        gateway = Gateway(node, entrances.program) if entrances.has_any else None
        if gateway:
            # Before anything runs: what was left over may cause calls whose scope must be known.
            gateway.replicate_with(HttpReplication(node, gateway.services))
        await node.start()
    except BaseException:
        listening.close()
        entrances.close()
        raise
    try:
        app = application(node, gateway)
        web = ConnectionGuard(node, WebInterface(app))
        servers = Servers(node, peer_endpoint(node, web), listening)
    except BaseException:
        await node.stop()
        entrances.close()
        raise
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, _reload, node)
    try:
        if gateway:
            await gateway.start(entrances)
    except BaseException:
        await node.stop()
        listening.close()
        raise
    await servers.start()
    started()
    failed = asyncio.create_task(node.failed())
    try:
        told = asyncio.create_task(stopping.wait())
        await asyncio.wait({told, failed, *servers.tasks}, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
    finally:
        broken = failed.result() if failed.done() else None
        failed.cancel()
        if gateway:
            await gateway.stop()
        node.databases.close()  # ends long polls, for which the server would wait
        node.notifier.feed.close()  # and streams
        await servers.stop()
        await node.stop()
    if broken:
        raise AgentError(f"the agent of {config.name} stopped: {broken}")


def _reload(node: Node) -> None:
    """The operator has changed certificates or authorities; nothing else is read again."""
    if node.keyring is None:
        return
    try:
        node.keyring.reload()
        _log.info("certificates and authorities were read again")
    except CheopsError as error:
        _log.error("certificates are used as they were: %s", error)  # its text says all


def _listen(config: SiteConfig) -> socket.socket:
    """Bind first of all: a second agent on the same address must not touch the store."""
    host, port = config.listen.host, config.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise AgentError(
            f"cannot listen on {host}:{port}: {error.strerror}. Is another agent running there? "
            f"'listen' in {config.source} says where this one listens"
        ) from error
    return listening
