"""Files that operations name, fetched from the sites that may have them.

An operation names each file with its hash and its size, and its origin signs both. So this site knows what it will get
before it asks, and the site that sends a file is trusted with nothing: room for exactly that size is reserved first,
not one byte more is read, and the content must have that hash. Until then there is only a partial file, which goes when
the search ends in any other way.

A site that sends too much, or something else, is not asked for that file again. One that sends very slowly loses its
turn to the next site, which continues where it stopped. If the pieces of several sites have the wrong hash together,
nobody knows whose was wrong: then each site must send the whole file alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Protocol

from msgspec import Struct, field

from cheops.backoff import Backoff
from cheops.bounded import BoundedMap
from cheops.errors import CheopsError, Fault
from cheops.log.operation import FileRef
from cheops.peers.frames import Opening
from cheops.peers.requests import RequestKind
from cheops.peers.streams import ChannelError, Response
from cheops.security.refusals import RefusalLog
from cheops.store.files import FileStore
from cheops.store.room import DiskFullError, Reservation

WRONG_FILE = "wrong file"
_PIECE = 256 * 1024  # written at a time
_READ_S = 30.0  # without a byte. The whole transfer may take hours on a thin link
_PAUSE_S, _PAUSE_MOST_S = 0.2, 10.0
_MOST_REMEMBERED = 1_000  # files that no site had, and files that a site sent wrong
_MOST_FROM_ONE = 4  # transfers at a time from one site: a slow one must not hold up what others send
_TURN_S = 60.0  # so long one site sends, if others may have the file too; then twice as long, …
_MOST_DOUBLINGS = 12  # of a turn: to three days
_log = logging.getLogger(__name__)


class WrongFileError(CheopsError):
    """A site sent something else than the file that it was asked for."""

    fault = Fault.PEER


class _Search(Struct):
    """The search for one file."""

    file: FileRef
    sites: dict[str, None] = field(default_factory=dict)  # that may have it
    senders: set[str] = field(default_factory=set)  # of the pieces that are here
    is_whole: bool = False  # no pieces of several sites
    rounds: int = 0  # how often all sites were asked


class Channels(Protocol):
    """The channels of this site; see channel_pool.py."""

    def can_reach(self, site: str) -> bool: ...

    def open(self, site: str, opening: Opening) -> AbstractAsyncContextManager[Response]: ...


class FileFetcher:
    """One task per missing file. Belongs to one event loop.

    Once every site has responded that it does not have a file, the search ends until the file is wanted again: sites
    delete a file when no operation needs it any more.
    """

    def __init__(  # noqa: PLR0913 - what it stores, where it asks, and what limits it
        self,
        files: FileStore,
        channels: Channels,
        refusal_log: RefusalLog,
        is_needed: Callable[[str], bool],
        is_forgotten: Callable[[str], bool],
        *,
        own: str,
        most_bytes: int,
        turn_s: float = _TURN_S,
    ) -> None:
        """`is_needed`: whether an operation names a file. `is_forgotten`: whether a site was removed from the mesh.
        `own` is the name of this site."""
        self._files = files
        self._channels = channels
        self._refusal_log = refusal_log
        self._is_needed = is_needed
        self._is_forgotten = is_forgotten
        self._own = own
        self._most_bytes = most_bytes
        self._turn_s = turn_s
        self._nowhere: BoundedMap[str, frozenset[str]] = BoundedMap(_MOST_REMEMBERED)  # sites without a file
        self._wrong: BoundedMap[FileRef, frozenset[str]] = BoundedMap(_MOST_REMEMBERED)  # sites that sent it wrong
        self._tasks: dict[FileRef, asyncio.Task[None]] = {}
        self._searches: dict[FileRef, _Search] = {}
        self._slots: BoundedMap[str, asyncio.Semaphore] = BoundedMap(_MOST_REMEMBERED)

    def want(self, file: FileRef, sites: Iterable[str]) -> None:
        """Fetch a file, from any of these sites, unless it is here."""
        if self._files.has(file.hash):
            return
        if file.size > self._most_bytes:
            # The engine refuses such an operation; this is for one that was accepted under another configuration.
            _log.warning("%s is not fetched: it is larger than limits.file_size (%d)", _name(file), self._most_bytes)
            return
        key = _key(file)
        self._nowhere.pop(file.hash, None)
        # A task that has ended is still there until the event loop calls `_done`.
        if key not in self._tasks or self._tasks[key].done():
            self._searches[key] = _Search(key)
            self._tasks[key] = asyncio.get_running_loop().create_task(self._fetch(self._searches[key]))
            self._tasks[key].add_done_callback(lambda task: self._done(key, task))
        self._searches[key].sites.update(dict.fromkeys(site for site in sites if site != self._own))

    def is_nowhere(self, hash_: str, sites: Iterable[str]) -> bool:
        """Whether none of these sites had a file when they were last asked."""
        return hash_ in self._nowhere and self._nowhere[hash_].issuperset(sites)

    def close(self) -> None:
        for task in list(self._tasks.values()):
            task.cancel()

    def _done(self, key: FileRef, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is not task:
            return  # another search has begun
        del self._tasks[key], self._searches[key]
        self._files.discard(key)
        if not task.cancelled() and (error := task.exception()):
            _log.error("the search for %s failed", _name(key), exc_info=error)

    async def _fetch(self, search: _Search) -> None:
        backoff = Backoff(_PAUSE_S, _PAUSE_MOST_S)
        while self._is_needed(search.file.hash):
            # Those that have nothing to send at the moment come first.
            sites = sorted(search.sites, key=lambda site: self._slot(site).locked())
            missing = [site for site in sites if await self._is_missing_at(site, search)]
            if self._files.has(search.file.hash):
                return
            # Sites may have been added while these were asked; then the search is not over.
            if len(missing) == len(sites) == len(search.sites):
                self._nowhere[search.file.hash] = frozenset(sites)
                return
            search.rounds = min(search.rounds + 1, _MOST_DOUBLINGS)
            await asyncio.sleep(backoff.next_s())

    async def _is_missing_at(self, site: str, search: _Search) -> bool:
        """Fetch a file from a site, unless it is here by now. Returns whether that site does not have it."""
        file = search.file
        if self._files.has(file.hash):
            return False
        if site in self._wrong.get(file, ()) or self._is_forgotten(site):
            return True
        if not self._channels.can_reach(site):
            return False
        turn_s = self._turn_s * 2**search.rounds if len(search.sites) > 1 else None
        try:
            async with asyncio.timeout(turn_s), self._slot(site):
                return not await self._fetch_from(site, search)
        except WrongFileError as error:
            self._files.discard(file)
            search.senders.clear()
            self._wrong[file] = self._wrong.get(file, frozenset()) | {site}
            self._refusal_log.document(WRONG_FILE, site, _name(file), detail=str(error))
            return True
        except DiskFullError as error:
            _log.warning("%s is not fetched now: %s", _name(file), error)
        except OSError as error:
            why = str(error) or type(error).__name__
            _log.info("%s was not fetched from %s: %s", _name(file), site, why)
        return False

    def _slot(self, site: str) -> asyncio.Semaphore:
        return self._slots.setdefault(site, asyncio.Semaphore(_MOST_FROM_ONE))

    async def _fetch_from(self, site: str, search: _Search) -> bool:
        """Returns whether the site has the file. Raises WrongFileError if it sends another."""
        file = search.file
        if search.is_whole and search.senders != {site}:
            self._files.discard(file)
            search.senders.clear()
        begun = self._files.received(file)
        if begun < file.size or not file.size:
            with self._files.reserve(file) as room:
                if not await self._receive(site, search, begun, room):
                    return False
        if await asyncio.to_thread(self._files.finish, file):
            return True
        if search.senders == {site}:
            raise WrongFileError("the content that it sent has another hash")
        _log.warning("%s came in pieces from several sites, and has another hash: it is fetched again", _name(file))
        search.senders.clear()
        search.is_whole = True
        return True

    async def _receive(self, site: str, search: _Search, begun: int, room: Reservation) -> bool:
        """Receive the rest of a file; returns whether the site has it."""
        file = search.file
        opening = Opening(RequestKind.FILE, file.hash.encode(), offset=begun)
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(_READ_S):
                response = await stack.enter_async_context(self._channels.open(site, opening))
            if response.status in (404, 416):  # 416 Range Not Satisfiable: its file is smaller
                return False
            if response.status != 200:
                raise ChannelError(f"it responded with {response.status}")
            if response.answer.size != file.size:
                # It has a file with this hash, and the operation names a wrong size; or it has none.
                _log.info("%s has %s bytes at %s", _name(file), response.answer.size, site)
                return False
            at = begun
            search.senders = {site} if at == 0 else search.senders | {site}
            await asyncio.to_thread(self._files.append, file, at, b"")  # a file may be empty
            async for piece in response.pieces(_PIECE, _READ_S):
                if self._is_forgotten(site):  # meanwhile; it could send slowly for days
                    return False
                if at + len(piece) > file.size:
                    raise WrongFileError(f"it sent more than the {file.size:,} bytes that the operation names")
                room.use(len(piece))
                await asyncio.to_thread(self._files.append, file, at, piece)
                at += len(piece)
        if at < file.size:
            raise ChannelError(f"it ended after {at:,} of {file.size:,} bytes")
        return True


def _key(file: FileRef) -> FileRef:
    """The same content may have several names."""
    return file._replace(name="")


def _name(file: FileRef) -> str:
    return f"the file {file.hash[:12]}…"
