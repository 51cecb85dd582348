"""The two servers of an agent: its address, for clients and sites, and its Unix socket, for administrators.

Both are uvicorn, with our own TLS handshakes (cheops.security.tls) and our own limits on connections: in number, in the
size of a request's head, and in time. A connection is closed if its headers take too long, its body trickles, or its
response is not read.
"""

import asyncio
import contextlib
import http
import os
import socket
import ssl
import stat
import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cheops.api.uvicorn_server import Config, HttpToolsProtocol, Server
from cheops.config.security import ClientsConfig
from cheops.errors import CheopsError
from cheops.node.node import Node
from cheops.peers.endpoint import TAKE_OVER
from cheops.security.tls import TOO_MANY, TOO_MANY_OF_ONE, HandshakeLimits, TlsAcceptor, identity_at
from cheops.store.codec import MAX_MESSAGE_BYTES

SOCKET_NAME = "agent.sock"
BACKLOG = 2048
_KEEP_ALIVE_S = 75
_GRACE_S = 3  # for open requests when the agent stops: streams of events never end by themselves
MIN_BODY_BYTES = 1024  # of a body that must arrive within `stall_timeout`
_CHECKS = 4  # within the shortest timeout
_LEAST_CHECK_S = 0.05
_CLOSED = b"connection: close\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n"
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid


class LimitedConnection(Protocol):
    """A connection, as the limiter sees it."""

    def overdue(self, now_s: float) -> str:
        """Why it must be closed; empty if it may stay."""

    def refuse(self, status: int, reason: str) -> None:
        """Close it, with this response if none has begun."""


class ConnectionLimiter:
    """Counts the open connections of an agent, and closes those that are too slow. Belongs to one event loop."""

    def __init__(self, node: Node) -> None:
        self.limits: ClientsConfig = node.config.clients
        self._node = node
        self._open: set[LimitedConnection] = set()
        self._by_address: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, one: LimitedConnection, address: str) -> str:
        """Why one more connection is refused; empty if it is not. Without an address it comes by the Unix socket: an
        administrator always gets in."""
        if address and len(self._open) >= self.limits.connections:
            return TOO_MANY
        if address and self._by_address[address] >= self.limits.connections_each:
            return TOO_MANY_OF_ONE
        self._open.add(one)
        if address:
            self._by_address[address] += 1
        return ""

    def leave(self, one: LimitedConnection, address: str) -> None:
        if one not in self._open:
            return
        self._open.discard(one)
        if address:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    def log_refusal(self, reason: str, address: str, status: int) -> None:
        self._node.refusal_log.request(reason, "", address or "unix", status=status)

    async def watch(self) -> None:
        """Close connections that are too slow; runs until cancelled."""
        loop = asyncio.get_running_loop()
        shortest_s = min(self.limits.head_timeout_s, self.limits.stall_timeout_s)
        while True:
            await asyncio.sleep(max(_LEAST_CHECK_S, min(1.0, shortest_s / _CHECKS)))
            now_s = loop.time()
            for one in list(self._open):
                if reason := one.overdue(now_s):
                    one.refuse(408, reason)


