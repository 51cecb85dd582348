"""The audit log of a site: `audit.log`, JSON lines, append-only, each chained to the one before.

Each line ends with a hash of itself and of the hash before it, so that a line that was changed, removed or inserted
shows. There is no secret in that: a program that may write the file can compute a new chain. For more certainty, copy
the lines to another machine as they are written. A line holds names only: never a token, a command, its output or an
error text.

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
from dataclasses import dataclass, field
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


# -- writing -----------------------------------------------------------------------------------------------

FILE = "audit.log"
MOST_WAITING = 100_000  # lines in memory while the disk is full
_GATHER_S = 0.02  # the lines of this time are written together: one write per line would be slower
_SYNC_S = 1.0  # a power cut may take the lines of the last second; a sync per line would slow every request
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

    def start(self) -> None:
        """Open the file, and continue after its last line; raises CheopsError."""
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
        self._n, self._before = n, before  # only after the write: a failed batch is numbered again
        if self._now_s() - self._synced_s >= _SYNC_S:
            self._sync()

    def _sync(self) -> None:
        os.fsync(self._fd)
        self._synced_s = self._now_s()

    def _rotate(self) -> None:
        self._sync()
        for number in range(self.files - 1, 0, -1):
            older = self.path if number == 1 else numbered(self.path, number - 1)
            if older.exists():
                older.replace(numbered(self.path, number))
        if self.files == 1:
            self.path.unlink()
        os.close(self._fd)
        self._open()


# -- reading -----------------------------------------------------------------------------------------------

MOST_LINES = 1_000


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Selects entries: all fields that are set must match."""

    since: str = ""  # a time as in `AuditEntry.at`, or the beginning of one: such texts sort by time
    who: str = ""  # as in `AuditEntry.who`, or only the part after the colon
    outcome: str = ""
    limit: int = 100

    def has(self, entry: AuditEntry) -> bool:
        return (
            entry.at >= self.since
            and self.who in ("", entry.who, entry.who.partition(":")[2])
            and self.outcome in ("", entry.outcome)
        )


@dataclass(slots=True)
class AuditPage:
    entries: list[AuditEntry] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # where the chain does not hold


def read_entries(path: Path, files: int, query: AuditQuery) -> AuditPage:
    """The last entries that match, the oldest first. Blocks. Files are read whole, the newest first, and only as many
    as needed."""
    result, pages = AuditPage(), []
    paths = all_files(path, files)
    for file, older in zip(paths, [*paths[1:], None], strict=True):
        page = _read_file(file, older, query)
        pages.append(page.entries)
        result.broken = [*page.broken, *result.broken]
        oldest = page.first.at if page.first else ""
        if sum(map(len, pages)) >= query.limit or (oldest and oldest < query.since):
            break
    result.entries = [entry for entries in reversed(pages) for entry in entries][-query.limit :]
    return result


@dataclass(slots=True)
class _Page(AuditPage):
    """The entries of one file that match, and its first line."""

    first: AuditEntry | None = None


def _read_file(path: Path, older: Path | None, query: AuditQuery) -> _Page:
    page, before, n = _Page(), None, None
    if older and (last := last_entry(older)):
        n, before = last
    with path.open("rb") as file:
        for number, raw in enumerate(file, start=1):
            line = raw.rstrip(b"\n")
            try:
                entry, digest = entry_of(line)
                check(line, START if entry.n == 1 else before)
                if n is not None and entry.n != n + 1:
                    raise BrokenLineError(f"{entry.n - n - 1} lines are missing before it")  # noqa: TRY301
            except BrokenLineError as error:
                page.broken.append(f"{path.name}, line {number}: {error}")
                # From here on the chain is unknown. The next line starts it again: one change is one finding.
                before = n = None
                if not line.endswith(b"}"):
                    continue
                try:
                    entry, digest = entry_of(line)
                except BrokenLineError:
                    continue
            before, n = digest, entry.n
            page.first = page.first or entry
            if query.has(entry):
                page.entries.append(entry)
    return page
