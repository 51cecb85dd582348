"""HAProxy's runtime socket, and the updates of its maps that go through it.

After a reload the old worker keeps its connections, so there may be several workers; updates go to all of them.
Updates are applied in order and in batches; after a failure the whole map is sent again.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path

from msgspec import Struct, field

from cheops.errors import CheopsError
from cheops.gateway.haproxy.configuration import MASTER

_RESPONSE_S = 10.0
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_PART = 256 * 1024
_PIECE = 12 * 1024  # bytes of a map in one command: HAProxy's buffer has 16 KiB


class RuntimeSocketError(CheopsError):
    """HAProxy does not respond, or refused a command."""

    definite = False


class Worker(Struct, frozen=True):
    """A process of HAProxy that serves connections."""

    pid: int
    is_old: bool  # replaced by a reload: it takes no new connections


class RuntimeSocket:
    """Commands to HAProxy's master and workers. Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def workers(self) -> list[Worker]:
        """The new one first."""
        workers, is_old = [], False
        for line in (await self.command("show proc")).splitlines():
            is_old = is_old or line.startswith("# old workers")
            words = line.split()
            if len(words) > 1 and words[1] == "worker":
                workers.append(Worker(int(words[0]), is_old))
        return workers

    async def command(self, command: str) -> str:
        """The master's response to a command. Raises RuntimeSocketError."""
        # The name of a Unix socket has at most 107 bytes: through its folder's descriptor, a long path fits, too.
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(_RESPONSE_S):
                reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{MASTER}")
                try:
                    writer.write(f"{command}\n".encode())
                    writer.write_eof()
                    return (await _whole(reader)).decode("utf-8", "replace")
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise RuntimeSocketError(f"HAProxy does not respond: {error or 'no response in time'}") from None
        finally:
            os.close(folder)

    async def command_worker(self, worker: Worker, command: str) -> str:
        return await self.command(f"@!{worker.pid} {command}")

    async def command_all(self, command: str, *, silent: bool = True) -> list[str]:
        """Run a command at all workers; with `silent` any response is an error."""
        responses = []
        for worker in await self.workers():
            response = (await self.command_worker(worker, command)).strip()
            if silent and response and not worker.is_old:
                raise RuntimeSocketError(f"HAProxy refuses '{command[:60]}': {response[:200]}")
            responses.append(response)
        return responses

    # -- maps --------------------------------------------------------------------------------------------

    async def replace_map(self, name: str, entries: Iterable[tuple[str, str]]) -> None:
        """Replace a whole map atomically."""
        pieces = list(_pieces(entries))
        for worker in await self.workers():
            response = await self.command_worker(worker, f"prepare map {name}")
            version = response.strip().rpartition(" ")[2]
            if not version.isdigit():
                if worker.is_old:
                    continue  # it has ended meanwhile
                raise RuntimeSocketError(f"HAProxy refuses a new {name}: {response.strip()[:200]}")
            for piece in pieces:
                await self._checked(worker, f"add map @{version} {name} <<\n{piece}")
            await self._checked(worker, f"commit map @{version} {name}")

    async def change_map(self, name: str, deleted: Iterable[str], added: Iterable[tuple[str, str]]) -> None:
        """Delete and add some entries of a map."""
        deleted, pieces = list(deleted), list(_pieces(added))
        for worker in await self.workers():
            commands = (f"@!{worker.pid} del map {name} {key};" for key in deleted)
            for several in _together(commands):  # HAProxy may not have an entry any more, so errors are ignored
                await self.command(several)
            for piece in pieces:
                await self._checked(worker, f"add map {name} <<\n{piece}")

    async def _checked(self, worker: Worker, command: str) -> None:
        response = (await self.command_worker(worker, command)).strip()
        if response and not worker.is_old:
            raise RuntimeSocketError(f"HAProxy refuses '{command[:60]}': {response[:200]}")

    async def open_requests(self) -> int:
        """The number of requests in progress, at all workers."""
        rows = [row for worker in await self.workers() for row in await self.statistics(worker)]
        return sum(int(row.get("h1_open_streams") or 0) for row in rows if row.get("svname") == "FRONTEND")

    async def requests_at(self, backends: Collection[str]) -> int:
        """The number of requests in progress at the first servers of these backends, at all workers."""
        rows = [row for worker in await self.workers() for row in await self.statistics(worker)]
        return sum(
            int(row.get("scur") or 0) for row in rows if row.get("pxname") in backends and row.get("svname") == "first"
        )

    # -- counters ----------------------------------------------------------------------------------------

    async def statistics(self, worker: Worker) -> list[dict[str, str]]:
        """One row per frontend, backend and server."""
        lines = (await self.command_worker(worker, "show stat")).splitlines()
        if not lines or not lines[0].startswith("# "):
            return []
        names = lines[0][2:].split(",")
        return [dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line]


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """Everything until the other side closes; one `read` would give a part only."""
    parts, size = [], 0
    while part := await reader.read(_PART):
        parts.append(part)
        size += len(part)
        if size > _MAX_RESPONSE_BYTES:
            raise RuntimeSocketError(f"HAProxy's response has more than {_MAX_RESPONSE_BYTES:,} bytes")
    return b"".join(parts)