class LimitedProtocol(HttpToolsProtocol):
    """uvicorn's connection, with limits. Each agent has a subclass with its `limiter`: uvicorn takes a class."""

    limiter: ClassVar[ConnectionLimiter]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._address = ""
        self._is_refused = False
        self._head_since_s: float | None = None  # None: no request head is under way
        self._head_bytes = 0
        self._is_mid_message = False  # a request has begun, and its body is not complete
        self._excess = 0  # bytes of a body that came after its response; some clients send all before they read
        self._received = 0  # bytes, over all requests
        self._mark, self._mark_s = 0, 0.0  # `_received` when the current stall timeout began, and that time
        self._unread_since_s: float | None = None  # None: the client reads what is sent to it
        self._cycles: list[Any] = []  # requests without a complete response: more than one where a client pipelines

    # -- begin and end ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._address = str(self.client[0]) if self.client else ""
        self._head_since_s = self.loop.time()
        if reason := self.limiter.enter(self, self._address):
            self.refuse(503, reason)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disconnect_cycles()
        self.limiter.leave(self, self._address)
        super().connection_lost(exc)

    def refuse(self, status: int, reason: str) -> None:
        """Close it, with this response if none has begun."""
        if self._is_refused:
            return
        self._is_refused = True
        self.limiter.log_refusal(reason, self._address, status)
        if self.cycle is None or self.cycle.response_complete:
            line = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode()
            self.transport.write(line + _CLOSED)
            self.transport.close()
        else:
            self._disconnect_cycles()
            self.transport.abort()  # a response has begun, so no other can be sent

    def _disconnect_cycles(self) -> None:
        """uvicorn marks only the newest request of a connection as disconnected. With pipelining an older one is
        still sending, and would write to a transport that is closed."""
        for cycle in self._cycles:
            cycle.disconnected = True

    def _unsupported_upgrade_warning(self) -> None:
        """uvicorn would log a warning, which any client could cause. The handler of the request decides."""

    # -- sizes -----------------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._received += len(data)
        if self._head_since_s is not None:
            self._head_bytes += len(data)
        elif self._is_mid_message and self.cycle is not None and self.cycle.response_complete:
            self._excess += len(data)
        super().data_received(data)
        if self._excess > max(MAX_MESSAGE_BYTES, self.limiter.limits.upload_bytes):
            self.refuse(413, "body too large")
        if self._head_since_s is not None and self._head_bytes > self.limiter.limits.head_bytes:
            self.refuse(431, "head too large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._is_mid_message, self._excess = True, 0
        self._mark, self._mark_s = self._received, self.loop.time()
        if self._head_since_s is None:
            self._head_since_s, self._head_bytes = self.loop.time(), 0

    def on_headers_complete(self) -> None:
        self._head_since_s, self._head_bytes = None, 0
        # A head that arrives in one piece is complete before `data_received` can check its size.
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > self.limiter.limits.head_bytes:
            self.refuse(431, "head too large")
        if not self._is_refused:
            super().on_headers_complete()
            self._cycles = [cycle for cycle in (*self._cycles, self.cycle) if cycle and not cycle.response_complete]

    def on_body(self, body: bytes) -> None:
        if not self._is_refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_mid_message = False
        if not self._is_refused:
            super().on_message_complete()

    # -- times -----------------------------------------------------------------------------------------------

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread_since_s = self.loop.time()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._unread_since_s = None

    def overdue(self, now_s: float) -> str:
        limits = self.limiter.limits
        if self._head_since_s is not None:
            return "slow head" if now_s - self._head_since_s > limits.head_timeout_s else ""
        if self._unread_since_s is not None and now_s - self._unread_since_s > limits.stall_timeout_s:
            return "answer not read"
        # A client is not slow while this side reads nothing, because the handler has not taken the last chunk yet.
        if not self._is_mid_message or self.flow.read_paused:
            self._mark, self._mark_s = self._received, now_s
        elif now_s - self._mark_s > limits.stall_timeout_s:
            arrived = self._received - self._mark
            self._mark, self._mark_s = self._received, now_s
            return "slow body" if arrived < MIN_BODY_BYTES else ""
        return ""


class Connection(LimitedProtocol):
    """A connection of a client or of another site."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.app_state = {**self.app_state, **connection_state(transport), TAKE_OVER: self.take_over}

    def take_over(self, protocol: asyncio.Protocol, head: bytes) -> None:
        """Answer the current request with these bytes; from then on the connection is that of another protocol, and
        counts no longer as one of a client."""
        self._disconnect_cycles()  # uvicorn must send nothing when the handler ends
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        self.limiter.leave(self, self._address)
        self.transport.write(head)
        self.transport.set_protocol(protocol)
        protocol.connection_made(self.transport)


def connection_state(transport: asyncio.BaseTransport) -> dict[str, Any]:
    """What the TLS handshake proved about the other end."""
    try:
        identity = identity_at(transport)
    except CheopsError as error:
        return {"peer": None, "certificate": None, "bad_certificate": str(error)}
    return {"peer": identity.site if identity else None, "certificate": identity}


# -- the Unix socket -------------------------------------------------------------------------------------------


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


# -- responses -------------------------------------------------------------------------------------------------


# For browsers: a response is data of the media type that it names, is shown in no frame and kept in no cache, whatever
# a client managed to have stored in it. A response that sets one of these itself (the web interface) keeps its own.
RESPONSE_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"referrer-policy", b"no-referrer"),
)


def with_response_headers(app: ASGIApp) -> ASGIApp:
    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                added = [header for header in RESPONSE_HEADERS if header[0] not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        await app(scope, receive, send_with_headers)

    return respond


# -- servers ---------------------------------------------------------------------------------------------------


class _Server(Server):
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
        app = with_response_headers(app)
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
        """Returns when requests are served."""
        self._tasks = [asyncio.create_task(server.serve([own])) for server, own in self._servers]
        self._tasks.append(asyncio.create_task(self.limiter.watch()))
        while not all(server.started for server, _ in self._servers) and not self._has_ended():
            await asyncio.sleep(0.001)  # uvicorn has a flag, and nothing to wait for

    @property
    def tasks(self) -> Sequence[asyncio.Task[None]]:
        """One that ends without `stop` has failed."""
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
        lambda reason, address: limiter.log_refusal(reason, address, 503),
    )


def _uvicorn_config(app: ASGIApp, kind: type, limiter: ConnectionLimiter) -> Config:
    settings = Config(
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
