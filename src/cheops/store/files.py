"""The files of operations: stored once per content, and deleted when no operation refers to them any more.

A file's name on disk is the SHA-256 of its content. It is written under a temporary name and renamed, so a file that
exists is complete. A file that arrives in pieces from a peer grows under `<hash>.part`, and an interrupted transfer
continues there.

A file is deleted when the last operation that refers to it is forgotten: when every site has settled the operation and
it has no effect any more, or a checkpoint holds it. Until then it may have to be replayed, with its files.
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
_CHUNK_BYTES = 1024 * 1024
_log = logging.getLogger(__name__)


class FileStore:
    """The files of one site. Methods block while they read and write the disk."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".new-*"):  # of uploads that a crash interrupted
                leftover.unlink()
        except OSError as error:
            raise CheopsError(f"cannot store files in {folder}: {error.strerror}") from error

    def path(self, hash_: str) -> Path:
        if not _HASH.fullmatch(hash_):
            raise ClientError(f"'{hash_[:80]}' is not the hash of a file: 64 hexadecimal digits", status=404)
        return self._folder / hash_

    def has(self, hash_: str) -> bool:
        return self.path(hash_).exists()

    def hashes(self) -> list[str]:
        return sorted(path.name for path in self._folder.iterdir() if _HASH.fullmatch(path.name))

    def put(self, chunks: Iterable[bytes]) -> str:
        """Store a file; gives its hash."""
        with self.begin() as writer:
            for chunk in chunks:
                writer.write(chunk)
            return writer.keep()

    def begin(self) -> "FileWriter":
        """A writer for a file that a client uploads: its hash is known only at the end."""
        return FileWriter(self._folder, self._keep)

    # -- transfers from peers ----------------------------------------------------------------------------

    def received(self, hash_: str) -> int:
        """How many bytes of an unfinished transfer are here."""
        part = self._part(hash_)
        return part.stat().st_size if part.exists() else 0

    def append(self, hash_: str, at: int, piece: bytes) -> None:
        with self._part(hash_).open("r+b" if self._part(hash_).exists() else "xb") as file:
            file.seek(at)
            file.write(piece)

    def finish(self, hash_: str) -> None:
        """Store the file once all pieces are here. With a wrong hash it is discarded, and the transfer begins again."""
        part, digest = self._part(hash_), hashlib.sha256()
        with part.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
            os.fsync(file.fileno())
        if digest.hexdigest() != hash_:
            part.unlink()
            raise CheopsError(f"the content received for file {hash_[:12]}… has another hash; it is fetched again")
        self._keep(part, hash_)

    def forget(self, hash_: str) -> None:
        try:
            self.path(hash_).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot delete a file that no operation needs: %s", error)

    def _part(self, hash_: str) -> Path:
        return self.path(hash_).with_suffix(".part")

    def _keep(self, temporary: Path, hash_: str) -> str:
        # The caller has synced the content. The rename is durable only after a sync of the folder.
        temporary.replace(self._folder / hash_)
        folder = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return hash_


class FileWriter:
    """A file that is being uploaded. A context manager: without `keep`, the file is deleted at its end."""

    def __init__(self, folder: Path, keep: Callable[[Path, str], str]) -> None:
        self._folder = folder
        self._keep = keep
        self._digest = hashlib.sha256()
        self._temporary = folder / f".new-{os.urandom(8).hex()}"
        with self._translate_errors():
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
        with self._translate_errors():
            self._file.write(chunk)

    @property
    def hash(self) -> str:
        """Of the content so far."""
        return self._digest.hexdigest()

    def keep(self) -> str:
        """Store the complete file under its hash; it is durable when this returns."""
        with self._translate_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
            return self._keep(self._temporary, self.hash)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise CheopsError(f"cannot store the file in {self._folder}: {error.strerror}") from error


_PAGE = 200  # documents read at a time: each may have megabytes


class FileReferences:
    """Which operations refer to which files. No file is deleted before `load` has seen all stored operations."""

    def __init__(self, files: FileStore, releases: Callable[[str], bool] = lambda _rtype: False) -> None:
        """`releases`: whether operations of a resource type need their files only until every site has run them."""
        self._files = files
        self._releases = releases
        self._hashes: dict[Key, tuple[str, ...]] = {}
        self._users: dict[str, set[Key]] = {}
        self._releasable: dict[Key, tuple[str, OpId]] = {}
        self._pins: Counter[str] = Counter()
        self._is_complete = not files.hashes()  # without files there is nothing to delete by mistake

    @property
    def is_complete(self) -> bool:
        """Whether all stored operations are known."""
        return self._is_complete

    def load(self, store: Store) -> None:
        """Read all operations of the store. Blocks until that is done."""
        for document in _stored_documents(store):
            self._add(document)
        self._is_complete = True

    def committed(self, saves: Iterable[Save]) -> list[str]:
        """Take note of saved and forgotten operations; gives the files that are not needed any more."""
        dropped: list[str] = []
        for save in saves:
            for key in save.forget:
                dropped += self._drop(key)
            for document in save.documents:
                self._add(document)
        # Only now: a later save of the same commit may refer to a file that an earlier one dropped.
        return [hash_ for hash_ in dropped if self._is_unused(hash_)]

    @contextmanager
    def pin(self, hashes: Iterable[str]) -> Iterator[None]:
        """Keep files while the operation that will refer to them is created."""
        hashes = tuple(hashes)
        self._pins.update(hashes)
        try:
            yield
        finally:
            self._pins.subtract(hashes)
            for hash_ in hashes:
                if self._is_unused(hash_):
                    self._files.forget(hash_)

    def release(self, key: Key) -> list[str]:
        """Drop the files of an operation that is not forgotten; gives those that are not needed any more."""
        return [hash_ for hash_ in list(self._drop(key)) if self._is_unused(hash_)]

    def releasable(self) -> list[tuple[Key, str, OpId]]:
        """The operations that need their files only until all sites have run them, with their resources."""
        return [(key, resource, id_) for key, (resource, id_) in self._releasable.items()]

    def users(self, hash_: str) -> frozenset[str]:
        """The resources whose operations refer to a file."""
        return frozenset(map(resource_of, self._users.get(hash_, ())))

    def _is_unused(self, hash_: str) -> bool:
        return self._is_complete and hash_ not in self._users and self._pins[hash_] <= 0

    def _add(self, document: Document) -> None:
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


def _stored_documents(store: Store) -> Iterator[Document]:
    since = 0
    while changes := store.changes(since, _PAGE):
        yield from store.read(change.key for change in changes).values()
        since = changes[-1].seq
    for resource in store.recovered().unsynced:  # drafts are in no feed, but they need their files
        yield from store.load(resource)
