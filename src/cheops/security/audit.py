"""The audit log of a site: `audit.log`, JSON lines, append-only, each chained to the one before.

Each line ends with a hash of itself and of the hash before it, so that a line that was changed, removed or inserted
shows. The two ends of this chain are kept elsewhere as well (`AuditHead`, a note in the store, once a second while
there are new lines): so lines that are cut off at an end show, and a file that is deleted or replaced. There is no
secret in that: a program that may write the file and the store, as the agent's own user may, can compute new ones. For
more certainty, copy the lines to another machine as they are written. A line holds names only: never a token, a
command, its output or an error text. `audit_query` reads the log.

Callers do not wait for the disk: a thread writes what has gathered, some times a second, and all of it before the agent
stops. If the disk is full, lines wait in memory, up to a limit; beyond that they are counted, and the next line that
can be written says how many are missing. Large files are renamed (`audit.log.1`, `.2`, …), and the oldest is deleted;
the chain continues in the next one.

Refusals may come as fast as a network allows. Of each sender only some are written one by one; the rest of the same
kind becomes one line with a count.
"""

import hashlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec.structs import replace

from cheops.errors import CheopsError
from cheops.schema import doc
from cheops.text import printable, shortened

START = ""  # the hash before the very first line
_MOST_CHARACTERS = 256  # of a text that came from outside
_MARK = b',"hash":"'
_SUFFIX = len(_MARK) + 64 + len(b'"}')


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, rename={"source": "from"}):
    """A change that a client made, or a request that was refused."""

    n: Annotated[int, doc("The number of the line, counted from the first that was ever written.", 118)] = 0
    at: Annotated[str, doc("When.", "2026-11-16T01:41:31.885Z")]
    who: Annotated[
        str, doc("The kind of the client and its name: token:ci, local:uid 0, peer:site2, open or nobody.", "token:ci")
    ]
    source: Annotated[str, doc("The client's address; `unix`: the agent's own socket.", "10.0.0.7")] = ""
    what: Annotated[str, doc("The request.", "POST /api/v1/resources/{id}/operations")]
    resource: Annotated[str, doc("The resource.", "counter")] = ""
    type: Annotated[str, doc("The type of the resource.", "counter")] = ""
    operation: Annotated[str, doc("The operation that the request created.", "site1:3")] = ""
    outcome: Annotated[str, doc("done, refused or failed.", "done")]
    status: Annotated[int, doc("The status of the response.", 200)] = 0
    reason: Annotated[str, doc("Why it was refused.", "")] = ""
    times: Annotated[int, doc("How many equal requests the line counts, if they came too fast.", 1)] = 1


def audit_text(text: str) -> str:
    """A text from outside, cut and made printable for the audit log."""
    is_plain = len(text) <= _MOST_CHARACTERS and text.isascii() and text.isprintable()
    return text if is_plain else printable(shortened(text, _MOST_CHARACTERS))


class BrokenLineError(ValueError):
    """A line is not one of the log, or does not follow the line before it."""


_entries = msgspec.json.Decoder(AuditEntry)
_DEFAULTS = {one.encode_name: one.default for one in msgspec.structs.fields(AuditEntry) if not one.required}


def time_text(at_s: float) -> str:
    whole = int(at_s)
    return f"{_to_the_second(whole)}.{int((at_s - whole) * 1000):03}Z"


@lru_cache(16)
def _to_the_second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def line_of(entry: AuditEntry, before: str) -> tuple[bytes, str]:
    """The line, without its end, and its hash."""
    # A line has only the fields that apply. The API has all: its clients need not know the defaults.
    fields = {name: value for name, value in msgspec.to_builtins(entry).items() if value != _DEFAULTS.get(name)}
    body = msgspec.json.encode(fields)
    digest = _hash(before, body)
    return body[:-1] + _MARK + digest.encode() + b'"}', digest


