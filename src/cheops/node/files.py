"""Files that came with operations, kept once each, by content.

A file's name on disk is the SHA-256 of what is in it, so it is there whole or not at all: it is written to a
temporary name and renamed. What arrives in pieces from a peer grows under `<hash>.part`, and goes on
there after a break.
"""

import hashlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from cheops.errors import CheopsError, ClientError

_HASH = re.compile(r"[0-9a-f]{64}")
_CHUNK = 1024 * 1024
_log = logging.getLogger(__name__)


class FileError(CheopsError):
    """A file cannot be kept, or is not what its hash says."""


class NoSuchFileError(ClientError):
    status = 404


class Files:
    """The files of one site. Methods block, for as long as a piece takes to write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for leftover in folder.glob(".new-*"):  # of uploads that a crash cut short
                leftover.unlink()
        except OSError as error:
            raise FileError(f"files cannot be kept in {folder}: {error.strerror}") from error

    def path(self, hash_: str) -> Path:
        if not _HASH.fullmatch(hash_):
            raise NoSuchFileError(f"'{hash_[:80]}' is not the hash of a file: 64 hexadecimal digits")
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

    def begin(self) -> "Writing":
        """A file that comes bit by bit from outside, and whose hash is known at its end."""
        return Writing(self._folder, self._keep)

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
            raise FileError(f"what came as the file {hash_[:12]}… is not that file; it is fetched again")
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


class Writing:
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
            raise FileError(f"the file cannot be kept in {self._folder}: {error.strerror}") from error
