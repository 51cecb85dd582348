"""Files that came with operations: kept once each by content, counted by the operations that name them, fetched
from peers.

A file's name on disk is the SHA-256 of its content, so it is there whole or not at all: it is written to a
temporary name and renamed. A file that arrives in pieces from a peer grows under `<hash>.part`, and the transfer
continues there after a break. A file goes when the last operation that names it is forgotten: when every site has
settled it and it has no effect any more, or a checkpoint holds it; until then it may have to be replayed.
"""

import hashlib
import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Save
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import Operation, OpId
from cheops.store.codec import resource_of
from cheops.store.interface import Store

_HASH = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1024 * 1024
_log = logging.getLogger(__name__)


class FileStore:
    """The files of one site. Methods block, for as long as a piece takes to write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".new-*"):  # of uploads that a crash cut short
                leftover.unlink()
        except OSError as error:
            raise CheopsError(f"files cannot be kept in {folder}: {error.strerror}") from error

    def path(self, hash_: str) -> Path:
        if not _HASH.fullmatch(hash_):
            raise ClientError(f"'{hash_[:80]}' is not the hash of a file: 64 hexadecimal digits", status=404)
        return self._folder / hash_

    def has(self, hash_: str) -> bool:
        return self.path(hash_).exists()

    def hashes(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if _HASH.fullmatch(path.name))

    def put(self, chunks: Iterable[bytes]) -> str:
        """Keep a file; gives its hash."""
        with self.begin() as writing:
            for chunk in chunks:
                writing.write(chunk)
            return writing.keep()

    def begin(self) -> "FileWriter":
        """A file that comes bit by bit from outside, and whose hash is known at its end."""
        return FileWriter(self._folder, self._keep)

    # -- in pieces ---------------------------------------------------------------------------------------

    def received(self, hash_: str) -> int:
        """How much of a file that is not whole yet is here."""
        part = self._part(hash_)
        return part.stat().st_size if part.exists() else 0

    def append(self, hash_: str, at: int, piece: bytes) -> None:
        with self._part(hash_).open("r+b" if self._part(hash_).exists() else "xb") as file:
            file.seek(at)
            file.write(piece)

    def finish(self, hash_: str) -> None:
        """All pieces are here: keep the file, if it is what it should be, or begin again."""
        part, digest = self._part(hash_), hashlib.sha256()
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
            os.fsync(file.fileno())
        if digest.hexdigest() != hash_:
            part.unlink()
            raise CheopsError(f"what came as the file {hash_[:12]}… is not that file; it is fetched again")
        self._keep(part, hash_)

    def forget(self, hash_: str) -> None:
        try:
            self.path(hash_).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("a file that nobody needs any more stays: %s", error)

    def _part(self, hash_: str) -> Path:
        return self.path(hash_).with_suffix(".part")

    def _keep(self, temporary: Path, hash_: str) -> str:
        temporary.replace(self._folder / hash_)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return hash_


class FileWriter:
    """A file on its way in. To be used as a context: what is not kept in it leaves nothing behind."""

    def __init__(self, folder: Path, keep: Callable[[Path, str], str]) -> None:
        self._folder = folder
        self._keep = keep
        self._digest = hashlib.sha256()
        self._temporary = folder / f".new-{os.urandom(8).hex()}"
        with self._told_plainly():
            self._file = self._temporary.open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        self._temporary.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        self._digest.update(chunk)
        with self._told_plainly():
            self._file.write(chunk)

    @property
    def hash(self) -> str:
        """Of what is written by now."""
        return self._digest.hexdigest()

    def keep(self) -> str:
        """It is complete, and durable under its hash when this returns."""
        with self._told_plainly():
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._keep(self._temporary, self.hash)

    @contextmanager
    def _told_plainly(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheopsError(f"the file cannot be kept in {self._folder}: {error.strerror}") from error


_PAGE = 200


class FileReferences:
    """Counts only what it has seen: nothing is removed before everything that is kept was `learn`ed."""

    def __init__(self, files: FileStore, releases: Callable[[str], bool] = lambda _rtype: False) -> None:
        """`releases`: whether operations of a type need their files only until every site has run them."""
        self._files = files
        self._releases = releases
        self._hashes: dict[Key, tuple[str, ...]] = {}
        self._users: dict[str, set[Key]] = {}
        self._releasable: dict[Key, tuple[str, OpId]] = {}
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

    def releasable(self) -> list[tuple[Key, str, OpId]]:
        """The operations with files that may go once all sites have run them, and their resources."""
        return [(key, resource, id_) for key, (resource, id_) in self._releasable.items()]

    def users(self, hash_: str) -> frozenset[str]:
        """The resources whose operations name a file, as far as is known."""
        return frozenset(map(resource_of, self._users.get(hash_, ())))

    def _is_loose(self, hash_: str) -> bool:
        return self._knows_all and hash_ not in self._users and self._pinned[hash_] <= 0

    def _note(self, document: Document) -> None:
        if isinstance(document, Operation) and document.payload.files:
            key = key_of(document)
            self._hashes[key] = tuple(hash_ for _, hash_ in document.payload.files)
            if self._releases(document.rtype):
                self._releasable[key] = (document.resource, document.id)
            for hash_ in self._hashes[key]:
                self._users.setdefault(hash_, set()).add(key)

    def _drop(self, key: Key) -> Iterator[str]:
        self._releasable.pop(key, None)
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
