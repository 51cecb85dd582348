"""Files that an operation names and this site lacks are fetched from peers, in pieces, also after a break."""

import asyncio
import logging
from collections.abc import Callable, Iterable

import aiohttp

from cheops.errors import CheopsError
from cheops.node.files import Files

PATH = "peer/files"  # below the address of an agent
_PIECE = 1024 * 1024
_PAUSE_S, _PAUSE_MOST_S = 0.2, 10.0
_log = logging.getLogger(__name__)


class Fetching:
    """One task per file that is missing."""

    def __init__(
        self, files: Files, session: aiohttp.ClientSession, addresses: Callable[[Iterable[str]], list[str]]
    ) -> None:
        self._files = files
        self._session = session
        self._addresses = addresses
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sites: dict[str, dict[str, None]] = {}  # who may have them

    def want(self, hash_: str, sites: Iterable[str]) -> None:
        """Have a file here, from any of these sites."""
        if self._files.has(hash_):
            return
        self._sites.setdefault(hash_, {}).update(dict.fromkeys(sites))
        if hash_ not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._fetch(hash_))
            self._tasks[hash_] = task
            task.add_done_callback(lambda _task: self._done(hash_))

    def _done(self, hash_: str) -> None:
        self._tasks.pop(hash_, None)
        self._sites.pop(hash_, None)

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _fetch(self, hash_: str) -> None:
        pause_s = _PAUSE_S
        while True:
            for address in self._addresses(list(self._sites[hash_])):
                try:
                    await self._fetch_from(address, hash_)
                except (aiohttp.ClientError, TimeoutError, OSError, CheopsError) as error:
                    _log.info("the file %s… was not fetched from %s: %s", hash_[:12], address, error)
                else:
                    return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _fetch_from(self, address: str, hash_: str) -> None:
        begun = self._files.received(hash_)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=30)
        headers = {"Range": f"bytes={begun}-"} if begun else {}
        url = f"{address}/{PATH}/{hash_}"
        async with self._session.get(url, headers=headers, timeout=timeout) as answer:
            if answer.status == 416:  # all of it is here
                await asyncio.to_thread(self._files.finish, hash_)
                return
            answer.raise_for_status()
            at = begun if answer.status == 206 else 0
            await asyncio.to_thread(self._files.append, hash_, at, b"")  # a file may be empty
            async for piece in answer.content.iter_chunked(_PIECE):
                await asyncio.to_thread(self._files.append, hash_, at, piece)
                at += len(piece)
        await asyncio.to_thread(self._files.finish, hash_)
