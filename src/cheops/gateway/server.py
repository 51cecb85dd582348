"""The gateway of a site: its listening sockets, the client connections on them, and how it starts and stops.

The first module on the path of a request: it accepts the connection, then has `client_connection` read one request
after the other and `handler` serve each.

Sockets are opened first (`open_listeners`), so that an address in use is reported before anything else starts.
A gateway whose services do not listen costs nothing.
"""

import asyncio
import logging
import resource
import socket
import ssl
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from cheops.config.address import Address
from cheops.config.service_tls import ListenerTls
from cheops.config.site import SiteConfig
from cheops.errors import CheopsError
from cheops.gateway.carriers import Carriers
from cheops.gateway.client_connection import ClientConnection
from cheops.gateway.connection import Wire
from cheops.gateway.dispatcher import Forwarder
from cheops.gateway.handler import RequestHandler
from cheops.gateway.haproxy import handover
from cheops.gateway.haproxy.handover import HandoverWire
from cheops.gateway.haproxy.layout import MESH_SOCKET, again_sent_socket, again_socket, calls_socket, front_socket
from cheops.gateway.haproxy.plane import HaproxyPlane
from cheops.gateway.haproxy.process import HaproxyError, choose_program, leftover_pid, stop_leftover
from cheops.gateway.interfaces import ClientGoneError, GatewayRequestError, Replication, UpstreamServices
from cheops.gateway.peers import PeerGateways
from cheops.gateway.request import Listener, ListenerKind
from cheops.gateway.request_log import RequestLog
from cheops.gateway.responses import error_response, problem_response, send_refusal
from cheops.gateway.service_tls import CertificateFileError, listener_context, listener_files
from cheops.gateway.unknown_calls import UnknownCallPolicy
from cheops.node.node import Node
from cheops.plugins import scope_functions
from cheops.security.tls import HandshakeLimits, TlsAcceptor

BACKLOG = 4096  # the usual `somaxconn` of Linux, which caps it anyway: a burst of clients waits instead of failing
_OTHER_FILES = 256  # that an agent has open besides the connections of its gateway
_STOP_S = 3.0  # for cancelled connections to end
_ARRIVE_S = 0.05  # for requests that are on their way when the gateway begins to stop
_HANDSHAKE_SHARES = 4  # one source address gets at most a quarter of the unfinished handshakes
_MAX_REFUSALS = 100  # connections above the limit that get a response before they are closed
_log = logging.getLogger(__name__)


class ListenError(CheopsError):
    """The gateway cannot listen on an address."""


class ListenerSockets(Struct, frozen=True):
    """The open sockets of a gateway."""

    sockets: dict[Listener, socket.socket]
    program: str | None = None  # HAProxy, if it listens for clients
    haproxy_listeners: tuple[Listener, ...] = ()  # HAProxy opens the sockets of these

    @property
    def has_any(self) -> bool:
        return bool(self.sockets or self.haproxy_listeners)

    def close(self) -> None:
        for one in self.sockets.values():
            one.close()


def open_listeners(config: SiteConfig) -> ListenerSockets:
    """Open the sockets of all listeners that HAProxy does not have. Raises ListenError, and then none stays open."""
    for service in config.services.values():
        if service.listener.tls:
            _check_certificate(config, service.name, service.listener.tls)
    program = choose_program(config)
    if program is None:
        stop_leftover(config)
    # The HAProxy of an agent that was killed still holds these addresses, and this agent adopts it.
    has_leftover = leftover_pid(config) is not None
    opened, haproxy_listeners = ListenerSockets({}), []
    try:
        for key, listener, address in _listeners(config):
            if program is None or not _is_for_haproxy(listener, config):
                opened.sockets[listener] = _bind(key, address, config)
                continue
            haproxy_listeners.append(listener)
            if not has_leftover:
                _bind(key, address, config).close()  # only to see that the address is free
    except ListenError:
        opened.close()
        raise
    return ListenerSockets(opened.sockets, program, tuple(haproxy_listeners))


