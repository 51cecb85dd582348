"""The two servers of an agent: its address, for clients and sites, and its Unix socket, for administrators.

Both are uvicorn, with connections of our own (connections.py) and our own TLS handshakes (cheops.security.tls).
"""

import asyncio
import contextlib
import os
import socket
import ssl
import stat
import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from cheops.api.connections import Connection, ConnectionLimiter, LimitedProtocol
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.security.tls import HandshakeLimits, TlsAcceptor

SOCKET_NAME = "agent.sock"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class LocalConnection(LimitedProtocol):
    """A connection by the Unix socket. `state` has the user at its other end."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        credentials = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        _pid, uid, _gid = _CREDENTIALS.unpack(credentials)
        self.app_state = {**self.app_state, "peer": None, "local_uid": uid}
        super().connection_made(transport)


def listen_local(path: Path, backlog: int) -> socket.socket:
    """A socket at this path, for its owner only; raises CheopsError. The caller has locked the store, so a socket that
    is still there belongs to an agent that is gone."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        _remove_stale(path)
        os.fchmod(listening.fileno(), 0o600)  # before it has a name, so that others can never connect
        with short_socket_path(path) as name:
            listening.bind(name)
        listening.listen(backlog)
        listening.setblocking(False)
    except BaseException as error:
        listening.close()
        if not isinstance(error, OSError):
            raise
        raise CheopsError(f"cannot create the agent's socket {path}: {error.strerror}") from error
    return listening


def remove_local(path: Path, listening: socket.socket) -> None:
    """Close the socket, and remove its name."""
    listening.close()
    path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CheopsError(f"{path} is in the way: the agent creates its socket there. Remove it")
    path.unlink()


@contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """A name for a socket that fits into `sun_path` (108 bytes), however deep its folder lies."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


BACKLOG = 2048
_KEEP_ALIVE_S = 75
_GRACE_S = 3


class _Server(uvicorn.Server):
    handshakes: HandshakeLimits | None = None  # where there is TLS

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # the agent handles signals: it stops the site before the server

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn does, with limits on handshakes."""
        loop, config = asyncio.get_running_loop(), self.config

        def connect(_loop: asyncio.AbstractEventLoop | None = None) -> asyncio.Protocol:
            create: Any = config.http_protocol_class
            protocol: asyncio.Protocol = create(
                config=config, server_state=self.server_state, app_state={}, _loop=_loop
            )
            return protocol

        servers: list[Any] = [
            TlsAcceptor(one, connect, self.handshakes)
            if self.handshakes
            else await loop.create_server(connect, sock=one, backlog=BACKLOG)
            for one in sockets or ()
        ]
        self.servers = servers
        self.started = True


class Servers:
    """Belongs to one event loop. The sockets are closed with it."""

    def __init__(self, node: Node, app: ASGIApp, listening: socket.socket) -> None:
        self._path = node.config.data / SOCKET_NAME
        self._local = listen_local(self._path, BACKLOG)
        self.limiter = ConnectionLimiter(node)
        self._servers = (
            (_Server(_uvicorn_config(app, Connection, self.limiter)), listening),
            (_Server(_uvicorn_config(app, LocalConnection, self.limiter)), self._local),
        )
        if node.keyring:  # the Unix socket needs no TLS
            self._servers[0][0].handshakes = _handshake_limits(node, self.limiter, node.keyring.server.context)
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Requests are answered when this returns."""
        self._tasks = [asyncio.create_task(server.serve([own])) for server, own in self._servers]
        self._tasks.append(asyncio.create_task(self.limiter.watch()))
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
        remove_local(self._path, self._local)


def _handshake_limits(node: Node, limiter: ConnectionLimiter, context: ssl.SSLContext) -> HandshakeLimits:
    clients = node.config.clients
    return HandshakeLimits(
        context,
        clients.head_timeout_s,
        clients.connections,
        clients.connections_each,
        lambda reason, address: limiter.refused(reason, address, 503),
    )


def _uvicorn_config(app: ASGIApp, kind: type, limiter: ConnectionLimiter) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=type(kind.__name__, (kind,), {"limiter": limiter}),
        ws="none",
        backlog=BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        server_header=False,
        proxy_headers=False,
    )
    settings.load()
    return settings
