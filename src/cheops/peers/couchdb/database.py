"""A site's shared documents as a CouchDB database: what the server serves and the replicator reads from.

The database `cheops` holds everything that sites share, `cheops-for-<site>` what involves one site. CouchDB
allows only small letters, digits and a few signs in the name of a database; any other byte of a site's name is
written as two hexadecimal digits in brackets: `cheops-for-(44)(43)(20)1` is that of `DC 1`.

The store blocks, so it runs in the agent's executor (one thread is enough). It is read in pages that are
limited in documents and in bytes: a writer never waits long behind a reader, and memory does not grow with the size of
a request. Documents that come in go to the engine through `accept`, and are durable when that returns.
"""

import asyncio
import hashlib
import re
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec

from cheops.engine.documents import Document, Key
from cheops.peers.couchdb.documents import CouchDocument, RefusedError, couch_document, parse_document, shared_key
from cheops.peers.couchdb.requests import CouchError
from cheops.store import codec
from cheops.store.interface import Change, Store
from cheops.text import printable, shortened

MIB = 1024 * 1024


class ServerLimits(msgspec.Struct, frozen=True):
    """Limits of the server."""

    body_bytes: int = 16 * MIB  # of a request, after unpacking
    documents: int = 2_000  # named in one request
    page: int = 100  # documents of the feed read at a time
    page_bytes: int = 4 * MIB  # and fewer when they are large
    long_polls: int = 256  # clients that wait for changes
    longest_wait_s: float = 60.0
    least_heartbeat_s: float = 1.0
    note_bytes: int = 65_536  # of a replicator's note (_local)
    notes: int = 1_000  # per database; the oldest is dropped, and its replication starts from 0 again


ALL = "cheops"
_PREFIX = "cheops-for-"
_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_-")
_ESCAPED = re.compile(rb"\(([0-9a-f]{2})\)")
_POSITION = re.compile(r"([0-9]{1,18})(?:-([0-9a-f]*))?")


def name_for(site: str) -> str:
    """The database of what involves a site."""
    return _PREFIX + "".join(chr(b) if b in _PLAIN else f"({b:02x})" for b in site.encode())


def site_of(name: str) -> str | None:
    """The site that a database is for; None if there is none, or the name is not spelled as we spell it."""
    if not name.startswith(_PREFIX):
        return None
    raw = name.removeprefix(_PREFIX).encode("utf-8", "replace")
    try:
        site = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw).decode()
    except UnicodeDecodeError:
        return None
    return site if site and name_for(site) == name else None


def uuid_of(incarnation: str) -> str:
    """The id of a server for its clients: PouchDB builds the names of its checkpoints with it."""
    return hashlib.sha256(f"cheops {incarnation}".encode()).hexdigest()[:32]


class FeedPositions:
    """Numbers of the feed as text, with a mark of the store's incarnation.

    A store that starts empty counts from 1 again: without the mark, a client would skip what it never read.
    """

    def __init__(self, incarnation: str) -> None:
        self.uuid = uuid_of(incarnation)
        self._mark = self.uuid[:12]

    def format(self, number: int) -> str:
        return f"{number}-{self._mark}"

    def parse(self, text: str, last: int) -> int | None:
        """The number; 0 for one of another incarnation, or beyond the end of this feed (the store was restored from
        an older copy); None for any other text. A bare number, typed by a person, is accepted."""
        match = _POSITION.fullmatch(text)
        if match is None:
            return None
        number = int(match[1])
        is_ours = match[2] is None or match[2] == self._mark
        return number if is_ours and number <= last else 0


def _name(database: str, id_: str) -> str:
    return f"couch/{database}/{id_}"


def _index_name(database: str) -> str:
    return f"couch-notes/{database}"


def read_note(store: Store, database: str, id_: str) -> dict[str, Any] | None:
    return store.note(_name(database, id_))


def write_note(store: Store, database: str, id_: str, content: dict[str, Any], most: int) -> str:
    """Gives the new revision."""
    before = store.note(_name(database, id_))
    if before is None:
        _add_to_index(store, database, id_, most)
    number = int(before["_rev"].removeprefix("0-")) + 1 if before else 1
    store.put_note(_name(database, id_), {**content, "_rev": f"0-{number}"})
    return f"0-{number}"


