"""What HAProxy is told while it runs, through the socket of its master, which hands it to its workers.

There may be several workers: after a reload the old one goes on with the connections that it has. What is
withdrawn is withdrawn at all of them.
"""

import asyncio
import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from cheops.errors import CheopsError
from cheops.gateway.fast.rendering import MASTER

_ANSWER_S = 10.0
_MOST_ANSWER = 64 * 1024 * 1024
_PART = 256 * 1024
_PIECE = 12 * 1024  # of a map in one command: HAProxy takes what fits into a buffer


class RuntimeSocketError(CheopsError):
    """HAProxy does not answer, or did not do what it was told."""

    definite = False


@dataclass(frozen=True, slots=True)
class Worker:
    pid: int
    is_old: bool  # it takes no new connections


class Runtime:
    """Belongs to one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    async def workers(self) -> list[Worker]:
        """The new one first."""
        found, is_old = [], False
        for line in (await self.told("show proc")).splitlines():
            is_old = is_old or line.startswith("# old workers")
            words = line.split()
            if len(words) > 1 and words[1] == "worker":
                found.append(Worker(int(words[0]), is_old))
        return found

    async def told(self, command: str) -> str:
        """What the master answers to a command. Raises RuntimeSocketError."""
        folder = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(f"/proc/self/fd/{folder}/{MASTER}")
                try:
                    writer.write(f"{command}\n".encode())
                    writer.write_eof()
                    return (await _whole(reader)).decode("utf-8", "replace")
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            raise RuntimeSocketError(f"HAProxy does not answer: {error or 'no answer in time'}") from None
        finally:
            os.close(folder)

    async def at(self, worker: Worker, command: str) -> str:
        return await self.told(f"@!{worker.pid} {command}")

    async def everywhere(self, command: str, *, silent: bool = True) -> list[str]:
        """At all workers; with `silent` an answer is a complaint."""
        answers = []
        for worker in await self.workers():
            answer = (await self.at(worker, command)).strip()
            if silent and answer and not worker.is_old:
                raise RuntimeSocketError(f"HAProxy says to '{command[:60]}': {answer[:200]}")
            answers.append(answer)
        return answers

    # -- maps --------------------------------------------------------------------------------------------

    async def replace_map(self, name: str, entries: Iterable[tuple[str, str]]) -> None:
        """The whole of a map, at once for those who look it up."""
        pieces = list(_pieces(entries))
        for worker in await self.workers():
            answer = await self.at(worker, f"prepare map {name}")
            version = answer.strip().rpartition(" ")[2]
            if not version.isdigit():
                if worker.is_old:
                    continue  # it has gone meanwhile
                raise RuntimeSocketError(f"HAProxy does not take a new {name}: {answer.strip()[:200]}")
            for piece in pieces:
                await self._said(worker, f"add map @{version} {name} <<\n{piece}")
            await self._said(worker, f"commit map @{version} {name}")

    async def change_map(self, name: str, deleted: Iterable[str], added: Iterable[tuple[str, str]]) -> None:
        """Some entries of a map."""
        deleted, pieces = list(deleted), list(_pieces(added))
        for worker in await self.workers():
            commands = (f"@!{worker.pid} del map {name} {key};" for key in deleted)
            for several in _together(commands):  # one that is not there may be gone
                await self.told(several)
            for piece in pieces:
                await self._said(worker, f"add map {name} <<\n{piece}")

    async def _said(self, worker: Worker, command: str) -> None:
        answer = (await self.at(worker, command)).strip()
        if answer and not worker.is_old:
            raise RuntimeSocketError(f"HAProxy says to '{command[:60]}': {answer[:200]}")

    async def under_way(self) -> int:
        """How many requests there are just now, at all workers."""
        rows = [row for worker in await self.workers() for row in await self.statistics(worker)]
        return sum(int(row.get("h1_open_streams") or 0) for row in rows if row.get("svname") == "FRONTEND")

    async def at_servers(self, backends: Collection[str]) -> int:
        """How many requests these backends have at their first server, at all workers."""
        rows = [row for worker in await self.workers() for row in await self.statistics(worker)]
        return sum(
            int(row.get("scur") or 0)
            for row in rows
            if row.get("pxname") in backends and row.get("svname") == "first"
        )

    # -- counters ----------------------------------------------------------------------------------------

    async def statistics(self, worker: Worker) -> list[dict[str, str]]:
        """One row per frontend, backend and server."""
        lines = (await self.at(worker, "show stat")).splitlines()
        if not lines or not lines[0].startswith("# "):
            return []
        names = lines[0][2:].split(",")
        return [dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line]


async def _whole(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the other side closes. One `read` gives what is there just now."""
    parts, size = [], 0
    while part := await reader.read(_PART):
        parts.append(part)
        size += len(part)
        if size > _MOST_ANSWER:
            raise RuntimeSocketError(f"HAProxy answers with more than {_MOST_ANSWER:,} bytes")
    return b"".join(parts)


def _pieces(entries: Iterable[tuple[str, str]]) -> Iterable[str]:
    """Lines of a map, so many at a time as fit into a command."""
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
