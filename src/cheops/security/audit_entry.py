"""One line of the audit log: who did what, from where, and how it ended; and its link to the line before.

Each line ends with a hash of itself and of the hash before it, so that a line which was changed, taken out or
put in shows. There is no secret in that: whoever may write the file can make a new chain of it all. To be
sure of more, have the lines copied to another machine as they come.

Nothing stands in a line but names: never a token, a command, its output or what was wrong with it.
"""

import hashlib
from datetime import UTC, datetime
from functools import lru_cache

import msgspec

START = ""  # what stands for the hash before the first line of all
_MARK = b',"hash":"'
_SUFFIX = len(_MARK) + 64 + len(b'"}')


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"source": "from"}):
    """`n` counts all lines that were ever written. Where a field does not apply it is left out."""

    n: int = 0
    at: str  # 2026-11-16T01:41:31.885Z
    who: str  # token:ci, local:uid 0, peer:site2, open, nobody
    source: str = ""
    what: str
    resource: str = ""
    type: str = ""
    operation: str = ""
    outcome: str  # done, refused, failed
    status: int = 0
    reason: str = ""
    times: int = 1  # more: so many of the same, which came too fast to be told one by one


class BrokenLineError(ValueError):
    """Not a line of the log, or not one that follows the line before."""


_entries = msgspec.json.Decoder(Entry)


def time_text(at_s: float) -> str:
    whole = int(at_s)
    return f"{_to_the_second(whole)}.{int((at_s - whole) * 1000):03}Z"


@lru_cache(16)
def _to_the_second(at_s: int) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def line_of(entry: Entry, before: str) -> tuple[bytes, str]:
    """The line, without its end, and its hash."""
    body = msgspec.json.encode(entry)
    digest = _hash(before, body)
    return body[:-1] + _MARK + digest.encode() + b'"}', digest


def entry_of(line: bytes) -> tuple[Entry, str]:
    """What a line says, and the hash that it gives; raises BrokenLineError."""
    try:
        return _entries.decode(line), _told(line)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BrokenLineError("a line is cut off, or is none of ours") from error


def check(line: bytes, before: str | None) -> None:
    """That a line is as it was written, after one with this hash (None: nobody knows); raises
    BrokenLineError."""
    if before is not None and _hash(before, line[:-_SUFFIX] + b"}") != _told(line):
        raise BrokenLineError("a line was changed, or one before it is missing")


def _told(line: bytes) -> str:
    if line[-_SUFFIX : -_SUFFIX + len(_MARK)] != _MARK:
        raise BrokenLineError("a line has no hash")
    return line[-_SUFFIX + len(_MARK) : -2].decode("ascii", "replace")


def _hash(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + body).hexdigest()
