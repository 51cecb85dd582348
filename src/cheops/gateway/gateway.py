"""The gateway of a site: its addresses, the connections at them, and their end.

Made from a configuration; `start` it with the sockets that listening.py opened, and `stop` it. Without
services that listen it costs nothing.
"""

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from cheops.config.site import SiteConfig
from cheops.gateway.carriers import Carriers
from cheops.gateway.client import Client
from cheops.gateway.errors import GatewayRequestError, GoneError
from cheops.gateway.fast import unix_socket
from cheops.gateway.fast.handed import HandedWire
from cheops.gateway.fast.naming import (
    MESH_SOCKET,
    again_sent_socket,
    again_socket,
    calls_socket,
    front_socket,
)
from cheops.gateway.fast.plane import FastPlane
from cheops.gateway.fast.process import HaproxyError
from cheops.gateway.listening import BACKLOG, Listening, most_connections, open_handed
from cheops.gateway.peers import PeerGateways
from cheops.gateway.problems import of_error, problem
from cheops.gateway.record import Record
from cheops.gateway.request import Entrance, Way
from cheops.gateway.seam import Replication, Services
from cheops.gateway.sending import Sending
from cheops.gateway.serving import Serving
from cheops.gateway.telling import refuse
from cheops.gateway.wire import Wire
from cheops.node.node import Node
from cheops.plugins import scope_functions
from cheops.security.accepting import Accepting, Manners

_STOP_S = 3.0  # for what is broken off
_ARRIVE_S = 0.05  # what clients had sent before they could know is taken
_ADDRESSES = 4  # that could fill a gateway with handshakes, and no fewer
_TURNED_AWAY = 100  # how many at a time are told that there is no room
_log = logging.getLogger(__name__)


