"""Reading the audit log: the newest lines that are asked for, and whether the chain holds."""

from dataclasses import dataclass, field
from pathlib import Path

from cheops.security.audit import all_files, last_entry
from cheops.security.audit_entry import START, BrokenLineError, Entry, check, entry_of

MOST_LINES = 1_000


@dataclass(frozen=True, slots=True)
class Wanted:
    """Of which lines: all that is given must agree."""

    since: str = ""  # a time as lines have it, or the beginning of one
    who: str = ""  # all of it, or what follows the colon
    outcome: str = ""
    limit: int = 100

    def has(self, entry: Entry) -> bool:
        return (
            entry.at >= self.since
            and self.who in ("", entry.who, entry.who.partition(":")[2])
            and self.outcome in ("", entry.outcome)
        )


@dataclass(slots=True)
class Found:
    entries: list[Entry] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)  # where the chain does not hold


def read(path: Path, files: int, wanted: Wanted) -> Found:
    """The last lines that are wanted, the oldest first. Blocks. Files are read whole, the newest first, and
    no more of them than are needed."""
    found, pages = Found(), []
    there = all_files(path, files)
    for file, older in zip(there, [*there[1:], None], strict=True):
        page = _of_file(file, older, wanted)
        pages.append(page.entries)
        found.broken = [*page.broken, *found.broken]
        oldest = page.first.at if page.first else ""
        if sum(map(len, pages)) >= wanted.limit or (oldest and oldest < wanted.since):
            break
    found.entries = [entry for entries in reversed(pages) for entry in entries][-wanted.limit :]
    return found


@dataclass(slots=True)
class _Page(Found):
    first: Entry | None = None


def _of_file(path: Path, older: Path | None, wanted: Wanted) -> _Page:
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
                before = n = None
                if not line.endswith(b"}"):
                    continue
                try:
                    entry, digest = entry_of(line)
                except BrokenLineError:
                    continue
            before, n = digest, entry.n
            page.first = page.first or entry
            if wanted.has(entry):
                page.entries.append(entry)
    return page
