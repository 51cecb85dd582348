"""Reads the audit log: selects entries, and reports where its chain does not hold."""

from itertools import zip_longest
from pathlib import Path

from msgspec import Struct, field

from cheops.security.audit import (
    START,
    AuditEntry,
    AuditHead,
    AuditWriter,
    BrokenLineError,
    all_files,
    check,
    entry_of,
    first_number,
    last_entry,
)

MOST_LINES = 1_000


class AuditQuery(Struct, frozen=True):
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


class AuditPage(Struct):
    entries: list[AuditEntry] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # where the chain does not hold


def read_log(log: AuditWriter, query: AuditQuery) -> AuditPage:
    """The last entries of a log that is being written. Blocks."""
    log.flush()  # so that a client finds its own last request
    while True:
        head = log.head
        page = read_entries(log.path, log.files, query, head)
        if log.head.first == head.first:  # else the files were renamed meanwhile
            return page


def read_entries(path: Path, files: int, query: AuditQuery, head: AuditHead | None = None) -> AuditPage:
    """The last entries that match, the oldest first. Blocks. Files are read whole, the newest first, and only as many
    as needed. With `head` also whether both ends of the log are there."""
    result, pages = AuditPage(), []
    paths = all_files(path, files)
    for file, older in zip_longest(paths, paths[1:]):
        page = _read_file(file, older, query, head)
        pages.append(page.entries)
        result.broken = [*page.broken, *result.broken]
        oldest = page.first.at if page.first else ""
        if sum(map(len, pages)) >= query.limit or (oldest and oldest < query.since):
            break
    if head and head.n:
        result.broken = [*_missing_at_the_start(paths, head), *result.broken, *_missing_at_the_end(paths, head)]
    result.entries = [entry for entries in reversed(pages) for entry in entries][-query.limit :]
    return result


def _missing_at_the_start(paths: list[Path], head: AuditHead) -> list[str]:
    first = first_number(paths[-1]) if paths else None
    if first is None or first <= head.first:
        return []
    return [f"{paths[-1].name}: lines {head.first} to {first - 1} before it are missing"]


def _missing_at_the_end(paths: list[Path], head: AuditHead) -> list[str]:
    if not paths:
        return [f"all lines from {head.first} to {head.n} are missing"]
    last = last_entry(paths[0]) or (last_entry(paths[1]) if len(paths) > 1 else None)
    missing = head.n - (last[0] if last else head.first - 1)
    return [f"{paths[0].name}: {missing} lines are missing at its end, up to line {head.n}"] if missing > 0 else []


class _Page(AuditPage):
    """The entries of one file that match, and its first line."""

    first: AuditEntry | None = None


def _read_file(path: Path, older: Path | None, query: AuditQuery, head: AuditHead | None) -> _Page:
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
                if head and entry.n == head.n and digest != head.hash:
                    raise BrokenLineError("it is not the line that was written")  # noqa: TRY301
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
