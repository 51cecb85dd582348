"""Fetches files that operations name and this site lacks, from the sites that may have them.

A transfer that breaks continues where it stopped. Once every site has said that it does not have a file, the search
ends until the file is wanted again: sites delete a file when no operation needs it any more.
"""

import asyncio
import logging
from collections.abc import Iterable

import aiohttp

from cheops.backoff import Backoff
from cheops.bounded import BoundedMap
from cheops.errors import CheopsError
from cheops.peers.client import PeerClient
from cheops.store.files import FileStore

FILES_PATH = "peer/files"  # below the address of an agent
_PIECE = 1024 * 1024
_PAUSE_S, _PAUSE_MOST_S = 0.2, 10.0
_MOST_NOWHERE = 1_000
_log = logging.getLogger(__name__)


class FileFetcher:
    """One task per file that is missing."""

    def __init__(self, files: FileStore, client: PeerClient, own: str) -> None:
        """`own` is the name of this site."""
        self._files = files
        self._client = client
        self._own = own
        self._nowhere: BoundedMap[str, frozenset[str]] = BoundedMap(_MOST_NOWHERE)  # which sites lack a file
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._sites: dict[str, dict[str, None]] = {}  # that may have a file

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
        """Whether all of these sites lacked a file when they were last asked."""
        return hash_ in self._nowhere and self._nowhere[hash_].issuperset(sites)

    def _done(self, hash_: str) -> None:
        self._tasks.pop(hash_, None)
        self._sites.pop(hash_, None)

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    async def _fetch(self, hash_: str) -> None:
        backoff = Backoff(_PAUSE_S, _PAUSE_MOST_S)
        while True:
            asked = tuple(self._sites[hash_])
            lacking = [site for site in asked if await self._is_lacking(site, hash_)]
            if self._files.has(hash_):
                return
            # Sites may have been added while these were asked; then the search is not over.
            if len(lacking) == len(asked) == len(self._sites[hash_]):
                self._nowhere[hash_] = frozenset(asked)
                return
            await asyncio.sleep(backoff.next_s())

    async def _is_lacking(self, site: str, hash_: str) -> bool:
        """Fetch a file from a site, unless it is here by now. Returns whether that site lacks it."""
        if self._files.has(hash_) or site == self._own or self._client.address_of(site) is None:
            return False
        try:
            await self._fetch_from(site, hash_)
        except aiohttp.ClientResponseError as error:
            _log.info("the file %s… was not fetched from %s: %s", hash_[:12], site, error)
            return error.status == 404
        except (aiohttp.ClientError, TimeoutError, OSError, CheopsError) as error:
            _log.info("the file %s… was not fetched from %s: %s", hash_[:12], site, error)
        return False

    async def _fetch_from(self, site: str, hash_: str) -> None:
        begun = self._files.received(hash_)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=5, sock_read=30)
        headers = {"Range": f"bytes={begun}-"} if begun else {}
        path = f"/{FILES_PATH}/{hash_}"
        async with self._client.request(site, "GET", path, headers=headers, timeout=timeout) as response:
            if response.status == 416:  # Range Not Satisfiable: all bytes are here
                await asyncio.to_thread(self._files.finish, hash_)
                return
            response.raise_for_status()
            at = begun if response.status == 206 else 0
            await asyncio.to_thread(self._files.append, hash_, at, b"")  # a file may be empty
            async for piece in response.content.iter_chunked(_PIECE):
                await asyncio.to_thread(self._files.append, hash_, at, piece)
                at += len(piece)
        await asyncio.to_thread(self._files.finish, hash_)