def _add_to_index(store: Store, database: str, id_: str, most: int) -> None:
    index = store.note(_index_name(database)) or {"ids": []}
    ids = [*(known for known in index["ids"] if known != id_), id_]
    for dropped in ids[:-most]:
        store.put_note(_name(database, dropped), None)
    store.put_note(_index_name(database), {"ids": ids[-most:]})


class FeedSignal:
    """Wakes up the tasks that wait for the feed to grow."""

    def __init__(self) -> None:
        self._last_seq = 0
        self._waiting: dict[asyncio.Future[None], int] = {}  # each until the feed is beyond a number
        self.closed = False

    def advance(self, last_seq: int) -> None:
        """The feed has reached this number."""
        self._last_seq = max(self._last_seq, last_seq)
        self._wake()

    def close(self) -> None:
        """End every wait."""
        self.closed = True
        self._wake()

    async def wait_beyond(self, seq: int, timeout_s: float | None) -> bool:
        """Wait until the feed is beyond a number; False after the timeout, or when it is closed."""
        # The feed may have grown since the client read it, and no further commit need come.
        if self.closed or self._last_seq > seq:
            return not self.closed
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = seq
        try:
            await asyncio.wait((waiter,), timeout=timeout_s)
        finally:
            del self._waiting[waiter]
        return self._last_seq > seq and not self.closed

    def _wake(self) -> None:
        for waiter, seq in self._waiting.items():
            if not waiter.done() and (self.closed or self._last_seq > seq):
                waiter.set_result(None)


# Gives the reasons for those that are refused.
Accept = Callable[[Sequence[Document]], Awaitable[Mapping[Key, str] | None]]
P = ParamSpec("P")
T = TypeVar("T")
_AT_ONCE = 20  # documents read at a time: each can have megabytes


class Page(msgspec.Struct, frozen=True):
    """A part of the feed: documents with their numbers, and up to which number it counts as read."""

    rows: tuple[tuple[int, CouchDocument], ...]
    reached: int
    is_last: bool  # the feed ended here


class TakeResult(msgspec.Struct, frozen=True):
    """The result for documents that came in."""

    new: int
    refused: tuple[RefusedError, ...]


class Database:
    """The documents that involve one site; without a site, all documents."""

    def __init__(self, databases: "Databases", name: str, site: str | None) -> None:
        self.name = name
        self.signal = databases.signal
        self.positions = databases.positions
        self.limits = databases.limits
        self._all = databases
        self._site = site

    async def last_seq(self) -> int:
        return await self._all.call(self._all.store.last_seq)

    async def page(self, since: int, limit: int) -> Page:
        """The next documents, at most so many, and fewer when they are large."""
        return await self._all.call(_read_page, self._all.store, since, limit, self._site, self.limits.page_bytes)

    async def find(self, ids: Iterable[str]) -> dict[str, CouchDocument]:
        """Those of these documents that exist here. A forgotten one is missing, not deleted."""
        return await self._all.call(_read_documents, self._all.store, tuple(ids))

    async def revisions(self, ids: Iterable[str]) -> dict[str, str]:
        """The revisions of those of these documents that exist here."""
        wanted, revs = tuple(ids), {}
        for start in range(0, len(wanted), _AT_ONCE):
            here = await self.find(wanted[start : start + _AT_ONCE])
            revs.update({id_: one.rev for id_, one in here.items()})
        return revs

    async def take(self, raws: Sequence[object]) -> TakeResult:
        """Check documents from outside, each by itself, and pass the new ones to the engine."""
        documents, refused = await _checked(raws, self.limits.page)
        here = await self.revisions(documents)
        new: list[Document] = []
        conflicting: list[Document] = []
        for id_, (document, couch) in documents.items():
            if id_ not in here:
                new.append(document)
            elif here[id_] != couch.rev:
                conflicting.append(document)
                refused.append(RefusedError(id_, couch.rev, "this id has another content here"))
        if conflicting and self._all.compare:
            await self._all.compare(conflicting)
        not_taken = (await self._all.accept(new) or {}) if new else {}
        for key, why in not_taken.items():
            id_ = codec.id_of(key)
            refused.append(RefusedError(id_, documents[id_][1].rev, why))
        return TakeResult(len(new) - len(not_taken), tuple(refused))

    async def note(self, id_: str) -> dict[str, Any] | None:
        return await self._all.call(read_note, self._all.store, self.name, id_)

    async def put_note(self, id_: str, content: dict[str, Any]) -> str:
        """Write a note of a replicator; gives its revision."""
        return await self._all.call(self._all.write_note, self.name, id_, content)


