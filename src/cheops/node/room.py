"""Whether there is room for more: what clients send is refused before it fills the disk.

What other sites send is still taken, or the sites would differ, and what is refused here is told to whoever
asks. So the last of the disk is left for them, for the audit log, and for deleting.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from cheops.errors import CheopsError

_LOOK_S = 1.0
_MIB = 1024 * 1024


class NoRoomError(CheopsError):
    """The disk, or what this site may use of it, is full."""

    status = 507
    definite = False


class Room:
    """`store` is the file of the store, beside which SQLite has others of its own."""

    def __init__(
        self,
        store: Path,
        store_bytes: int,
        free_bytes: int,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._store_bytes = store_bytes
        self._free_bytes = free_bytes
        self._now_s = now_s
        self._looked_s = -_LOOK_S
        self._lacking: str | None = None

    def check(self) -> None:
        """Raises NoRoomError. Cheap: it looks once a second."""
        if lacking := self.lacking():
            raise NoRoomError(lacking)

    def lacking(self) -> str | None:
        """What is wrong, and what to do about it."""
        now_s = self._now_s()
        if now_s - self._looked_s >= _LOOK_S:
            self._looked_s, self._lacking = now_s, self._look()
        return self._lacking

    def _look(self) -> str | None:
        try:
            disk = os.statvfs(self._store.parent)
            used = sum(_size(self._store.with_name(self._store.name + end)) for end in ("", "-wal"))
        except OSError:
            return None  # the store itself says what is wrong there
        free = disk.f_bavail * disk.f_frsize
        if free < self._free_bytes:
            return (
                f"only {free // _MIB} MiB are free on the disk of {self._store.parent}, and "
                f"clients.free_size keeps {self._free_bytes // _MIB} MiB: make room"
            )
        if used > self._store_bytes:
            return (
                f"{self._store} has {used // _MIB} MiB, more than clients.store_size allows "
                f"({self._store_bytes // _MIB} MiB): delete resources, or allow more"
            )
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