def _check_certificate(config: SiteConfig, service: str, tls: ListenerTls) -> None:
    try:
        listener_files(tls).current()
    except CertificateFileError as error:
        key = f"services.{service}.tls"
        raise ListenError(f"the gateway has no certificate ('{key}' in {config.source}): {error}") from None


def open_haproxy_listeners(config: SiteConfig, listeners: Collection[Listener]) -> dict[Listener, socket.socket]:
    """Open the sockets that HAProxy should have had, after it failed to start."""
    return {
        listener: _bind(key, address, config) for key, listener, address in _listeners(config) if listener in listeners
    }


def _is_for_haproxy(listener: Listener, config: SiteConfig) -> bool:
    """Whether HAProxy has a listener: those for clients, for the application's own calls to such services, and the
    one for gateways with certificates."""
    match listener.kind:
        case ListenerKind.INBOUND:
            return True
        case ListenerKind.OUTBOUND:
            return config.services[listener.service].listener.listen is not None
        case ListenerKind.MESH:
            return config.security.is_on
        case ListenerKind.PROXY:
            return False


def connection_limit(wanted: int) -> int:
    """Raise the limit of open files (RLIMIT_NOFILE) of this process as far as it may, and give the number of clients
    that can be served at once: as many as wanted, or as that limit allows. Each client may need a second connection,
    to a service."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY or (possible := (hard - _OTHER_FILES) // 2) >= wanted:
        return wanted
    _log.warning(
        "gateway.connections is %s, but the limit of open files (%s) allows only %s",
        wanted,
        hard,
        possible,
    )
    return max(possible, 1)


def _listeners(config: SiteConfig) -> Iterable[tuple[str, Listener, Address]]:
    for service in config.services.values():
        if service.listener.listen:
            yield (
                f"services.{service.name}.listen",
                Listener(ListenerKind.INBOUND, service.name),
                service.listener.listen,
            )
        if service.listener.outbound:
            key = f"services.{service.name}.outbound"
            yield key, Listener(ListenerKind.OUTBOUND, service.name), service.listener.outbound
    if config.gateway.listen:
        yield "gateway.listen", Listener(ListenerKind.MESH), config.gateway.listen
    if config.gateway.proxy:
        yield "gateway.proxy", Listener(ListenerKind.PROXY), config.gateway.proxy


def _bind(key: str, address: Address, config: SiteConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it, an address stays in use for a minute after a restart (TIME_WAIT of its last connections).
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(BACKLOG)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ListenError(
            f"the gateway cannot listen on {address}, which '{key}' in {config.source} sets: {error.strerror}"
        ) from error
    return listening


class Gateway:
    """The gateway of a site, for all of its services."""

    def __init__(self, node: Node, program: str | None = None) -> None:
        """`program` is the path of HAProxy, if it is used."""
        config = node.config
        self._node = node
        self._config = config
        self._settings = config.gateway
        self._here = config.name
        self._keyring = node.keyring
        self._refusals = node.refusals
        self._servers: list[asyncio.Server | TlsAcceptor] = []
        self._client_tasks: dict[asyncio.Task[None], ClientConnection] = {}
        self._is_stopping = False
        self._max_connections = connection_limit(config.gateway.connections)
        self.request_log = RequestLog()
        self.carriers = _carriers(config)
        peers = self._peers = PeerGateways(node)
        marks_all = config.refuses_unknown_calls
        self._forwarder = Forwarder(
            config.name, config.services, config.gateway, peers, self.carriers, marks_all=marks_all
        )
        unknown_calls = (
            UnknownCallPolicy(config.services, self.carriers, self.request_log) if self.carriers is not None else None
        )
        functions = scope_functions()
        self._handler = RequestHandler(
            config, functions, node.snapshot, peers, self._forwarder, self.carriers, unknown_calls, self.request_log
        )
        self.plane = (
            HaproxyPlane(node, functions, peers, self.request_log, program, self._max_connections, self.carriers)
            if program
            else None
        )
        if self.plane is not None:
            self.plane.counters.unknown_calls = unknown_calls
        self._handler.flows = self.plane
        self.without_haproxy = ""  # why HAProxy is not used although it should be
        self._local_sockets: list[tuple[Path, socket.socket]] = []

    @property
    def here(self) -> str:
        return self._here

    @property
    def services(self) -> UpstreamServices:
        """What replication may use of this gateway."""
        return self._forwarder

    def replicate_with(self, replication: Replication) -> None:
        """Send requests for replicated resources to this."""
        self._handler.replicate_with(replication)
        if self.plane is not None:
            self.plane.replicate_with(replication)

    @property
    def connections(self) -> int:
        """Connections of clients and other gateways; those of HAProxy as of the last `refresh`."""
        own = sum(not isinstance(client.wire, HandoverWire) for client in self._client_tasks.values())
        return own + (self.plane.counters.clients if self.plane else 0)

    async def refresh(self) -> None:
        """Read HAProxy's counters."""
        if self.plane:
            await self.plane.refresh()

    @property
    def warm(self) -> int:
        """Idle connections to services and other gateways."""
        return self._forwarder.client.pool.idle

    # -- starting and stopping ---------------------------------------------------------------------------

    async def start(self, listening: ListenerSockets) -> None:
        await self._listen(listening.sockets)
        if self._keyring is not None:
            self._node.serve("gateway tunnels", self._peers.tunnels.run())
        if self.plane is None:
            return
        try:
            await self._start_haproxy(self.plane, listening.haproxy_listeners)
        except HaproxyError as error:
            if self._settings.data_plane != "auto":
                raise
            _log.error("the agent forwards requests itself, without HAProxy: %s", error)
            self.without_haproxy = str(error)
            self.plane.give_up()
            self.plane = self._handler.flows = None
            await self._listen(open_haproxy_listeners(self._config, listening.haproxy_listeners))

    async def _listen(self, sockets: Mapping[Listener, socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        for listener, listening in sockets.items():

            def new_wire(at: Listener = listener) -> Wire:
                return Wire(lambda wire: self._on_connection(wire, at))

            context = self._tls_context(listener)
            if context is not None:
                self._servers.append(TlsAcceptor(listening, new_wire, self._handshake_limits(context)))
            else:
                self._servers.append(await loop.create_server(new_wire, sock=listening, backlog=BACKLOG))

    def _tls_context(self, listener: Listener) -> ssl.SSLContext | None:
        if listener.kind is ListenerKind.MESH:
            return self._keyring.server_for_sites.context if self._keyring else None
        tls = self._config.services[listener.service].listener.tls if listener.kind is ListenerKind.INBOUND else None
        return listener_context(tls) if tls else None

    async def _start_haproxy(self, plane: HaproxyPlane, listeners: tuple[Listener, ...]) -> None:
        """Open the Unix sockets where HAProxy hands requests over, then start it."""
        loop = asyncio.get_running_loop()
        folder = plane.haproxy.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for listener in listeners:
            for name, at in _sockets_of(listener):
                listening = handover.listen(folder / name, BACKLOG)
                self._local_sockets.append((folder / name, listening))
                server = await loop.create_unix_server(
                    lambda at=at: HandoverWire(lambda wire: self._on_connection(wire, at)),  # type: ignore[misc]
                    sock=listening,
                    backlog=BACKLOG,
                )
                self._servers.append(server)
        await plane.start()

    def _handshake_limits(self, context: ssl.SSLContext) -> HandshakeLimits:
        """Unfinished handshakes of one address must not keep other sites out: together they take at most half of all
        connections, and one address a quarter of that."""
        most = max(1, self._max_connections // 2)
        each = max(1, most // _HANDSHAKE_SHARES)
        return HandshakeLimits(context, self._settings.head_timeout_s, most, each, self._count_refused_handshake)

    def _count_refused_handshake(self, reason: str, address: str) -> None:
        self.request_log.refused[503] += 1
        self._refusals.count(reason, address)

    async def stop(self) -> None:
        """Accept no more connections, give requests in progress some time to end, then close everything. Their
        responses ask clients to close the connection."""
        if self.plane:
            await self.plane.stop()  # first: what it still hands over must be served
        self._is_stopping = True
        # A request may be in a socket's buffer already. Closed now, its client would get a reset instead of a response.
        await asyncio.sleep(_ARRIVE_S)
        for server in self._servers:
            server.close()
        for client in list(self._client_tasks.values()):
            client.is_last = True
            if client.is_idle:
                client.wire.close()
        end_s = asyncio.get_running_loop().time() + self._settings.stop_timeout_s
        # A tunnel may stay open for hours: the gateway does not wait for its end.
        while unfinished := [task for task, client in self._client_tasks.items() if not client.is_tunnel]:
            left_s = end_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                _log.warning("%s requests did not end within gateway.stop_timeout, and are aborted", len(unfinished))
                break
            await asyncio.wait(unfinished, timeout=left_s)
        for task, client in list(self._client_tasks.items()):
            client.wire.abort()
            task.cancel()
        if self._client_tasks:
            await asyncio.wait(self._client_tasks, timeout=_STOP_S)
        self._forwarder.client.pool.close()
        for path, listening in self._local_sockets:
            handover.remove(path, listening)

    # -- connections -------------------------------------------------------------------------------------

    def _on_connection(self, wire: Wire, listener: Listener) -> None:
        """Start a task for a new connection, the only one that it ever has."""
        if len(self._client_tasks) >= self._max_connections + _MAX_REFUSALS:
            wire.abort()  # without a response, which would take a further connection
            return
        client = ClientConnection(wire, self._settings)
        client.is_last = self._is_stopping
        is_full = len(self._client_tasks) >= self._max_connections
        coroutine = self._refuse_connection(client) if is_full else self._serve_requests(client, listener)
        task = asyncio.get_running_loop().create_task(coroutine)
        self._client_tasks[task] = client
        task.add_done_callback(self._on_task_end)

    def _on_task_end(self, task: asyncio.Task[None]) -> None:
        client = self._client_tasks.pop(task)
        client.wire.close()
        if not task.cancelled() and (error := task.exception()):
            _log.error("internal error while serving a connection", exc_info=error)

    async def _serve_requests(self, client: ClientConnection, listener: Listener) -> None:
        """Serve the requests of one connection, one after the other."""
        try:
            while True:
                head = await client.next_head()
                if head is None:
                    return
                await self._handler.serve(client, listener, head)
                if not await client.can_continue() or self._is_stopping:
                    await client.close_gently()
                    return
        except GatewayRequestError as error:
            self.request_log.refused[error.status] += 1
            await send_refusal(client, error_response(self._here, error))
        except ClientGoneError:
            client.wire.abort() if client.wire.has_ended else client.wire.close()

    async def _refuse_connection(self, client: ClientConnection) -> None:
        self.request_log.refused[503] += 1
        text = f"this gateway has {self._max_connections:,} connections, its limit; try again later"
        await send_refusal(client, problem_response(self._here, 503, text, definite=False))


def _sockets_of(listener: Listener) -> Iterable[tuple[str, Listener]]:
    """The Unix sockets where HAProxy hands over the requests of one of its listeners."""
    service = listener.service
    if listener.kind is ListenerKind.MESH:
        yield MESH_SOCKET, listener
        return
    if listener.kind is ListenerKind.OUTBOUND:  # needs no socket for retries: HAProxy has added the scope by then
        yield calls_socket(service), listener
        return
    yield front_socket(service), listener
    yield again_socket(service), replace(listener, is_retry=True)
    yield again_sent_socket(service), replace(listener, is_retry=True, is_from_peer=True)


def _carriers(config: SiteConfig) -> Carriers | None:
    """The memory of scopes; None if the application makes no calls through the gateway."""
    if not config.has_carriers:
        return None
    return Carriers(config.gateway.carriers, config.gateway.carriers_for_s, time.monotonic)