class Gateway:
    """All services of a site, each behind its addresses."""

    def __init__(self, node: Node, program: str | None = None) -> None:
        """`program` is the HAProxy that forwards, where it does."""
        config = node.config
        self._config = config
        self._settings = config.gateway
        self._here = config.name
        self._keyring = node.keyring
        self._refusals = node.refusals
        self._servers: list[asyncio.Server | Accepting] = []
        self._serving_tasks: dict[asyncio.Task[None], Client] = {}
        self._is_stopping = False
        self._most = most_connections(config.gateway.connections)
        self.record = Record()
        self.carriers = _carriers(config)
        peers = PeerGateways(node)
        self._sending = Sending(config.name, config.services, config.gateway, peers, self.carriers)
        functions = scope_functions()
        self._serving = Serving(
            config, functions, node.snapshot, peers, self._sending, self.carriers, self.record
        )
        self.fast = (
            FastPlane(node, functions, peers, self.record, program, self._most, self.carriers)
            if program
            else None
        )
        self._serving.flows = self.fast
        self.without_haproxy = ""  # why the agent forwards by itself, though it should not have to
        self._local_sockets: list[tuple[Path, socket.socket]] = []

    @property
    def here(self) -> str:
        return self._here

    @property
    def services(self) -> Services:
        """What the replicating half may ask for."""
        return self._sending

    def replicate_with(self, replication: Replication) -> None:
        """Have this answer what is replicated."""
        self._serving.replicate_with(replication)

    @property
    def connections(self) -> int:
        """Of clients and other gateways; of HAProxy's as many as at the last `refresh`."""
        own = sum(not isinstance(client.wire, HandedWire) for client in self._serving_tasks.values())
        return own + (self.fast.counting.clients if self.fast else 0)

    async def refresh(self) -> None:
        """Have all counted that HAProxy has served."""
        if self.fast:
            await self.fast.refresh()

    @property
    def warm(self) -> int:
        """Connections to services and other gateways that wait for use."""
        return self._sending.asking.pool.idle

    # -- starting and stopping ---------------------------------------------------------------------------

    async def start(self, listening: Listening) -> None:
        await self._listen(listening.sockets)
        if self.fast is None:
            return
        try:
            await self._hand_over(self.fast, listening.handed)
        except HaproxyError as error:
            if self._settings.data_plane != "auto":
                raise
            _log.error("the agent forwards by itself: %s", error)
            self.without_haproxy = str(error)
            self.fast.give_up()
            self.fast = self._serving.flows = None
            await self._listen(open_handed(self._config, listening.handed))

    async def _listen(self, sockets: Mapping[Entrance, socket.socket]) -> None:
        loop = asyncio.get_running_loop()
        for entrance, one in sockets.items():

            def wire(at: Entrance = entrance) -> Wire:
                return Wire(lambda made: self._connected(made, at))

            if entrance.way is Way.MESH and self._keyring:
                manners = self._manners(self._keyring.server_for_sites.context)
                self._servers.append(Accepting(one, wire, manners))
            else:
                self._servers.append(await loop.create_server(wire, sock=one, backlog=BACKLOG))

    async def _hand_over(self, fast: FastPlane, entrances: tuple[Entrance, ...]) -> None:
        """Take what HAProxy hands over, and have it take everything else."""
        loop = asyncio.get_running_loop()
        folder = fast.haproxy.folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for entrance in entrances:
            for name, at in _sockets_of(entrance):
                one = unix_socket.listen(folder / name, BACKLOG)
                self._local_sockets.append((folder / name, one))
                server = await loop.create_unix_server(
                    lambda at=at: HandedWire(lambda wire: self._connected(wire, at)),  # type: ignore[misc]
                    sock=one,
                    backlog=BACKLOG,
                )
                self._servers.append(server)
        await fast.start()

    def _manners(self, context: ssl.SSLContext) -> Manners:
        """Whoever is still shaking hands leaves room for sites at other addresses."""
        most = max(1, self._most // 2)
        each = max(1, most // _ADDRESSES)
        return Manners(context, self._settings.head_timeout_s, most, each, self._not_greeted)

    def _not_greeted(self, reason: str, address: str) -> None:
        self.record.refused[503] += 1
        self._refusals.count(reason, address)

    async def stop(self) -> None:
        """Take no more connections, let the requests under way come to an end for a while, and close
        everything. Their answers tell clients to send no more over the same connection."""
        if self.fast:
            await self.fast.stop()  # while what it hands over is still served
        self._is_stopping = True
        await asyncio.sleep(_ARRIVE_S)
        for server in self._servers:
            server.close()
        for client in list(self._serving_tasks.values()):
            client.is_last = True
            if client.is_idle:
                client.wire.close()
        end_s = asyncio.get_running_loop().time() + self._settings.stop_timeout_s
        while under_way := [task for task, client in self._serving_tasks.items() if not client.is_tunnel]:
            left_s = end_s - asyncio.get_running_loop().time()
            if left_s <= 0:
                _log.warning("%s requests were not done in time, and are broken off", len(under_way))
                break
            await asyncio.wait(under_way, timeout=left_s)
        for task, client in list(self._serving_tasks.items()):
            client.wire.abort()
            task.cancel()
        if self._serving_tasks:
            await asyncio.wait(self._serving_tasks, timeout=_STOP_S)
        self._sending.asking.pool.close()
        for path, one in self._local_sockets:
            unix_socket.remove(path, one)

    # -- connections -------------------------------------------------------------------------------------

    def _connected(self, wire: Wire, entrance: Entrance) -> None:
        if len(self._serving_tasks) >= self._most + _TURNED_AWAY:
            wire.abort()  # not even a word: that would cost what there is none of
            return
        client = Client(wire, self._settings)
        client.is_last = self._is_stopping
        is_full = len(self._serving_tasks) >= self._most
        coroutine = self._turn_away(client) if is_full else self._converse(client, entrance)
        task = asyncio.get_running_loop().create_task(coroutine)
        self._serving_tasks[task] = client
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        client = self._serving_tasks.pop(task)
        client.wire.close()
        if not task.cancelled() and (error := task.exception()):
            _log.error("a connection ended with a mistake", exc_info=error)

    async def _converse(self, client: Client, entrance: Entrance) -> None:
        """Requests, one after the other."""
        try:
            while True:
                head = await client.next_head()
                if head is None:
                    return
                await self._serving.serve(client, entrance, head)
                if not await client.can_go_on() or self._is_stopping:
                    await client.close_gently()
                    return
        except GatewayRequestError as error:
            self.record.refused[error.status] += 1
            await refuse(client, of_error(self._here, error))
        except GoneError:
            client.wire.abort() if client.wire.has_ended else client.wire.close()

    async def _turn_away(self, client: Client) -> None:
        self.record.refused[503] += 1
        text = f"this gateway has {self._most:,} connections, which is all it may have"
        await refuse(client, problem(self._here, 503, text, definite=False))


def _sockets_of(entrance: Entrance) -> Iterable[tuple[str, Entrance]]:
    """Where HAProxy hands over what comes to an address of its own."""
    service = entrance.service
    if entrance.way is Way.MESH:
        yield MESH_SOCKET, entrance
        return
    if entrance.way is Way.OUTBOUND:  # what was tried in vain has its scope by then, and comes as any other
        yield calls_socket(service), entrance
        return
    yield front_socket(service), entrance
    yield again_socket(service), replace(entrance, is_again=True)
    yield again_sent_socket(service), replace(entrance, is_again=True, is_sent=True)


def _carriers(config: SiteConfig) -> Carriers | None:
    """Only where the application calls out through the gateway there is anything to recover."""
    if not config.has_carriers:
        return None
    return Carriers(config.gateway.carriers, config.gateway.carriers_for_s, time.monotonic)
