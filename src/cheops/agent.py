"""Runs one agent: builds a site from its configuration, and serves until a signal or a failure.

request of a client -> ConnectionGuard -> WebInterface -> application (api) -> node
request of a peer   -> PeerEndpoint -> PeerService -> intake -> node.pump
application traffic -> Gateway -> node
"""

import asyncio
import errno
import logging
import signal
import socket
from collections.abc import Callable
from typing import Any

import uvloop

from cheops import heap
from cheops.api.app import application
from cheops.api.drift_detector import DriftDetector
from cheops.api.guard import ConnectionGuard
from cheops.api.peers import peer_endpoint
from cheops.api.server import BACKLOG, Servers
from cheops.backends.http.replication import HttpReplication
from cheops.config.security import MISSING_SECURITY
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.event_loop import EventLoop
from cheops.gateway.server import Gateway, ListenerSockets, open_listeners
from cheops.node.node import Node
from cheops.ui.server import WebInterface

_log = logging.getLogger(__name__)


def run_agent(config: SiteConfig, started: Callable[[], None] = lambda: None) -> None:
    """Serve until SIGTERM or SIGINT. `started` is called once the agent answers requests."""
    if not config.security.is_specified:
        raise CheopsError(f"{config.source}: {MISSING_SECURITY}")
    heap.limit_arenas()
    uvloop.run(_serve_all(config, started), loop_factory=EventLoop)


async def _serve_all(config: SiteConfig, started: Callable[[], None]) -> None:
    """Start again, in this process, when the site must begin a new incarnation."""
    while await _serve(config, started):
        started = _do_nothing


def _do_nothing() -> None:
    """It has started before."""


async def _serve(config: SiteConfig, started: Callable[[], None]) -> bool:
    """Returns whether the site is to be started again."""
    asyncio.get_running_loop().set_exception_handler(_report_loop_error)
    listening, gateway_sockets = _listen(config), ListenerSockets({})
    try:
        node = Node(config)  # opens the store: only after the address is ours, see `_listen`
        gateway_sockets = open_listeners(config)
        gateway = Gateway(node, gateway_sockets.program) if gateway_sockets.has_any else None
        if gateway:
            # Before the site starts: operations that it resumes may cause calls whose scope the gateway must know.
            gateway.replicate_with(HttpReplication(node, gateway.services))
        await node.start()
    except BaseException:
        listening.close()
        gateway_sockets.close()
        raise
    try:
        app = application(node, gateway)
        web = ConnectionGuard(node, WebInterface(app))
        servers = Servers(node, peer_endpoint(node, web), listening)
    except BaseException:
        await node.stop()
        gateway_sockets.close()
        raise
    stopping = _handle_signals(node)
    try:
        if gateway:
            await gateway.start(gateway_sockets)
    except BaseException:
        await node.stop()
        listening.close()
        raise
    await servers.start()
    node.serve("drift detector", DriftDetector(node).run())
    started()
    failed = asyncio.create_task(node.failed())
    try:
        await _first_of(stopping, node.must_restart, failed, *servers.tasks)
    finally:
        broken = failed.result() if failed.done() else None
        failed.cancel()
        if gateway:
            await gateway.stop()
        # Long polls and streams end first: the server would wait for them.
        node.databases.close()
        node.notifier.feed.close()
        await servers.stop()
        await node.stop()
    if broken:
        raise CheopsError(f"the agent of {config.name} stopped: {broken}")
    return node.must_restart.is_set() and not stopping.is_set()


async def _first_of(stopping: asyncio.Event, again: asyncio.Event, *tasks: asyncio.Task[Any]) -> None:
    waits = [asyncio.create_task(event.wait()) for event in (stopping, again)]
    await asyncio.wait({*waits, *tasks}, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()


def _handle_signals(node: Node) -> asyncio.Event:
    """The event that a signal to stop sets."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, _reload, node)
    return stopping


def _report_loop_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log an error that no task has seen. One of them is none: a connection is closed here while the other end still
    sends. uvloop reports that with a traceback, which another site could cause as often as it likes."""
    if str(context.get("message", "")).startswith("Fatal error on SSL protocol"):
        _log.debug("a connection over TLS ended: %s", context.get("exception"))
    else:
        loop.default_exception_handler(context)


def _reload(node: Node) -> None:
    """On SIGHUP: the operator has replaced certificates or authorities. Nothing else is reloaded."""
    if node.keyring is None:
        return
    try:
        node.keyring.reload()
        _log.info("reloaded certificates and authorities")
    except CheopsError as error:
        _log.error("cannot reload certificates, the old ones stay in use: %s", error)


def _listen(config: SiteConfig) -> socket.socket:
    """Bind before anything else: a second agent on the same address must not touch the store."""
    host, port = config.listen.host, config.listen.port
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Otherwise an agent could not restart for a minute, while connections of the old one are in TIME_WAIT.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        reason = f"{error.strerror}. Is another agent running there?"
        if error.errno == errno.EADDRNOTAVAIL:
            reason = f"this machine has no address {host}."
        raise CheopsError(
            f"cannot listen on {host}:{port}: {reason} 'listen' in {config.source} sets the address of this one"
        ) from error
    return listening
