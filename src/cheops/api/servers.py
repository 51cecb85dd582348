"""The two ways to an agent: its address, for everybody, and its Unix socket, for its administrators. One
application answers on both.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from cheops.api import local_socket
from cheops.api.connections import Connection
from cheops.api.crowd import Crowd
from cheops.api.local_socket import LocalConnection
from cheops.node.node import Node
from cheops.security.accepting import Accepting, Manners

BACKLOG = 2048
_KEEP_ALIVE_S = 75
_GRACE_S = 3


class _Server(uvicorn.Server):
    manners: Manners | None = None  # where there is TLS

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the agent's to handle: the site is stopped before the server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, with limits on handshakes."""
        loop, config = asyncio.get_running_loop(), self.config

        def accepted(_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Protocol:
            made: Any = config.http_protocol_class
            protocol: asyncio.Protocol = made(
                config=config, server_state=self.server_state, app_state={}, _loop=_loop
            )
            return protocol

        servers: list[Any] = [
            Accepting(one, accepted, self.manners)
            if self.manners
            else await loop.create_server(accepted, sock=one, backlog=BACKLOG)
            for one in sockets or ()
        ]
        self.servers = servers
        self.started = True


class Servers:
    """Belongs to one event loop. The sockets are closed with it."""

    def __init__(self, node: Node, app: ASGIApp, listening: socket.socket) -> None:
        self._path = node.config.data / local_socket.NAME
        self._local = local_socket.listen(self._path, BACKLOG)
        self.crowd = Crowd(node)
        self._servers = (
            (_Server(_settings(app, Connection, self.crowd)), listening),
            (_Server(_settings(app, LocalConnection, self.crowd)), self._local),
        )
        if node.keyring:  # the Unix socket needs no TLS
            self._servers[0][0].manners = _manners(node, self.crowd, node.keyring.server.context)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Requests are answered when this returns."""
        self._tasks = [asyncio.create_task(server.serve([own])) for server, own in self._servers]
        self._tasks.append(asyncio.create_task(self.crowd.watch()))
        while not all(server.started for server, _ in self._servers) and not self._has_ended():
            await asyncio.sleep(0.001)

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """None of them ends by itself."""
        return self._tasks

    def _has_ended(self) -> bool:
        return any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        for server, _ in self._servers:
            server.should_exit = True
        *serving, watching = self._tasks
        await asyncio.gather(*serving, return_exceptions=True)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        local_socket.remove(self._path, self._local)


def _manners(node: Node, crowd: Crowd, context: ssl.SSLContext) -> Manners:
    clients = node.config.clients
    return Manners(
        context,
        clients.head_timeout_s,
        clients.connections,
        clients.connections_each,
        lambda reason, address: crowd.refused(reason, address, 503),
    )


def _settings(app: ASGIApp, kind: type, crowd: Crowd) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=type(kind.__name__, (kind,), {"crowd": crowd}),
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        proxy_headers=False,
    )
    settings.load()
    return settings
