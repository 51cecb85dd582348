"""The network of the demo: TCP proxies ("wires") between the sites, which can be cut and healed.

Users without rights have no network namespaces, so a cut is made where the traffic passes: each agent announces
the addresses of its wires, small TCP proxies in this process, to the others. The caller is found by the process
that has the other end of the connection (/proc), so any pair of sites can be cut. A cut breaks open connections and
refuses new ones, in both directions. Users do not pass a wire: their agent answers, whatever is cut.

`WireControl` is the Unix socket by which the agents' pages cut and heal: one line of JSON in, such as
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


class WireError(CheopsError):
    """A wire could not be laid, or be cut as asked."""


@dataclass(frozen=True, eq=False, slots=True)
class _Call:
    """A connection to a site, from a port of whoever calls."""

    port: int
    site: str
    ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter]

    def hang_up(self) -> None:
        for end in self.ends:
            end.transport.abort()


class Wires:
    """The wires to these sites, whose agents listen at `ports`. `pids` says which process each agent is.
    There may be `more` by which one comes to something else of an agent: a name, and the site and port.
    """

    def __init__(self, ports: Mapping[str, int], pids: Pids, more: Mapping[str, tuple[str, int]] | None = None) -> None:
        self._ports = ports
        self._more = more or {}
        self._pids = pids
        self._calls: set[_Call] = set()
        self._severed: set[frozenset[str]] = set()
        self._servers: list[asyncio.Server] = []
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(lambda _loop, _context: None)  # calls end in many ways
        self._thread = threading.Thread(target=self._loop.run_forever, name="wires", daemon=True)
        self._thread.start()
        self.urls: dict[str, str] = self.wait(self._lay())

    @property
    def severed(self) -> frozenset[frozenset[str]]:
        """The pairs of sites that cannot reach each other."""
        return frozenset(self._severed)

    def cut(self, *alone: str) -> None:
        """Cut these sites from all others; without a name, each from each."""
        self.wait(self.sever(*alone))

    def heal(self) -> None:
        self._severed = set()

    def join(self, site: str) -> None:
        """Let a site reach all others again."""
        self._check(site)
        self._severed = {pair for pair in self._severed if site not in pair}

    def close(self) -> None:
        self.wait(self._take_up())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _check(self, *names: str) -> None:
        if unknown := set(names) - self._ports.keys():
            raise WireError(f"there is no site '{min(unknown)}' here: {', '.join(self._ports)}")

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Have something done in the loop of the wires."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    # -- in the loop -------------------------------------------------------------------------------------

    async def _lay(self) -> dict[str, str]:
        urls = {}
        agents = {site: (site, port) for site, port in self._ports.items()}
        for name, (site, port) in {**agents, **self._more}.items():
            server = await asyncio.start_server(self._answer(site, port), _HOST, 0)
            self._servers.append(server)
            urls[name] = f"http://{_HOST}:{server.sockets[0].getsockname()[1]}"
        return urls

    async def sever(self, *alone: str) -> None:
        """As `cut`, for those who are in this loop."""
        self._check(*alone)
        pairs = {frozenset(pair) for pair in combinations(self._ports, 2)}
        self._severed = self._severed | {pair for pair in pairs if not alone or pair & set(alone)}
        for call in list(self._calls):
            if not self._lets(call.port, call.site):
                call.hang_up()

    async def _take_up(self) -> None:
        for listener in self._servers:
            listener.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def _lets(self, port: int, site: str) -> bool:
        """Whether a call from this port may go on. Who calls is asked only where it matters: that is slow."""
        cuts = [pair for pair in self._severed if site in pair]
        if not cuts or len(cuts) == len(self._ports) - 1:
            return not cuts
        caller = _caller(port, self._pids())
        return caller is not None and frozenset((caller, site)) not in self._severed

    def _answer(self, site: str, to_port: int) -> Callable[..., Coroutine[Any, Any, None]]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._connect(site, to_port, reader, writer)
            writer.transport.abort()

        return answer

    async def _connect(
        self, site: str, to_port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        port = writer.get_extra_info("peername")[1]
        if not self._lets(port, site):
            return
        there, to_there = await asyncio.open_connection(_HOST, to_port)
        call = _Call(port, site, (writer, to_there))
        self._calls.add(call)
        try:
            if self._lets(port, site):  # it may have been cut meanwhile
                await asyncio.gather(_pass_on(reader, to_there), _pass_on(there, writer))
        finally:
            self._calls.discard(call)
            call.hang_up()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def _caller(port: int, pids: Mapping[str, int]) -> str | None:
    """The site whose agent has the connection that comes from this port."""
    with contextlib.suppress(OSError):
        for row in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = row.split()
            if int(words[1].rpartition(":")[2], 16) == port and words[9] != "0":
                socket = f"socket:[{words[9]}]"
                return next((site for site, pid in pids.items() if _has_open(pid, socket)), None)
    return None


def _has_open(pid: int, wanted: str) -> bool:
    with contextlib.suppress(OSError):
        for entry in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if os.readlink(entry) == wanted:  # noqa: PTH115 - what it links to is no path
                    return True
    return False


_MOST_BYTES = 65_536
_BACKLOG = 16
_PATIENCE_S = 5.0


class WireControl:
    """Serves within the loop of the wires, until they are closed."""

    def __init__(self, wires: Wires, path: Path) -> None:
        self._wires = wires
        wires.wait(self._open(path))

    async def _open(self, path: Path) -> None:
        listening = server.listen_local(path, _BACKLOG)
        self._server = await asyncio.start_unix_server(self._answer, sock=listening, limit=_MOST_BYTES)

    def close(self) -> None:
        self._wires.wait(self._close())

    async def _close(self) -> None:
        self._server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE_S):
                told = await self._told(await reader.readline())
                writer.write(json.dumps(told).encode() + b"\n")
                await writer.drain()
        except (OSError, TimeoutError, ValueError):
            pass  # whoever asked has left, or said nothing that could be answered
        finally:
            writer.close()

    async def _told(self, line: bytes) -> dict[str, Any]:
        wish = json.loads(line)
        try:
            match wish.get("do"):
                case "cut":
                    await self._wires.sever(str(wish.get("site")))
                case "join":
                    self._wires.join(str(wish.get("site")))
                case "look":
                    pass
                case other:
                    return {"problem": f"nobody knows how to '{other}'"}
        except WireError as error:
            return {"problem": str(error)}
        return {"cut": sorted(sorted(pair) for pair in self._wires.severed)}
