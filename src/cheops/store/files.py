"""The files of operations: stored once per content, and deleted when no operation refers to them any more.

A file's name on disk is the SHA-256 of its content. It is written under a temporary name and renamed, so a file that
exists is complete. A file that arrives in pieces from a peer grows under `<hash>-<size>.part`, and an interrupted
transfer continues there; it never grows beyond the size that its operation names. After a restart transfers begin
again.

Files hold what users send, so nobody but the agent's user can read them. For every file room on the disk is reserved
before its bytes are written.

A file is deleted when the last operation that refers to it is forgotten: when every site has settled the operation and
it has no effect any more, or a checkpoint holds it. Until then it may have to be replayed, with its files.
"""

import hashlib
import logging
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Save
from cheops.errors import CheopsError, ClientError
from cheops.log.operation import FileRef, Operation, OpId
from cheops.store.codec import resource_of
from cheops.store.interface import DamagedError, Store
from cheops.store.room import DiskRoom, Reservation
from cheops.text import listed

_HASH = re.compile(r"[0-9a-f]{64}")
_CHUNK_BYTES = 1024 * 1024
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = 0o077  # what others than the owner may do
_log = logging.getLogger(__name__)


def make_private(folder: Path, mode: int = 0o700) -> None:
    """Create a folder that others cannot read, or make an existing one so, with all files in it. Raises CheopsError."""
    opened = []
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        before = stat.S_IMODE(folder.stat().st_mode)
        if before != mode:
            folder.chmod(mode)
        if before & _OTHERS & ~mode:
            opened.append(str(folder))
        for path in folder.iterdir():
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mode & _OTHERS:
                path.chmod(found.st_mode & 0o700)
                opened.append(path.name)
    except OSError as error:
        raise CheopsError(f"cannot keep others from reading {folder}: {error.strerror}") from error
    if opened:
        _log.warning("others could read %s; now only the agent's user can", listed(opened))


