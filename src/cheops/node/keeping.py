"""Which operations still need which files: a file goes when the last operation that names it is forgotten.

An operation is forgotten when every site has settled it and it has no effect any more, or a checkpoint holds
it; until then it may have to be replayed.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from cheops.config.replication import service_of
from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Save
from cheops.log.operation import Operation, OpId
from cheops.node.files import Files
from cheops.store.base import Store
from cheops.store.ids import resource_of

_PAGE = 200


class Keeping:
    """Counts only what it has seen: nothing is removed before everything that is kept was `learn`ed."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._hashes: dict[Key, tuple[str, ...]] = {}
        self._users: dict[str, set[Key]] = {}
        self._bodies: dict[Key, tuple[str, OpId]] = {}
        self._pinned: Counter[str] = Counter()
        self._knows_all = not files.hashes()

    @property
    def is_needed(self) -> bool:
        return not self._knows_all

    def learn(self, store: Store) -> None:
        """What the store holds. Blocks, for as long as it takes to read all operations."""
        for document in _kept(store):
            self._note(document)
        self._knows_all = True

    def committed(self, saves: Iterable[Save]) -> list[str]:
        """Follow what was saved and forgotten; gives the files that nobody needs any more."""
        loose: list[str] = []
        for save in saves:
            for key in save.forget:
                loose += self._drop(key)
            for document in save.documents:
                self._note(document)
        return [hash_ for hash_ in loose if self._is_loose(hash_)]

    @contextmanager
    def pinned(self, hashes: Iterable[str]) -> Iterator[None]:
        """Keep files that an operation is about to name."""
        hashes = tuple(hashes)
        self._pinned.update(hashes)
        try:
            yield
        finally:
            self._pinned.subtract(hashes)
            for hash_ in hashes:
                if self._is_loose(hash_):
                    self._files.forget(hash_)

    def release(self, key: Key) -> list[str]:
        """An operation does not need its files any more, though it is not forgotten; gives those that now
        nobody needs."""
        return [hash_ for hash_ in list(self._drop(key)) if self._is_loose(hash_)]

    def bodies(self) -> list[tuple[Key, str, OpId]]:
        """The operations by HTTP that need files, and their resources."""
        return [(key, resource, id_) for key, (resource, id_) in self._bodies.items()]

    def users(self, hash_: str) -> frozenset[str]:
        """The resources whose operations name a file, as far as is known."""
        return frozenset(map(resource_of, self._users.get(hash_, ())))

    def _is_loose(self, hash_: str) -> bool:
        return self._knows_all and hash_ not in self._users and self._pinned[hash_] <= 0

    def _note(self, document: Document) -> None:
        if isinstance(document, Operation) and document.payload.files:
            key = key_of(document)
            self._hashes[key] = tuple(hash_ for _, hash_ in document.payload.files)
            if service_of(document.rtype):
                self._bodies[key] = (document.resource, document.id)
            for hash_ in self._hashes[key]:
                self._users.setdefault(hash_, set()).add(key)

    def _drop(self, key: Key) -> Iterator[str]:
        self._bodies.pop(key, None)
        for hash_ in self._hashes.pop(key, ()):
            users = self._users.get(hash_, set())
            users.discard(key)
            if not users:
                self._users.pop(hash_, None)
                yield hash_


def _kept(store: Store) -> Iterator[Document]:
    since = 0
    while changes := store.changes(since, _PAGE):
        yield from store.read(change.key for change in changes).values()
        since = changes[-1].seq
    for resource in store.recovered().unsynced:  # drafts are in no feed, but they are not finished
        yield from store.load(resource)
