"""One life of a simulated agent with a gateway: the production code of HTTP replication, on a model service.

`backends.http` decides what a request is about, which operation it becomes, what that waits for, which ids go to the
service, and what the answers mean. Here is only what it uses of an agent: the engine, the network and the disk, all
simulated. The agent ends with a crash, and with it everything that it was doing.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from sqlite3 import Connection
from typing import TYPE_CHECKING, Any, cast

import msgspec

from cheops.backends.http.backend import HttpBackend
from cheops.backends.http.copies import Copies
from cheops.backends.http.replication import HttpReplication
from cheops.backends.http.sender import ServiceReply
from cheops.backends.protocol import BackendContext, FileAccess
from cheops.config.services import ServiceConfig
from cheops.config.site import SiteConfig, parse_site
from cheops.engine.events import ClientLeft, Outcome, Queried, Run, Step, Submitted, Verified
from cheops.engine.replica import Replica
from cheops.errors import CheopsError
from cheops.gateway.headers import ForwardingInfo, Headers, RequestHead
from cheops.gateway.interfaces import Body, Response, UpstreamError
from cheops.gateway.upstream import PreparedBody
from cheops.log.operation import OpId
from cheops.node.effects import Answers, PendingRequests
from cheops.node.node import Node
from cheops.scope.route import Replicas
from cheops.scope.snapshot import SiteInfo, Snapshot
from cheops.sim.http_service import CONFIG

if TYPE_CHECKING:
    from cheops.sim.http_world import HttpWorld

_JSON: Headers = (("Content-Type", "application/json"),)
_LOAD_S = 0.001
_NO_FILES = FileAccess(lambda _hash: None, lambda _resource, _hash: False, lambda _resource, _file: None)
running_step: ContextVar[tuple[str, OpId] | None] = ContextVar("running_step", default=None)


@cache
def config_of(site: str) -> SiteConfig:
    """Read as an agent reads it, rules included."""
    return parse_site(CONFIG.format(name=site), Path("site.yaml"))


class SimulatedCopies(Copies):
    """The table of copies, in the memory of a disk that survives crashes."""

    def __init__(self, connection: Connection, is_alive: Callable[[], bool]) -> None:
        super().__init__(Path("copies"))
        self._connection = connection
        self._is_alive = is_alive
        self._take(*self._read(connection))

    async def open(self) -> None:
        pass  # it is

    async def _write(self, rows: list[tuple[str, tuple[object, ...]]]) -> None:
        if not self._is_alive():
            raise asyncio.CancelledError
        self._commit(rows)


class SimulatedBackend(HttpBackend):
    """The HTTP backend, which also tells the world which operation a request is of."""

    async def run_step(self, run: Run, step: Step) -> Outcome:
        running_step.set((run.resource, step.op) if step.op else None)
        return await super().run_step(run, step)


@dataclass(frozen=True)
class ClientRequest:
    """A request to a gateway; implements `IncomingRequest`."""

    head: RequestHead
    content: bytes
    forwarding: ForwardingInfo
    is_forwarded: bool = False
    peer: str = "127.0.0.1"

    @property
    def size(self) -> int | None:
        return len(self.content)

    async def body(self) -> AsyncIterator[bytes]:
        if self.content:
            yield self.content


class Agent:
    """What HTTP replication uses of a `Node` and of the gateway (`UpstreamServices`), for one life of a site."""

    trouble = None
    files = None  # the clients of the model open no sessions, and their bodies are too small for files

    def __init__(self, world: "HttpWorld", name: str) -> None:
        self.name = name
        self.config = config_of(name)
        self.is_alive = True
        self.pump = self.backends = self.channels = self
        self.pending_requests = PendingRequests(lambda resource, op: self._post(ClientLeft(resource, op)))
        self._world = world
        self._tasks: set[asyncio.Task[object]] = set()
        context = BackendContext(
            self.config,
            {},
            _NO_FILES,
            cast("Any", None),
            self._loaded,
            lambda _site, _why: None,
            self.replica,
            self._report_drift,
        )
        copies = SimulatedCopies(world.copies[name], lambda: self.is_alive)
        self.backend = SimulatedBackend(context, copies, self._exchange)
        self.replication = HttpReplication(cast("Node", self), self, world.random.randbytes)

    # -- as a node -----------------------------------------------------------------------------------------

    def named(self, _backend: str) -> HttpBackend:
        return self.backend

    def snapshot(self) -> Snapshot:
        services = frozenset(self.config.services)
        up = {site: site == self.name or self._world.reaches(self.name, site) for site in self._world.nodes}
        return Snapshot(self.name, {site: SiteInfo(site, services, up=is_up) for site, is_up in up.items()})

    def can_reach(self, _site: str) -> bool:
        """Sites do not ask each other what they have: a client goes to a site that knows, or gives the scope."""
        return False

    def answers(self) -> Answers:
        return Answers(self.pending_requests)

    def submit(self, event: Submitted) -> None:
        self._post(event)

    async def _report_drift(self, why: Mapping[str, str]) -> None:
        for resource, text in why.items():
            self._post(Verified(resource, self.name, text, self._world.now_ms))

    def _post(self, event: Submitted | ClientLeft | Queried | Verified) -> None:
        if self.is_alive:
            self._world.deliver(self.name, event)

    async def replica(self, resource: str) -> Replica:
        self._post(Queried(resource, False))
        while (found := self._loaded(resource)) is None:
            await asyncio.sleep(_LOAD_S)
        return found

    def _loaded(self, resource: str) -> Replica | None:
        if not self.is_alive:
            raise asyncio.CancelledError
        site = self._world.nodes[self.name].site
        return site.replicas.get(resource) if site else None

    # -- its life ------------------------------------------------------------------------------------------

    def start(self, coro: Coroutine[Any, Any, object]) -> asyncio.Task[object]:
        """Run something that ends with this life."""
        task = self._world.loop.start(coro)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self) -> None:
        self.is_alive = False
        for task in self._tasks:
            task.cancel()

    # -- as a gateway --------------------------------------------------------------------------------------

    async def serve(self, service: str, request: ClientRequest, route: Replicas | None) -> Response:
        try:
            if route is not None or self.replication.concerns(service, request.head):
                return await self.replication.handle(service, request, route)
            return await self.local(service, request.head, request.content, 0.0, request.forwarding)
        except CheopsError as error:
            return Response(error.status, (), str(error).encode())

    async def local(
        self, service: str, head: RequestHead, body: Body | None, timeout_s: float, forwarding: ForwardingInfo
    ) -> Response:
        del timeout_s, forwarding
        content = body if isinstance(body, bytes) else b"".join([piece async for piece in body]) if body else b""
        reply = await self._world.call_service(self, service, head.method, head.target, content)
        return Response(reply[0], _JSON, msgspec.json.encode(reply[1]))

    async def at(
        self, site: str, service: str, head: RequestHead, body: Body | None, forwarding: ForwardingInfo
    ) -> Response:
        content = b"" if body is None or isinstance(body, bytes) else b"".join([piece async for piece in body])
        request = ClientRequest(head, content, forwarding, is_forwarded=True)
        return await self._world.forward(self, site, service, request)

    async def carry(self, service: str, headers: Headers, scope: str) -> tuple[Headers, Callable[[], None]]:
        del service, scope
        return headers, lambda: None

    async def _exchange(self, service: ServiceConfig, head: RequestHead, upload: PreparedBody) -> ServiceReply:
        content = upload.at_once() or b""
        reply = await self._world.call_service(self, service.name, head.method, head.target, content)
        body = msgspec.json.encode(reply[1])
        return ServiceReply(reply[0], _JSON, body, len(body))


def connection_refused(where: str) -> UpstreamError:
    return UpstreamError(f"{where}: connection refused", "connection refused", may_have_had_effect=False)


def broken_off(where: str) -> UpstreamError:
    return UpstreamError(f"{where} broke off", "broken off", may_have_had_effect=True)