def entry_of(line: bytes) -> tuple[AuditEntry, str]:
    """The entry in a line, and its hash; raises BrokenLineError."""
    try:
        return _entries.decode(line), _hash_in(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokenLineError("a line is cut off, or is not a line of the audit log") from error


def check(line: bytes, before: str | None) -> None:
    """Check that a line is as it was written, after one with the hash `before` (None: unknown); raises
    BrokenLineError."""
    if before is not None and _hash(before, line[:-_SUFFIX] + b"}") != _hash_in(line):
        raise BrokenLineError("a line was changed, or one before it is missing")


def _hash_in(line: bytes) -> str:
    if line[-_SUFFIX : -_SUFFIX + len(_MARK)] != _MARK:
        raise BrokenLineError("a line has no hash")
    return line[-_SUFFIX + len(_MARK) : -2].decode("ascii", "replace")


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()


_TAIL = 64 * 1024  # the last line is in here: a line has a few hundred bytes


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def all_files(path: Path, files: int) -> list[Path]:
    """The existing files of a log, the newest first."""
    paths = [path, *(numbered(path, number) for number in range(1, files))]
    return [one for one in paths if one.exists()]


def last_entry(path: Path) -> tuple[int, str] | None:
    """Number and hash of the last complete line of a file."""
    if not path.exists():
        return None
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            entry, digest = entry_of(line)
        except BrokenLineError:
            continue
        return entry.n, digest
    return None


def first_number(path: Path) -> int | None:
    """The number of the first complete line of a file."""
    with path.open("rb") as file:
        for line in file:
            try:
                return entry_of(line.rstrip(b"\n"))[0].n
            except BrokenLineError:
                continue
    return None


def _hash_of(path: Path, files: int, n: int) -> str | None:
    """The hash in the line with this number; None if there is none."""
    for file in all_files(path, files):
        for line in reversed(file.read_bytes().splitlines()):
            try:
                entry, digest = entry_of(line)
            except BrokenLineError:
                continue
            if entry.n <= n:
                return digest if entry.n == n else None
    return None


class AuditHead(msgspec.Struct, frozen=True):
    """The two ends of a log: its last line with its hash, and the first line that is still kept."""

    n: int = 0
    hash: str = START
    first: int = 1


# -- writing -----------------------------------------------------------------------------------------------

FILE = "audit.log"
NOTE = "audit"  # of the store, with the head
MOST_WAITING = 100_000  # lines in memory while the disk is full
_GATHER_S = 0.02  # the lines of this time are written together: one write per line would be slower
_SYNC_S = 1.0  # lines of the last second may be lost in a power cut; a sync per line would slow every request
ALTERED = "lines were removed or changed"
_RETRY_S = 1.0
_log = logging.getLogger(__name__)
# So many refusals of one sender within this time are written one by one: enough to see what it tries. A flood of them
# must not push the other lines out of the files that are kept.
SINGLY = 20
WINDOW_S = 10.0
_MOST_KINDS = 1_000  # senders, and kinds of refusals, that are counted separately; further ones are "others"


class RefusalAggregator:
    """Counts the refusals that are not written yet, by kind."""

    def __init__(self) -> None:
        self._since_s = 0.0
        self._singly: dict[str, int] = {}
        self._counted: dict[tuple[str, ...], AuditEntry] = {}

    def takes(self, entry: AuditEntry, now_s: float) -> bool:
        """Whether the entry is counted here, to be written later."""
        if now_s - self._since_s >= WINDOW_S:
            self._since_s = now_s
            self._singly.clear()
        written = self._singly.get(entry.source, 0)
        if written < SINGLY and (written or len(self._singly) < _MOST_KINDS):
            self._singly[entry.source] = written + 1
            return False
        key: tuple[str, ...] = (entry.source, entry.who, entry.what, entry.reason)
        if key not in self._counted and len(self._counted) >= _MOST_KINDS:
            key = ("others",)
            entry = replace(entry, source="others", who="others", what="others", reason="others", resource="")
        before = self._counted.get(key)
        self._counted[key] = replace(entry, times=(before.times if before else 0) + entry.times)
        return True

    def due(self, now_s: float, *, at_end: bool) -> list[AuditEntry]:
        """The counted entries, once the window is over."""
        if not at_end and now_s - self._since_s < WINDOW_S:
            return []
        entries = list(self._counted.values())
        self._counted.clear()
        return entries


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
        self.altered = ""  # what was done to the log while the agent was not running
        self._save_head: Callable[[AuditHead], None] = lambda _head: None
        self._most_bytes = most_bytes
        self._now_s = now_s
        self._waiting: deque[AuditEntry] = deque()
        self._lock = threading.Condition()
        self._aggregator = RefusalAggregator()
        self._n, self._before, self._first = 0, START, 1
        self._saved = AuditHead()
        self._put = self._written = 0
        self._is_closing = False
        self._synced_s = 0.0
        self._fd = -1
        self._size = 0
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)

    # -- entries -------------------------------------------------------------------------------------------

    def note(self, entry: AuditEntry) -> None:
        """Record something that was done."""
        with self._lock:
            self._enqueue(entry)

    def refused(self, entry: AuditEntry) -> None:
        """Record something that was refused."""
        with self._lock:
            if self._aggregator.takes(entry, self._now_s()):
                return
            self._enqueue(entry)

    def now(self) -> str:
        return time_text(self._now_s())

    def flush(self) -> None:
        """Wait until all entries up to now are written, but at most 5 s, or until the disk fails. Blocks."""
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

    def start(
        self, saved: AuditHead | None = None, save_head: Callable[[AuditHead], None] = lambda _head: None
    ) -> None:
        """Open the file, and continue after its last line; raises CheopsError. `saved` is the head that `save_head`
        kept last; that may raise CheopsError."""
        try:
            self._n, self._before = last_entry(self.path) or last_entry(numbered(self.path, 1)) or (0, START)
            oldest = all_files(self.path, self.files)[-1:]
            self._first = (first_number(oldest[0]) if oldest else None) or 1
            missing = self._compare(saved) if saved else 0
            self._open()
            self._repair_end()
        except OSError as error:
            raise CheopsError(f"the audit log {self.path} cannot be opened: {error.strerror}") from error
        self._save_head, self._saved = save_head, saved or AuditHead()
        if self.altered:
            _log.error("the audit log was altered: %s", self.altered)
            entry = AuditEntry(at=self.now(), who="agent", what="audit", outcome="failed", reason=ALTERED)
            self.note(replace(entry, times=max(missing, 1)))
        self._thread.start()

    def _compare(self, saved: AuditHead) -> int:
        """Compare the file with the head that was saved. After a difference the chain continues behind that head, so
        that it shows for as long as the lines are kept. Returns how many lines are missing at the end."""
        self._first = saved.first
        missing = max(saved.n - self._n, 0)
        if missing:
            self.altered = f"its last {missing} lines are missing"
        elif saved.n and _hash_of(self.path, self.files, saved.n) != saved.hash:
            self.altered = f"line {saved.n} is not the one that was written"
        if self.altered:
            self._n, self._before = max(self._n, saved.n), saved.hash
        return missing

    @property
    def head(self) -> AuditHead:
        """As of the last line that was written, or that must be there."""
        with self._lock:
            return AuditHead(self._n, self._before, self._first)

    def close(self) -> None:
        """Write the waiting entries, and stop."""
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
        # NOFOLLOW: a symbolic link here could make an agent that runs as root append to any file.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self.path, flags, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _repair_end(self) -> None:
        """Leave a line that a crash cut off as it is, but end it: it must not spoil the next one."""
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
            if not self._waiting and not is_last:
                self._sync_if_due()
            if not self._write_all() and is_last:
                _log.error("%d lines of the audit log are lost: %s", len(self._waiting), self.trouble)
                return
            if is_last and not self._waiting:
                self._sync()
                return

    def _write_all(self) -> bool:
        """Write all waiting entries. Returns whether that was possible."""
        batch = list(self._waiting)  # without the lock: other threads only append
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
        self._look_at_file()
        if self._size and self._size + len(content) > self._most_bytes:
            self._rotate()
        try:
            left = memoryview(content)
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError:
            os.ftruncate(self._fd, self._size)  # a half line would break the chain of the retry
            raise
        self._size += len(content)
        with self._lock:
            self._n, self._before = n, before  # only after the write: a failed batch is numbered again
        self._sync_if_due()

    def _look_at_file(self) -> None:
        """The file may have been cut off or deleted meanwhile: what follows is kept all the same."""
        state = os.fstat(self._fd)
        self._size = state.st_size
        if not state.st_nlink:
            os.close(self._fd)
            self._open()

    def _sync_if_due(self) -> None:
        if abs(self._now_s() - self._synced_s) >= _SYNC_S:  # abs: the clock may be set back
            self._sync()

    def _sync(self) -> None:
        """The file first: a head that is saved never speaks of a line that a power cut can take."""
        if (head := self.head) == self._saved:
            return
        os.fsync(self._fd)
        self._synced_s = self._now_s()
        try:
            self._save_head(head)
        except CheopsError as error:
            _log.warning("the head of the audit log is not saved: %s", error)
        else:
            self._saved = head

    def _rotate(self) -> None:
        self._sync()
        for number in range(self.files - 1, 0, -1):
            older = self.path if number == 1 else numbered(self.path, number - 1)
            if older.exists():
                older.replace(numbered(self.path, number))
        if self.files == 1:
            self.path.unlink()
        oldest = all_files(self.path, self.files)[-1:]
        first = first_number(oldest[0]) if oldest else None
        with self._lock:
            self._first = first or self._n + 1
        os.close(self._fd)
        self._open()