def _pieces(entries: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Lines of a map, grouped so that each group fits into one command."""
    return _together(f"{key} {value}\n" for key, value in entries)


def _together(lines: Iterable[str]) -> Iterable[str]:
    piece: list[str] = []
    size = 0
    for line in lines:
        if piece and size + len(line) > _PIECE:
            yield "".join(piece)
            piece, size = [], 0
        piece.append(line)
        size += len(line)
    if piece:
        yield "".join(piece)


_FEW = 200  # above so many deletions the whole map is replaced: one transaction instead of many commands
_AGAIN_S = 0.1
_GATHER_S = 0.02  # to collect new flows into one update; a withdrawal does not wait
_log = logging.getLogger(__name__)

Entries = Callable[[], Iterable[tuple[str, str]]]


class _Pending(Struct):
    is_whole: bool = False
    deleted: set[str] = field(default_factory=set)
    added: dict[str, str] = field(default_factory=dict)


class MapUpdater:
    """Applies changes of maps in order. `entries` gives, for each map, its whole content."""

    def __init__(self, runtime: RuntimeSocket, entries: dict[str, Entries]) -> None:
        self._runtime = runtime
        self._entries = entries
        self._pending: dict[str, _Pending] = {}
        self._wake = asyncio.Event()
        self._applied = asyncio.Condition()
        self._last_change = self._last_applied = 0
        self._urgent = asyncio.Event()
        self.lock = asyncio.Lock()  # held while HAProxy is reloaded: a change must not get lost between two workers
        self.trouble = ""

    def put(self, name: str, key: str, value: str | None, *, was_there: bool, is_urgent: bool = True) -> None:
        """Set an entry, or (None) delete it. A new entry is never urgent."""
        pending = self._pending.setdefault(name, _Pending())
        if was_there or value is None:
            pending.deleted.add(key)
        pending.added.pop(key, None)
        if value is not None:
            pending.added[key] = value
        pending.is_whole = pending.is_whole or len(pending.deleted) > _FEW
        self._note_change(is_urgent=is_urgent and (value is None or was_there))

    def put_whole(self, *names: str) -> None:
        """Send these maps anew, or all of them."""
        for name in self._entries.keys() & names if names else self._entries:  # not every site has every map
            self._pending[name] = _Pending(is_whole=True)
        self._note_change(is_urgent=True)

    def _note_change(self, *, is_urgent: bool) -> None:
        self._last_change += 1
        self._wake.set()
        if is_urgent:
            self.apply_now()

    def apply_now(self) -> None:
        """Apply the pending changes without delay: something waits for them."""
        self._urgent.set()

    @property
    def last_change(self) -> int:
        """The number of the latest change."""
        return self._last_change

    def is_applied(self, change: int) -> bool:
        return self._last_applied >= change

    async def wait_applied(self, change: int | None = None) -> None:
        """Wait until all changes up to this number, or up to now, are applied."""
        wanted = self._last_change if change is None else change
        async with self._applied:
            await self._applied.wait_for(lambda: self._last_applied >= wanted)

    async def run(self) -> None:
        """Apply changes until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._urgent.is_set():
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._urgent.wait(), _GATHER_S)
            self._urgent.clear()
            async with self.lock:
                try:
                    await self.apply()
                except Exception as error:  # a withdrawn flow must not stay: send everything again
                    _log.exception("HAProxy's maps cannot be updated")
                    self.trouble = f"internal error in Cheops: {error!r}"
                    self.put_whole()
            if self.trouble:
                await asyncio.sleep(_AGAIN_S)

    async def apply(self) -> None:
        """Apply all pending changes. The lock must be held."""
        pending, self._pending, wanted = self._pending, {}, self._last_change
        try:
            for name, changes in pending.items():
                if changes.is_whole:
                    await self._runtime.replace_map(name, self._entries[name]())
                else:
                    await self._runtime.change_map(name, changes.deleted, changes.added.items())
        except RuntimeSocketError as error:
            if not self.trouble:
                _log.warning("HAProxy's maps cannot be updated: %s", error)
            self.trouble = str(error)
            for name in pending:
                self._pending[name] = _Pending(is_whole=True)
            self._wake.set()
            return
        self.trouble = ""
        async with self._applied:
            self._last_applied = max(self._last_applied, wanted)
            self._applied.notify_all()