class Databases:
    """The databases of one site. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - a store, and what happens to documents
        self,
        store: Store,
        executor: Executor,
        accept: Accept,
        limits: ServerLimits | None = None,
        knows_site: Callable[[str], bool] = lambda _site: True,
        *,
        compare: Callable[[Sequence[Document]], Awaitable[None]] | None = None,
    ) -> None:
        """`compare` gets documents that have the id of another one here: two operations under one id are proof that a
        site's keys are in the wrong hands."""
        self.compare = compare
        self.store = store
        self.accept = accept
        self.limits = limits or ServerLimits()
        self.positions = FeedPositions(store.incarnation)
        self.signal = FeedSignal()
        self.long_polls = 0
        self._note_lock = threading.Lock()
        self._executor = executor
        self._knows_site = knows_site

    def named(self, name: str) -> Database:
        if name == ALL:
            return Database(self, name, None)
        site = site_of(name)
        if site is not None and self._knows_site(site):
            return Database(self, name, site)
        raise CouchError(
            f"no database '{printable(shortened(name))}'; there are {ALL}, and for each site one such as "
            f"{name_for('site1')} ({name_for('DC 1')} for 'DC 1')",
            "not_found",
        )

    def committed(self, last_seq: int) -> None:
        """Call this after each commit, with its result: it wakes the clients that wait for changes."""
        self.signal.advance(last_seq)

    def close(self) -> None:
        """End every wait, so that the server can stop."""
        self.signal.close()

    async def shared_documents(self, resource: str, ids: Sequence[str], most_bytes: int) -> list[msgspec.Raw]:
        """Those of these documents that are here and belong to a resource: the first ones, up to this size."""
        found: list[msgspec.Raw] = []
        size = 0
        for id_ in dict.fromkeys(ids):
            if (key := shared_key(id_)) is None or codec.resource_of(key) != resource:
                continue
            for one in (await self.call(_read_documents, self.store, [id_])).values():
                raw = one.as_couch()
                size += len(bytes(raw)) + 1
                if size > most_bytes:
                    return found
                found.append(raw)
        return found

    def write_note(self, database: str, id_: str, content: dict[str, Any]) -> str:
        with self._note_lock:
            return write_note(self.store, database, id_, content, self.limits.notes)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run something that blocks in the store's thread."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(function, *args, **kwargs))


def _read_page(store: Store, since: int, limit: int, site: str | None, most_bytes: int) -> Page:
    last = store.last_seq()  # before the feed is read, so that a commit in between is not skipped
    changes = store.changes(since, limit, site)
    rows: list[tuple[int, CouchDocument]] = []
    size = 0
    for seq, one in _documents(store, changes):
        rows.append((seq, one))
        size += len(one.raw)
        if size > most_bytes:
            return Page(tuple(rows), seq, is_last=False)
    if len(changes) == limit:
        return Page(tuple(rows), changes[-1].seq, is_last=False)
    return Page(tuple(rows), max(since, last, *(change.seq for change in changes)), is_last=True)


def _documents(store: Store, changes: Sequence[Change]) -> Iterator[tuple[int, CouchDocument]]:
    """The documents of these changes, without those that were forgotten in between."""
    for start in range(0, len(changes), _AT_ONCE):
        some = changes[start : start + _AT_ONCE]
        documents = store.read(change.key for change in some)
        for change in some:
            if change.key in documents:
                yield change.seq, couch_document(documents[change.key])


def _read_documents(store: Store, ids: Sequence[str]) -> dict[str, CouchDocument]:
    keys = (shared_key(id_) for id_ in ids)
    documents = store.read(key for key in keys if key is not None)
    shared = (couch_document(document) for document in documents.values() if codec.is_shared(document))
    return {one.id: one for one in shared}


async def _checked(
    raws: Sequence[object], pace: int
) -> tuple[dict[str, tuple[Document, CouchDocument]], list[RefusedError]]:
    documents: dict[str, tuple[Document, CouchDocument]] = {}
    refused = []
    for count, raw in enumerate(raws, start=1):
        try:
            document, couch = parse_document(raw)
        except RefusedError as error:
            refused.append(error)
        else:
            documents[couch.id] = document, couch
        if count % pace == 0:
            await asyncio.sleep(0)  # lets other tasks of this loop run
    return documents, refused
