"""Files that an operation names and this site lacks are fetched from peers, in pieces, also after a break."""

import asyncio
import logging
from collections.abc import Iterable

import aiohttp

from cheops.errors import CheopsError
from cheops.node.files import Files
from cheops.sync.asking import Asking

PATH = "peer/files"  # below the address of an agent
_PIECE = 1024 * 1024
_PAUSE_S, _PAUSE_MOST_S = 0.2, 10.0
_NOTED = 1_000
_log = logging.getLogger(__name__)


class Fetching:
    """One task per file that is missing."""

    def __init__(self, files: Files, asking: Asking, own: str) -> None:
        """`own` is the name of this site, of which nothing is fetched."""
        self._files = files
        self._asking = asking
        self._own = own
        self._nowhere: dict[str, frozenset[str]] = {}  # files that were not at any of these sites
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sites: dict[str, dict[str, None]] = {}  # who may have them

    def want(self, hash_: str, sites: Iterable[str]) -> None:
        """Have a file here, from any of these sites."""
        if self._files.has(hash_):
            return
        self._sites.setdefault(hash_, {}).update(dict.fromkeys(sites))
        self._nowhere.pop(hash_, None)
        if hash_ not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._fetch(hash_))
            self._tasks[hash_] = task
            task.add_done_callback(lambda _task: self._done(hash_))

    def is_nowhere(self, hash_: str, sites: Iterable[str]) -> bool:
        """Whether all of these said, when they were last asked, that they do not have a file."""
        return hash_ in self._nowhere and self._nowhere[hash_].issuperset(sites)

    def _done(self, hash_: str) -> None:
        self._tasks.pop(hash_, None)
        self._sites.pop(hash_, None)

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _fetch(self, hash_: str) -> None:
        pause_s = _PAUSE_S
        while True:
            asked = tuple(self._sites[hash_])
            lacking = [site for site in asked if await self._is_lacking(site, hash_)]
            if self._files.has(hash_):
                return
            if len(lacking) == len(asked) == len(self._sites[hash_]):
                self._note_nowhere(hash_, frozenset(asked))
                return
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MOST_S)

    async def _is_lacking(self, site: str, hash_: str) -> bool:
        """Fetch a file from a site, unless it is here; whether that site says that it does not have it."""
        if self._files.has(hash_) or site == self._own or self._asking.address_of(site) is None:
            return False
        try:
            await self._fetch_from(site, hash_)
        except aiohttp.ClientResponseError as error:
            _log.info("the file %s… was not fetched from %s: %s", hash_[:12], site, error)
            return error.status == 404
        except (aiohttp.ClientError, TimeoutError, OSError, CheopsError) as error:
            _log.info("the file %s… was not fetched from %s: %s", hash_[:12], site, error)
        return False

    def _note_nowhere(self, hash_: str, sites: frozenset[str]) -> None:
        self._nowhere[hash_] = sites
        while len(self._nowhere) > _NOTED:
            del self._nowhere[next(iter(self._nowhere))]

    async def _fetch_from(self, site: str, hash_: str) -> None:
        begun = self._files.received(hash_)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=30)
        headers = {"Range": f"bytes={begun}-"} if begun else {}
        path = f"/{PATH}/{hash_}"
        async with self._asking.request(site, "GET", path, headers=headers, timeout=timeout) as answer:
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
