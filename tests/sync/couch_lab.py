"""An agent-like site for tests of the protocol: a store, its databases, a real HTTP server on a free port."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

import aiohttp
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Save
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, MatrixRef, Operation, OpId, Origin, Reply, Stamp, Status, Verdict
from cheops.peers.couchdb.client import ReplicatorSettings
from cheops.peers.couchdb.database import ALL, Databases, ServerLimits
from cheops.peers.couchdb.documents import couch_document
from cheops.peers.couchdb.replicator import Replicator
from cheops.peers.couchdb.server import couch_routes
from cheops.store import codec
from cheops.store.interface import Store
from cheops.store.memory import MemoryStore

Json = Any
QUICK = ReplicatorSettings(
    batch=7, timeout_s=20, heartbeat_s=1, checkpoint_s=0.05, first_delay_s=0.01, longest_delay_s=0.05
)
PARIS = Origin("paris", "3f2a")
MATRIX = Matrix([Entry("set", "set", Result.TAKE_ONE)])


def operation(n: int, resource: str = "counter", line: str = "", **changes: Any) -> Operation:
    """Number n of the site paris, decided; the first one says where the resource is."""
    stamp = Stamp(1_700_000_000_000 + n, 0, PARIS)
    fields: dict[str, Any] = {
        "resource": resource,
        "rtype": "redis",
        "type": "set",
        "kind": Kind.NORMAL,
        "payload": Command(line or f"set {n}"),
        "origin": PARIS,
        "seq": n,
        "deps": {PARIS: n - 1} if n > 1 else {},
        "stamp": stamp,
        "matrix": MatrixRef(MATRIX.hash, Stamp(1_700_000_000_000, 0, PARIS)),
        "sites": ("paris", "lyon") if n == 1 else None,
        "verdict": Verdict.OK,
    }
    return Operation(**(fields | changes))


def reply(n: int, resource: str = "counter") -> Reply:
    return Reply(resource, Origin("lyon", "91c0"), n, OpId(PARIS, n), "set", Status.OK, output=f"OK {n}")


def operations(count: int, first: int = 1, resource: str = "counter") -> list[Document]:
    return [operation(n, resource) for n in range(first, first + count)]


def couch(document: Document) -> Json:
    """As another database would send it."""
    return msgspec.json.decode(bytes(couch_document(document).as_couch(history=True)))


@dataclass
class Site:
    """What the agent will be, as far as the protocol is concerned."""

    store: Store = field(default_factory=MemoryStore)
    limits: ServerLimits = field(default_factory=lambda: ServerLimits(page=5, least_heartbeat_s=0.02))
    knows_site: Callable[[str], bool] = lambda _site: True

    def __post_init__(self) -> None:
        self.executor = ThreadPoolExecutor(1)
        self.databases = Databases(self.store, self.executor, self.accept, self.limits, self.knows_site)
        self.database = self.databases.named(ALL)
        self.accepted: list[Document] = []
        self.url = ""

    async def accept(self, documents: Sequence[Document]) -> None:
        self.accepted.extend(documents)
        self.commit(documents)

    def commit(self, documents: Sequence[Document], forget: Sequence[Key] = ()) -> None:
        self.databases.committed(self.store.commit([Save(tuple(documents), tuple(forget))]))

    def forget(self, *documents: Document) -> None:
        self.commit((), [key_of(document) for document in documents])

    @property
    def ids(self) -> list[str]:
        return [codec.id_of(change.key) for change in self.store.changes(0, 100_000)]

    def at(self, name: str = ALL) -> str:
        return f"{self.url}/{name}"

    def replicator(
        self,
        url: str,
        session: aiohttp.ClientSession,
        report: Callable[[Exception], None] | None = None,
        settings: ReplicatorSettings = QUICK,
        seed: int = 1,
    ) -> Replicator:
        return Replicator(self.database, url, session, Random(seed), report or _fail, settings)  # noqa: S311 - repeatable

    def close(self) -> None:
        self.databases.close()
        self.executor.shutdown()
        self.store.close()


def _fail(error: Exception) -> None:
    raise AssertionError(f"unexpected: {error}") from error


@contextlib.asynccontextmanager
async def serving(
    site: Site, wrap: Callable[[ASGIApp], ASGIApp] = lambda app: app, port: int = 0
) -> AsyncIterator[Site]:
    """The site with a real server, under a path, as an agent would mount it."""
    app = wrap(Starlette(routes=[Mount("/couch", routes=couch_routes(site.databases))]))
    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        site.url = f"http://127.0.0.1:{listener.getsockname()[1]}/couch"
        task = asyncio.create_task(server._serve([listener]))  # `serve` would take the signals of the tests
        await until(lambda: server.started or task.done())
        try:
            yield site
        finally:
            site.databases.close()
            server.should_exit = True
            await task


async def until(condition: Callable[[], Any], timeout_s: float = 30) -> None:
    """Wait for a condition; the time is only there so that a failing test ends."""
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)