def _is_file(path: Path) -> bool:
    """Whether there is a file, and no link to another one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return False


class FileStore:
    """The files of one site. Methods block while they read and write the disk."""

    def __init__(self, folder: Path, room: DiskRoom) -> None:
        self.folder = folder
        self._room = room
        try:
            make_private(folder)
            for pattern in (".new-*", "*.part"):  # of uploads and transfers that a crash interrupted
                for leftover in folder.glob(pattern):
                    leftover.unlink()
        except OSError as error:
            raise CheopsError(f"cannot store files in {folder}: {error.strerror}") from error

    def path(self, hash_: str) -> Path:
        if not _HASH.fullmatch(hash_):
            raise ClientError(f"'{hash_[:80]}' is not the hash of a file: 64 hexadecimal digits", status=404)
        return self.folder / hash_

    def has(self, hash_: str) -> bool:
        return _is_file(self.path(hash_))

    def hashes(self) -> list[str]:
        return sorted(path.name for path in self.folder.iterdir() if _HASH.fullmatch(path.name) and _is_file(path))

    def put(self, chunks: Iterable[bytes]) -> str:
        """Store a file; gives its hash."""
        with self.begin() as writer:
            for chunk in chunks:
                writer.write(chunk)
            return writer.keep()

    def within(self, folder: Path) -> "FileStore":
        """A store of other files, on the same disk: together they leave as much of it free."""
        return FileStore(folder, self._room)

    def begin(self) -> "FileWriter":
        """A writer for a file that a client uploads: its hash is known only at the end."""
        return FileWriter(self.folder, self._room, self._keep)

    # -- transfers from peers ----------------------------------------------------------------------------

    def reserve(self, file: FileRef) -> Reservation:
        """Room for the rest of a file of another site; raises DiskFullError."""
        return self._room.reserve(file.size - self.received(file), of_peer=True)

    def received(self, file: FileRef) -> int:
        """How many bytes of an unfinished transfer are here."""
        try:
            return self._part(file).stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, file: FileRef, at: int, piece: bytes) -> None:
        if at + len(piece) > file.size:
            raise ValueError(f"{at + len(piece)} bytes of a file of {file.size}")
        with os.fdopen(os.open(self._part(file), os.O_WRONLY | os.O_CREAT | _PLAIN, 0o600), "wb") as part:
            part.seek(at)
            part.write(piece)

    def finish(self, file: FileRef) -> bool:
        """Store the file once all pieces are here. With a wrong hash it is discarded; returns whether it was right."""
        path, digest = self._part(file), hashlib.sha256()
        with path.open("rb") as part:
            while chunk := part.read(_CHUNK_BYTES):
                digest.update(chunk)
            os.fsync(part.fileno())
        if digest.hexdigest() != file.hash:
            path.unlink()
            return False
        self._keep(path, file.hash)
        return True

    def discard(self, file: FileRef) -> None:
        """Delete what is here of an unfinished transfer."""
        try:
            self._part(file).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot delete the rest of a transfer: %s", error)

    def forget(self, hash_: str) -> None:
        try:
            self.path(hash_).unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot delete a file that no operation needs: %s", error)

    def _part(self, file: FileRef) -> Path:
        # With its size: an operation that names a wrong size must not spoil the transfer for another one.
        return self.path(file.hash).with_name(f"{file.hash}-{file.size}.part")

    def _keep(self, temporary: Path, hash_: str) -> str:
        # The caller has synced the content. The rename is durable only after a sync of the folder.
        temporary.replace(self.folder / hash_)
        folder = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        return hash_


class FileWriter:
    """A file that is being uploaded. A context manager: without `keep`, the file is deleted at its end."""

    def __init__(self, folder: Path, room: DiskRoom, keep: Callable[[Path, str], str]) -> None:
        self._folder = folder
        self._keep = keep
        self._room = room.reserve(0)
        self.size = 0  # bytes so far
        self._digest = hashlib.sha256()
        self._temporary = folder / f".new-{os.urandom(8).hex()}"
        with self._translate_errors():
            descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o600)
            self._file = os.fdopen(descriptor, "wb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of a full disk: what was not written yet goes with the file
            self._file.close()
        self._temporary.unlink(missing_ok=True)
        self._room.release()

    def write(self, chunk: bytes) -> None:
        """Raises DiskFullError if there is no room for it."""
        self._room.use(len(chunk))
        self.size += len(chunk)
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
        self._is_complete = not store.damaged  # a document that cannot be read may name a file

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
            self._pins -= Counter(hashes)  # which keeps no zeros: the map would grow with every file
            for hash_ in hashes:
                if self._is_unused(hash_):
                    self._files.forget(hash_)

    def release(self, key: Key) -> list[str]:
        """Drop the files of an operation that is not forgotten; gives those that are not needed any more."""
        return [hash_ for hash_ in list(self._drop(key)) if self._is_unused(hash_)]

    def releasable(self) -> list[tuple[Key, str, OpId]]:
        """The operations that need their files only until all sites have run them, with their resources."""
        return [(key, resource, id_) for key, (resource, id_) in self._releasable.items()]

    def is_needed(self, hash_: str) -> bool:
        """Whether an operation names a file, or may name it."""
        return not self._is_complete or hash_ in self._users or self._pins[hash_] > 0

    def users(self, hash_: str) -> frozenset[str]:
        """The resources whose operations refer to a file."""
        return frozenset(map(resource_of, self._users.get(hash_, ())))

    def _is_unused(self, hash_: str) -> bool:
        return not self.is_needed(hash_)

    def _add(self, document: Document) -> None:
        if isinstance(document, Operation) and document.payload.files:
            key = key_of(document)
            self._hashes[key] = tuple(file.hash for file in document.payload.files)
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
        with suppress(DamagedError):
            yield from store.load(resource)
