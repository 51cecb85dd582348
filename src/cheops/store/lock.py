"""At most one process has a store open. The kernel takes the lock back, however that process ends."""

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from cheops.store.errors import StoreError


class FileLock:
    """The lock beside a file, held until `release`. The lock file stays: to remove it would be a race."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path} cannot be opened: {error.strerror} ({self.path})") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._say_who()
        except BlockingIOError:
            who = self._holder()
            os.close(self._descriptor)
            raise StoreError(
                f"{path} is in use by another process{who}; a store serves one agent: stop that one,"
                " or give this one a file of its own"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(f"{path} cannot be locked: {error.strerror} ({self.path})") from None

    def _say_who(self) -> None:
        with suppress(OSError):  # a full disk; the lock holds all the same
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)

    def _holder(self) -> str:
        number = os.pread(self._descriptor, 20, 0).strip()
        return f" (number {number.decode()})" if number.isdigit() else ""

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
