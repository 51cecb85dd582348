"""The network of the demo: a link (a TCP proxy in this process) to each agent and service, which can be cut.

Network namespaces need root, so the proxies do the cuts: each agent announces the address of its link to the
other sites instead of its own. A cut breaks open connections and refuses new ones, in both directions. The proxy
finds the calling site by the process that holds the other end of the connection (/proc), so that any pair of sites
can be cut. Users connect to an agent directly: it answers them whatever is cut.

`NetworkControl` is the Unix socket by which the agents' web pages cut and heal: one line of JSON in, such as
{"do": "cut", "site": "site3"}, and one line out.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from cheops.api import server
from cheops.errors import CheopsError

_HOST = "127.0.0.1"
_CHUNK = 1 << 16
T = TypeVar("T")
Pids = Callable[[], Mapping[str, int]]


class UnknownSiteError(CheopsError):
    """The demo has no site of this name."""


@dataclass(frozen=True, eq=False, slots=True)
class _Connection:
    """A connection to a site; `port` is the caller's."""

    port: int
    site: str
    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def abort(self) -> None:
        for end in self.ends:
            end.transport.abort()


class Network:
    """The links to the agents, which listen at `ports`, and to `endpoints`: other servers, as name: (site, port).

    `pids` returns the process of each agent. The proxies run in a thread with its own event loop.
    """

    def __init__(
        self, ports: Mapping[str, int], pids: Pids, endpoints: Mapping[str, tuple[str, int]] | None = None
    ) -> None:
        self._ports = ports
        self._endpoints = endpoints or {}
        self._pids = pids
        self._connections: set[_Connection] = set()
        # Replaced and never changed in place: two threads use it, the caller's and that of the loop.
        self._severed: set[frozenset[str]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, _context: None)  # cut connections end in many ways
        self._thread = threading.Thread(target=self._loop.run_forever, name="demo network", daemon=True)
        self._thread.start()
        self.urls: dict[str, str] = self.wait(self._open())

    @property
    def severed(self) -> frozenset[frozenset[str]]:
        """The pairs of sites that cannot reach each other."""
        return frozenset(self._severed)

    def cut(self, *alone: str) -> None:
        """Cut these sites off from all others; without a name, every site from every other."""
        self.wait(self.sever(*alone))

    def heal(self) -> None:
        self._severed = set()

    def join(self, site: str) -> None:
        """Let a site reach all others again."""
        self._check(site)
        self._severed = {pair for pair in self._severed if site not in pair}

    def close(self) -> None:
        self.wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self, *names: str) -> None:
        if unknown := set(names) - self._ports.keys():
            raise UnknownSiteError(f"the demo has no site '{min(unknown)}'; its sites are {', '.join(self._ports)}")

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the network's loop, and wait for its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # -- in the loop -------------------------------------------------------------------------------------

    async def _open(self) -> dict[str, str]:
        urls = {}
        agents = {site: (site, port) for site, port in self._ports.items()}
        for name, (site, port) in {**agents, **self._endpoints}.items():
            server = await asyncio.start_server(self._handler(site, port), _HOST, 0)
            self._servers.append(server)
            urls[name] = f"http://{_HOST}:{server.sockets[0].getsockname()[1]}"
        return urls

    async def sever(self, *alone: str) -> None:
        """As `cut`, for code that runs in the network's loop."""
        self._check(*alone)
        pairs = {frozenset(pair) for pair in combinations(self._ports, 2)}
        self._severed = self._severed | {pair for pair in pairs if not alone or pair & set(alone)}
        for connection in list(self._connections):
            if not self._allows(connection.port, connection.site):
                connection.abort()

    async def _close(self) -> None:
        for listener in self._servers:
            listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _allows(self, port: int, site: str) -> bool:
        """Whether a connection from this port may continue. Looks the caller up only if needed: that is slow."""
        cuts = [pair for pair in self._severed if site in pair]
        if not cuts or len(cuts) == len(self._ports) - 1:
            return not cuts
        caller = _calling_site(port, self._pids())
        return caller is not None and frozenset((caller, site)) not in self._severed

    def _handler(self, site: str, to_port: int) -> Callable[..., Coroutine[Any, Any, None]]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._forward(site, to_port, reader, writer)
            writer.transport.abort()

        return handle

    async def _forward(
        self, site: str, to_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        port = writer.get_extra_info("peername")[1]
        if not self._allows(port, site):
            return
        there, to_there = await asyncio.open_connection(_HOST, to_port)
        connection = _Connection(port, site, (writer, to_there))
        self._connections.add(connection)
        try:
            if self._allows(port, site):  # a cut may have happened while connecting
                await asyncio.gather(_copy(reader, to_there), _copy(there, writer))
        finally:
            self._connections.discard(connection)
            connection.abort()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def _calling_site(port: int, pids: Mapping[str, int]) -> str | None:
    """The site whose agent holds the connection that comes from this port."""
    with contextlib.suppress(OSError):
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = row.split()  # 1: local address, 9: inode of the socket, 0 if no process holds it any more
            if int(words[1].rpartition(":")[2], 16) == port and words[9] != "0":
                socket = f"socket:[{words[9]}]"
                return next((site for site, pid in pids.items() if _has_socket(pid, socket)), None)
    return None


def _has_socket(pid: int, wanted: str) -> bool:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry) == wanted:  # noqa: PTH115 - what it links to is no path
                    return True
    return False


_MAX_LINE_BYTES = 65_536
_BACKLOG = 16
_TIMEOUT_S = 5.0


class NetworkControl:
    """Serves in the network's loop until it is closed."""

    def __init__(self, network: Network, path: Path) -> None:
        self._network = network
        network.wait(self._open(path))

    async def _open(self, path: Path) -> None:
        listening = server.listen_local(path, _BACKLOG)
        self._server = await asyncio.start_unix_server(self._answer, sock=listening, limit=_MAX_LINE_BYTES)

    def close(self) -> None:
        self._network.wait(self._close())

    async def _close(self) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                response = await self._execute(await reader.readline())
                writer.write(json.dumps(response).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # the client has left, or sent no JSON
        finally:
            writer.close()

    async def _execute(self, line: bytes) -> dict[str, Any]:
        request = json.loads(line)
        try:
            match request.get("do"):
                case "cut":
                    await self._network.sever(str(request.get("site")))
                case "join":
                    self._network.join(str(request.get("site")))
                case "look":
                    pass
                case other:
                    return {"problem": f"unknown command '{other}'"}
        except UnknownSiteError as error:
            return {"problem": str(error)}
        return {"cut": sorted(sorted(pair) for pair in self._network.severed)}
