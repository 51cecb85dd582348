"""Entries of the audit log: their format, the chain of hashes that links them, and how they are read back.

Each line ends with a hash of itself and of the hash before it, so that a line that was changed, removed or
inserted shows. There is no secret in that: whoever may write the file can compute a new chain. For more
certainty, copy the lines to another machine as they are written.

A line holds names only: never a token, a command, its output or an error text.
"""

import hashlib
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import msgspec

from cheops.schema import doc

START = ""  # what stands for the hash before the first line of all
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
    times: Annotated[int, doc("How many equal requests the line stands for, if they came too fast.", 1)] = 1


class BrokenLineError(ValueError):
    """Not a line of the log, or not one that follows the line before."""


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
    given = {name: value for name, value in msgspec.to_builtins(entry).items() if value != _DEFAULTS.get(name)}
    body = msgspec.json.encode(given)
    digest = _hash(before, body)
    return body[:-1] + _MARK + digest.encode() + b'"}', digest


def entry_of(line: bytes) -> tuple[AuditEntry, str]:
    """What a line says, and the hash that it gives; raises BrokenLineError."""
    try:
        return _entries.decode(line), _hash_in(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokenLineError("a line is cut off, or is none of ours") from error


def check(line: bytes, before: str | None) -> None:
    """That a line is as it was written, after one with this hash (None: nobody knows); raises
    BrokenLineError."""
    if before is not None and _hash(before, line[:-_SUFFIX] + b"}") != _hash_in(line):
        raise BrokenLineError("a line was changed, or one before it is missing")


def _hash_in(line: bytes) -> str:
    if line[-_SUFFIX : -_SUFFIX + len(_MARK)] != _MARK:
        raise BrokenLineError("a line has no hash")
    return line[-_SUFFIX + len(_MARK) : -2].decode("ascii", "replace")


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()


_TAIL = 64 * 1024  # in which the last line is looked for


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def all_files(path: Path, files: int) -> list[Path]:
    """The files of a log that are there, the newest first."""
    found = [path, *(numbered(path, number) for number in range(1, files))]
    return [one for one in found if one.exists()]


def last_entry(path: Path) -> tuple[int, str] | None:
    """Number and hash of the last whole line of a file."""
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


MOST_LINES = 1_000


@dataclass(frozen=True, slots=True)
class AuditQuery:
    """Of which lines: all that is given must agree."""

    since: str = ""  # a time as lines have it, or the beginning of one
    who: str = ""  # all of it, or what follows the colon
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


def read_entries(path: Path, files: int, wanted: AuditQuery) -> AuditPage:
    """The last lines that are wanted, the oldest first. Blocks. Files are read whole, the newest first, and
    no more of them than are needed."""
    found, pages = AuditPage(), []
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
class _Page(AuditPage):
    first: AuditEntry | None = None


def _of_file(path: Path, older: Path | None, wanted: AuditQuery) -> _Page:
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
