"""Writes the audit log of a site: `audit.log`, JSON lines, append-only, each chained to the one before.

Callers do not wait for the disk: a thread writes what has gathered, some times a second, and all of it before the
agent stops. If the disk is full, lines wait in memory, up to a limit; beyond that they are counted, and the next
line that can be written says how many are missing. Large files are renamed (`audit.log.1`, `.2`, …), and the
oldest is deleted; the chain continues in the next one.

Refusals may come as fast as a network allows. Of each sender only some are written one by one; the rest of the
same kind becomes one line with a count.
"""

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from cheops.errors import CheopsError
from cheops.security.audit_entries import START, AuditEntry, last_entry, line_of, numbered, time_text

SINGLY = 20  # refusals of one sender that are written one by one …
WINDOW_S = 10.0  # … within this time
_MOST_KINDS = 1_000  # that are counted apart


class RefusalAggregator:
    """Counts the refusals that are not written yet, by kind."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._singly: dict[str, int] = {}
        self._counted: dict[tuple[str, ...], AuditEntry] = {}

    def takes(self, entry: AuditEntry, now_s: float) -> bool:
        """Whether it is counted here, to be written later."""
        if now_s - self._since_s >= WINDOW_S:
            self._since_s = now_s
            self._singly.clear()
        told = self._singly.get(entry.source, 0)
        if told < SINGLY and (told or len(self._singly) < _MOST_KINDS):
            self._singly[entry.source] = told + 1
            return False
        key: tuple[str, ...] = (entry.source, entry.who, entry.what, entry.reason)
        if key not in self._counted and len(self._counted) >= _MOST_KINDS:
            key = ("others",)
            entry = replace(entry, source="others", who="others", what="others", reason="others", resource="")
        before = self._counted.get(key)
        self._counted[key] = replace(entry, times=(before.times if before else 0) + entry.times)
        return True

    def due(self, now_s: float, *, at_end: bool) -> list[AuditEntry]:
        """What was counted, once its time is over."""
        if not at_end and now_s - self._since_s < WINDOW_S:
            return []
        found = list(self._counted.values())
        self._counted.clear()
        return found


FILE = "audit.log"
MOST_WAITING = 100_000
_GATHER_S = 0.02
_SYNC_S = 1.0
_RETRY_S = 1.0
_log = logging.getLogger(__name__)


class AuditWriter:
    """Thread-safe; `start` it, and `close` it in the end."""

    def __init__(
        self,
        path: Path,
        most_bytes: int = 16 * 1024 * 1024,
        files: int = 10,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.path = path
        self.files = files
        self.trouble: str | None = None  # why nothing can be written, while nothing can
        self.lost = 0
        self._most_bytes = most_bytes
        self._now_s = now_s
        self._waiting: deque[AuditEntry] = deque()
        self._lock = threading.Condition()
        self._aggregator = RefusalAggregator()
        self._n, self._before = 0, START
        self._put = self._written = 0
        self._is_closing = False
        self._synced_s = 0.0
        self._fd = -1
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    # -- entries -------------------------------------------------------------------------------------------

    def note(self, entry: AuditEntry) -> None:
        """Something was done."""
        with self._lock:
            self._enqueue(entry)

    def refused(self, entry: AuditEntry) -> None:
        """Something was not."""
        with self._lock:
            if self._aggregator.takes(entry, self._now_s()):
                return
            self._enqueue(entry)

    def now(self) -> str:
        return time_text(self._now_s())

    def flush(self) -> None:
        """Wait until all entries up to now are written. Blocks, but not for ever if the disk is full."""
        with self._lock:
            self._write_aggregates(at_end=True)
            until = self._put
            self._lock.notify_all()
            self._lock.wait_for(lambda: self._written >= until or self.trouble is not None, timeout=5)

    def _enqueue(self, entry: AuditEntry) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self.lost += 1
            return
        if self.lost and self.trouble is None:
            self._waiting.append(
                AuditEntry(at=self.now(), who="agent", what="audit", outcome="failed", reason="lost", times=self.lost)
            )
            self._put += 1
            self.lost = 0
        self._waiting.append(entry)
        self._put += 1
        if len(self._waiting) == 1:
            self._lock.notify_all()

    def _write_aggregates(self, *, at_end: bool) -> None:
        for entry in self._aggregator.due(self._now_s(), at_end=at_end):
            self._enqueue(replace(entry, at=self.now()))

    # -- the file ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Open the file, and go on after its last line; raises CheopsError."""
        try:
            last = last_entry(self.path) or last_entry(numbered(self.path, 1))
            self._open()
            self._repair_end()
        except OSError as error:
            raise CheopsError(f"the audit log {self.path} cannot be opened: {error.strerror}") from error
        if last:
            self._n, self._before = last
        self._thread.start()

    def close(self) -> None:
        """Write what waits, and end."""
        if self._fd < 0:
            return
        with self._lock:
            self._write_aggregates(at_end=True)
            self._is_closing = True
            self._lock.notify_all()
        self._thread.join(timeout=10)
        os.close(self._fd)
        self._fd = -1

    def _open(self) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _repair_end(self) -> None:
        """What a crash cut off stays as it is, on a line of its own."""
        if self._size and os.pread(self._fd, 1, self._size - 1) != b"\n":
            os.write(self._fd, b"\n")
            self._size += 1

    def _run(self) -> None:
        while True:
            with self._lock:
                self._lock.wait_for(lambda: self._waiting or self._is_closing, timeout=_SYNC_S)
                self._write_aggregates(at_end=False)
                is_last = self._is_closing
            if self._waiting and not is_last:
                time.sleep(_GATHER_S)
            if not self._write_all() and is_last:
                _log.error("%d lines of the audit log are lost: %s", len(self._waiting), self.trouble)
                return
            if is_last and not self._waiting:
                self._sync()
                return

    def _write_all(self) -> bool:
        """All that waits; whether that was possible."""
        batch = list(self._waiting)  # others only add to it
        if not batch:
            return True
        try:
            self._write(batch)
        except OSError as error:
            if self.trouble is None:
                _log.error("the audit log cannot be written: %s", error)
            self.trouble = f"{self.path}: {error.strerror}"
            with self._lock:
                self._lock.notify_all()
            time.sleep(0 if self._is_closing else _RETRY_S)
            return False
        with self._lock:
            self.trouble = None
            for _ in batch:
                self._waiting.popleft()
            self._written += len(batch)
            self._lock.notify_all()
        return True

    def _write(self, batch: list[AuditEntry]) -> None:
        n, before, lines = self._n, self._before, []
        for entry in batch:
            n += 1
            line, before = line_of(replace(entry, n=n), before)
            lines.append(line + b"\n")
        content = b"".join(lines)
        if self._size and self._size + len(content) > self._most_bytes:
            self._turn_over()
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._size)  # no half line
            raise
        self._size += len(content)
        self._n, self._before = n, before
        if self._now_s() - self._synced_s >= _SYNC_S:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._fd)
        self._synced_s = self._now_s()

    def _turn_over(self) -> None:
        self._sync()
        for number in range(self.files - 1, 0, -1):
            older = self.path if number == 1 else numbered(self.path, number - 1)
            if older.exists():
                older.replace(numbered(self.path, number))
        if self.files == 1:
            self.path.unlink()
        os.close(self._fd)
        self._open()
