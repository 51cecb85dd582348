"""Room on the disk for files that are being received: reserved before the first byte, so that several files that come
at once cannot fill the disk together."""

import os
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

from cheops.errors import CheopsError

_MIB = 1024 * 1024


class DiskFullError(CheopsError):
    """The disk, or what this site may use of it, is full."""

    status = 507
    definite = False
    reason = "disk full"


class DiskRoom:
    """The free space on the disk of a folder, less what is reserved and what is kept free. Safe for several threads."""

    def __init__(self, folder: Path, kept_bytes: int) -> None:
        """`kept_bytes`: what clients must leave free (clients.free_size)."""
        self._folder = folder
        self._kept_bytes = kept_bytes
        self._reserved_bytes = 0
        self._lock = Lock()

    def problem(self) -> str | None:
        """Why a client can store nothing now; None if it can."""
        with self._lock:
            return self._shortage(0, self._kept_bytes)

    def check(self, size: int) -> None:
        """Raises DiskFullError if a file of a client of this size does not fit now."""
        with self._lock:
            problem = self._shortage(size, self._kept_bytes)
        if problem:
            raise DiskFullError(problem)

    def reserve(self, size: int, *, of_peer: bool = False) -> "Reservation":
        """Room for a file of this size, which may grow; raises DiskFullError.

        Files of other sites leave twice as much free as clients must: otherwise another site could keep the clients of
        this one from working.
        """
        reservation = Reservation(self, 2 * self._kept_bytes if of_peer else self._kept_bytes)
        reservation.extend(size)
        return reservation

    def _take(self, size: int, kept_bytes: int) -> None:
        with self._lock:
            if size > 0 and (problem := self._shortage(size, kept_bytes)):
                raise DiskFullError(problem)
            self._reserved_bytes += size

    def _shortage(self, size: int, kept_bytes: int) -> str | None:
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return None  # whatever writes there reports what is wrong
        free = disk.f_bavail * disk.f_frsize
        if free - self._reserved_bytes - size >= kept_bytes:
            return None
        reserved = f", {self._reserved_bytes // _MIB} of them for files that are being received" * bool(
            self._reserved_bytes
        )
        wanted = f"a file of {size / _MIB:.1f} MiB does not fit: " if size else ""
        kept = (
            "twice clients.free_size, which files of other sites leave free"
            if kept_bytes != self._kept_bytes
            else ("what clients.free_size keeps")
        )
        return (
            f"{wanted}only {free // _MIB} MiB are free on the disk of {self._folder}{reserved}, and {kept} is "
            f"{kept_bytes // _MIB} MiB: free some space"
        )


class Reservation:
    """Room for one file. A context manager: at its end what was not written is free again."""

    def __init__(self, room: DiskRoom, kept_bytes: int) -> None:
        self._room = room
        self._kept_bytes = kept_bytes
        self._left = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def extend(self, size: int) -> None:
        """Reserve more; raises DiskFullError."""
        self._room._take(size, self._kept_bytes)  # noqa: SLF001 - the two are one
        self._left += size

    def use(self, size: int) -> None:
        """So many bytes are about to be written, and count as used by themselves then. Raises DiskFullError if they are
        more than were reserved, and there is no room for the rest."""
        if size > self._left:
            self.extend(size - self._left)
        self._room._take(-size, self._kept_bytes)  # noqa: SLF001 - as above
        self._left -= size

    def release(self) -> None:
        self._room._take(-self._left, self._kept_bytes)  # noqa: SLF001 - as above
        self._left = 0
