"""A site's shared documents as a database of CouchDB: what the server serves and the replicator reads from.

Everything that the store does blocks, so it runs in the executor that the agent gives (one thread will do).
It is read in pages, small in number and in bytes, so that writers never wait long behind a reader, and memory
does not grow with what is asked for. What comes in goes to the engine through `accept`, and is durable when
that returns.
"""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Any, ParamSpec, TypeVar

from cheops.engine.documents import Document, Key
from cheops.store import codec
from cheops.store.base import Change, Store
from cheops.sync.couch_document import Found, document_from, found, shared_key
from cheops.sync.couch_errors import NotFoundError, RefusedError
from cheops.sync.couch_limits import Limits
from cheops.sync.couch_names import ALL, Places, name_for, site_of
from cheops.sync.couch_notes import read_note, write_note
from cheops.sync.couch_pulse import Pulse
from cheops.text import printable, shortened

# Gives those that are refused, and why.
Accept = Callable[[Sequence[Document]], Awaitable[Mapping[Key, str] | None]]
P = ParamSpec("P")
T = TypeVar("T")
_AT_ONCE = 20  # documents read at a time: they can have megabytes


@dataclass(frozen=True, slots=True)
class Page:
    """A stretch of the feed: documents with their numbers, and up to where it counts as read."""

    rows: tuple[tuple[int, Found], ...]
    reached: int
    is_last: bool  # nothing was behind it


@dataclass(frozen=True, slots=True)
class Taken:
    """What became of documents that came in."""

    new: int
    refused: tuple[RefusedError, ...]


class Database:
    """What involves one site, or with no site everything."""

    def __init__(self, databases: "Databases", name: str, site: str | None) -> None:
        self.name = name
        self.pulse = databases.pulse
        self.places = databases.places
        self.limits = databases.limits
        self._all = databases
        self._site = site

    async def last_seq(self) -> int:
        return await self._all.call(self._all.store.last_seq)

    async def page(self, since: int, limit: int) -> Page:
        """The next documents, at most so many, and fewer when they are large."""
        return await self._all.call(
            _read_page, self._all.store, since, limit, self._site, self.limits.page_bytes
        )

    async def find(self, ids: Iterable[str]) -> dict[str, Found]:
        """Those of these documents that are here. One that was forgotten is as one that never was."""
        return await self._all.call(_read_found, self._all.store, tuple(ids))

    async def revisions(self, ids: Iterable[str]) -> dict[str, str]:
        """The revisions of those of these documents that are here."""
        wanted, revs = tuple(ids), {}
        for start in range(0, len(wanted), _AT_ONCE):
            here = await self.find(wanted[start : start + _AT_ONCE])
            revs.update({id_: one.rev for id_, one in here.items()})
        return revs

    async def take(self, raws: Sequence[object]) -> Taken:
        """Check documents that came in, each by itself, and give what is new to the engine."""
        documents, refused = await _checked(raws, self.limits.page)
        here = await self.revisions(documents)
        new = []
        for id_, (document, seen) in documents.items():
            if id_ not in here:
                new.append(document)
            elif here[id_] != seen.rev:
                refused.append(RefusedError(id_, seen.rev, "another content is kept here under this id"))
        not_taken = (await self._all.accept(new) or {}) if new else {}
        for key, why in not_taken.items():
            id_ = codec.id_of(key)
            refused.append(RefusedError(id_, documents[id_][1].rev, why))
        return Taken(len(new) - len(not_taken), tuple(refused))

    async def note(self, id_: str) -> dict[str, Any] | None:
        return await self._all.call(read_note, self._all.store, self.name, id_)

    async def put_note(self, id_: str, content: dict[str, Any]) -> str:
        """Keep a note of a replicator; gives its revision."""
        return await self._all.call(self._all.write_note, self.name, id_, content)


class Databases:
    """The databases of one site. Belongs to one event loop."""

    def __init__(
        self,
        store: Store,
        executor: Executor,
        accept: Accept,
        limits: Limits | None = None,
        knows_site: Callable[[str], bool] = lambda _site: True,
    ) -> None:
        self.store = store
        self.accept = accept
        self.limits = limits or Limits()
        self.places = Places(store.incarnation)
        self.pulse = Pulse()
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
        raise NotFoundError(
            f"no database '{printable(shortened(name))}'; there are {ALL}, and for each site one such as "
            f"{name_for('site1')} ({name_for('DC 1')} for 'DC 1')"
        )

    def committed(self, last_seq: int) -> None:
        """To be called after each commit, with what it gave: wakes those who wait for changes."""
        self.pulse.beat(last_seq)

    def close(self) -> None:
        """End every wait, so that the server can stop."""
        self.pulse.close()

    def write_note(self, database: str, id_: str, content: dict[str, Any]) -> str:
        with self._note_lock:
            return write_note(self.store, database, id_, content, self.limits.notes)

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Let the store's thread do something that blocks."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, partial(function, *args, **kwargs))


def _read_page(store: Store, since: int, limit: int, site: str | None, most_bytes: int) -> Page:
    last = store.last_seq()  # before the feed is read: what is committed in between is not passed over
    changes = store.changes(since, limit, site)
    rows: list[tuple[int, Found]] = []
    size = 0
    for seq, one in _documents(store, changes):
        rows.append((seq, one))
        size += len(one.raw)
        if size > most_bytes:
            return Page(tuple(rows), seq, is_last=False)
    if len(changes) == limit:
        return Page(tuple(rows), changes[-1].seq, is_last=False)
    return Page(tuple(rows), max(since, last, *(change.seq for change in changes)), is_last=True)


def _documents(store: Store, changes: Sequence[Change]) -> Iterator[tuple[int, Found]]:
    """What is at these places, unless it was forgotten meanwhile."""
    for start in range(0, len(changes), _AT_ONCE):
        some = changes[start : start + _AT_ONCE]
        documents = store.read(change.key for change in some)
        for change in some:
            if change.key in documents:
                yield change.seq, found(documents[change.key])


def _read_found(store: Store, ids: Sequence[str]) -> dict[str, Found]:
    keys = (shared_key(id_) for id_ in ids)
    documents = store.read(key for key in keys if key is not None)
    there = (found(document) for document in documents.values() if codec.is_shared(document))
    return {one.id: one for one in there}


async def _checked(
    raws: Sequence[object], pace: int
) -> tuple[dict[str, tuple[Document, Found]], list[RefusedError]]:
    documents: dict[str, tuple[Document, Found]] = {}
    refused = []
    for count, raw in enumerate(raws, start=1):
        try:
            document, seen = document_from(raw)
        except RefusedError as error:
            refused.append(error)
        else:
            documents[seen.id] = document, seen
        if count % pace == 0:
            await asyncio.sleep(0)  # others on this loop must not wait for all of them
    return documents, refused
