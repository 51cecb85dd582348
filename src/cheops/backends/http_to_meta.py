"""From the local ids of a site to meta-ids, in the JSON that comes from its service.

A string is replaced where it is an id of a replicant, or a URL or path that leads to one. Numbers, and
strings as short as "5", are ids only at places where an id is known to stand: `Known` decides, and is told
the place. Everything else stays byte by byte as the service wrote it. Bodies of any size pass through in
pieces; what is held back is one token.
"""

import re
from typing import Protocol

import msgspec

from cheops.errors import CheopsError, Fault

MAX_ID_BYTES = 8 * 1024  # a longer string is neither an id nor a URL
MAX_DEPTH = 1_000
_MAX_NUMBER_BYTES = 20
_TOKEN = re.compile(
    rb'"(?P<text>[^"\\]*(?:\\.[^"\\]*)*)"(?P<colon>[ \t\r\n]*:)?'
    rb"|(?P<open>\")|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<mark>[\[\]{}])",
    re.DOTALL,
)
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BLANK = b" \t\r\n"

# Names on the way from the root to a value; None stands for an array.
Place = tuple[str | None, ...]


class TooDeepError(CheopsError):
    """The service's JSON cannot be translated."""

    fault = Fault.APPLICATION
    status = 502


class Known(Protocol):
    """What a site knows of its replicants."""

    def in_text(self, text: str, place: Place) -> str | None:
        """The text with meta-ids in it, or None where it speaks of no replicant."""
        ...

    def of_number(self, number: int, place: Place) -> str | None:
        """The meta-id that a number at a place stands for."""
        ...


class ToMeta:
    """A body on its way from the service, in pieces."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._held = b""
        self._open: list[Place] = []  # the places of the containers that are open
        self._name: str | None = None  # of the member whose value comes next
        self._in_long_text = False
        self.changed = False  # whether anything was replaced so far

    def feed(self, piece: bytes) -> bytes:
        return self._translated(self._held + piece, at_end=False)

    def finish(self) -> bytes:
        return self._translated(self._held, at_end=True)

    def _translated(self, data: bytes, *, at_end: bool) -> bytes:
        done = self._skip_long_text(data, 0) if self._in_long_text else 0
        out = [data[:done]]
        while not self._in_long_text:
            found = _TOKEN.search(data, done)
            if found is None or found["open"] or (not at_end and _may_go_on(found, data)):
                break
            out += [data[done : found.start()], self._token(found)]
            done = found.end()
        passed = len(data) if at_end else self._passed(data, done)
        self._held = data[passed:]
        out.append(data[done:passed])
        return b"".join(out)

    def _passed(self, data: bytes, done: int) -> int:
        """Up to where nothing can be part of a token that is to be looked at."""
        if self._in_long_text:
            return done
        quote = data.find(b'"', done)
        if quote < 0:
            return len(data) - min(len(data[done:].lstrip(_BLANK + b",:")), _MAX_NUMBER_BYTES)
        if len(data) - quote <= MAX_ID_BYTES or not _is_open(data, quote):
            return quote
        self._in_long_text = True
        return self._skip_long_text(data, quote + 1)

    def _skip_long_text(self, data: bytes, start: int) -> int:
        """The end of a string that is too long for an id, or of what is there of it."""
        inside = _INSIDE.match(data, start)
        end = inside.end() if inside else start
        if data[end : end + 1] == b'"':
            self._in_long_text, self._name = False, None
            return end + 1
        return end  # at the end of the piece, or at a backslash that is the last of it

    def _token(self, found: re.Match[bytes]) -> bytes:
        if found["mark"]:
            self._enter_or_leave(found["mark"])
            return found[0]
        if found["colon"] is not None:
            self._name = _text(found["text"])
            return found[0]
        place, self._name = self._here(), None
        number = found["number"]
        replaced = self._of_number(number, place) if number else self._of_text(found["text"], place)
        if replaced is None:
            return found[0]
        self.changed = True
        return msgspec.json.encode(replaced)

    def _enter_or_leave(self, mark: bytes) -> None:
        if mark in b"]}":
            if self._open:
                self._open.pop()
        elif len(self._open) < MAX_DEPTH:
            self._open.append((*self._here(), None) if mark == b"[" else self._here())
        else:
            raise TooDeepError(f"the answer of the service is nested more than {MAX_DEPTH} deep")
        self._name = None

    def _here(self) -> Place:
        above = self._open[-1] if self._open else ()
        return above if self._name is None else (*above, self._name)

    def _of_text(self, raw: bytes, place: Place) -> str | None:
        return self._known.in_text(_text(raw), place) if 0 < len(raw) <= MAX_ID_BYTES else None

    def _of_number(self, raw: bytes, place: Place) -> str | None:
        is_id = raw.isdigit() and len(raw) <= _MAX_NUMBER_BYTES
        return self._known.of_number(int(raw), place) if is_id else None


def to_meta(body: bytes, known: Known) -> bytes:
    """A body as a whole."""
    translating = ToMeta(known)
    return translating.feed(body) + translating.finish()


def _is_open(data: bytes, quote: int) -> bool:
    """Whether a string that begins there does not end here."""
    found = _TOKEN.match(data, quote)
    return found is None or bool(found["open"])


def _may_go_on(found: re.Match[bytes], data: bytes) -> bool:
    """Whether what comes next may belong to a token: the rest of a number, the colon after a name."""
    if found["mark"] or found["colon"] is not None:
        return False
    return not data[found.end() :].strip(_BLANK)


def _text(raw: bytes) -> str:
    if b"\\" in raw:
        try:
            return str(msgspec.json.decode(b'"' + raw + b'"'))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return ""  # not JSON: it is handed on as it is
    return raw.decode("utf-8", "replace")
