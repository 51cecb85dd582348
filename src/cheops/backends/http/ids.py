"""Meta-ids, by which clients know replicated resources, and their translation to and from local ids.

A meta-id is a UUID of version 8, so that every validator accepts it:

    c4e095a1-SSSS-8RRR-VRRR-RRRRRRRRRRRR

It begins with a fixed mark, so one regular expression finds it in a path, a query, a header or a body.
S is a hash of the name of the site that made it: a site that does not know a meta-id contacts that one first. R is 74
random bits.

To local ids: a meta-id is unmistakable, so it is replaced everywhere, byte by byte; spacing, the order of names and
the digits of numbers stay as the client sent them. To meta-ids: a JSON string, or the name of a member, is replaced if
it is the id of a replicant, and a string if it is a URL or path that leads to one. Numbers, and strings such as "5" or
"web-server-2026", are ids only in certain places: `IdLookup` decides. Bodies of any size pass through in pieces.
"""

import hashlib
import re
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias
from urllib.parse import quote

import msgspec

from cheops.errors import CheopsError, Fault

MARK = "c4e095a1"
RANDOM_BYTES = 10
_HEX = "[0-9a-fA-F]"
_TEXT = rf"(?<!{_HEX})[cC]4[eE]095[aA]1-{_HEX}{{4}}-8{_HEX}{{3}}-[89abAB]{_HEX}{{3}}-{_HEX}{{12}}(?!{_HEX})"
META_ID = re.compile(_TEXT)
META_ID_BYTES = re.compile(_TEXT.encode())


def new_meta_id(site: str, randomness: bytes) -> str:
    """A meta-id made at a site, from `RANDOM_BYTES` random bytes."""
    if len(randomness) != RANDOM_BYTES:
        raise ValueError(f"expected {RANDOM_BYTES} random bytes, found {len(randomness)}")
    return _formed(_site_mark(site), randomness)


def meta_id_of(*words: str) -> str:
    """The one meta-id of these words: for what clients name themselves, so that all sites name it alike."""
    digest = hashlib.sha256("\0".join(words).encode("utf-8", "surrogateescape")).digest()
    return _formed(digest[-2:].hex(), digest[:RANDOM_BYTES])


def may_be_made_at(meta_id: str, site: str) -> bool:
    """Whether a site may have made a meta-id; of 65 536 other sites, one is mistaken for it."""
    return meta_id[9:13].lower() == _site_mark(site)


def is_meta_id(text: str) -> bool:
    return META_ID.fullmatch(text) is not None


def meta_ids_in(text: str) -> tuple[str, ...]:
    """All meta-ids of a text, in small letters, in their order, each once."""
    return tuple(dict.fromkeys(found.lower() for found in META_ID.findall(text)))


def _site_mark(site: str) -> str:
    return hashlib.sha256(site.encode()).digest()[:2].hex()


def _formed(site_mark: str, random: bytes) -> str:
    bits = int.from_bytes(random, "big")  # 80 of them, of which 74 are used
    low, high = bits & (1 << 62) - 1, bits >> 62 & 0xFFF
    tail = f"{0b10 << 62 | low:016x}"
    return f"{MARK}-{site_mark}-8{high:03x}-{tail[:4]}-{tail[4:]}"


_HOLD = 128  # bytes kept back, so that an id that two pieces share, and what follows it, are seen as a whole


class Local(NamedTuple):
    """An id as a site's service knows it. A number is written without quotes in JSON."""

    id: str
    is_number: bool = False


LocalOf: TypeAlias = Callable[[str], Local | None]


class NoCopyError(CheopsError):
    """A request names a replicant that this site has no copy of, or not yet."""

    status = 409
    definite = False
    reason = "no copy"

    def __init__(self, meta_id: str) -> None:
        super().__init__(
            f"{meta_id} is a replicated resource that this site has no copy of, or not yet; see "
            f"'cheops describe replicant {meta_id}' at the sites that have it"
        )
        self.meta_id = meta_id


class Form(Enum):
    """How an id is written where it stands."""

    JSON = "json"
    URL = "url"  # in a path, a query, or a body of a form: percent-encoded
    PLAIN = "plain"  # in a header


def text_to_local(text: str, local_of: LocalOf, form: Form) -> str:
    """A path, a query or a header with local ids; raises NoCopyError."""
    return META_ID.sub(lambda found: _written(_known(found[0], local_of), form), text)


class LocalIdTranslator:
    """Translates a request body, in pieces. Raises NoCopyError."""

    def __init__(self, local_of: LocalOf, form: Form) -> None:
        self._local_of = local_of
        self._form = form
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        return self._translated(self._held + piece, keep=_HOLD)

    def finish(self) -> bytes:
        return self._translated(self._held, keep=0)

    def _translated(self, data: bytes, keep: int) -> bytes:
        end, done, out = max(len(data) - keep, 0), 0, []
        for found in META_ID_BYTES.finditer(data):
            if keep and found.start() >= end:
                break
            start, stop = found.span()
            local = _known(found[0].decode("ascii"), self._local_of)
            if self._form is Form.JSON and local.is_number and _is_whole_value(data, start, stop):
                out += [data[done : start - 1], local.id.encode()]
                done = stop + 1
            else:
                out += [data[done:start], _written(local, self._form).encode()]
                done = stop
        cut = max(end, done)
        out.append(data[done:cut])
        self._held = data[cut:]
        return b"".join(out)


def to_local(body: bytes, local_of: LocalOf, form: Form) -> bytes:
    """A body as a whole."""
    translating = LocalIdTranslator(local_of, form)
    return translating.feed(body) + translating.finish()


def _known(meta_id: str, local_of: LocalOf) -> Local:
    local = local_of(meta_id.lower())
    if local is None:
        raise NoCopyError(meta_id.lower())
    return local


def _written(local: Local, form: Form) -> str:
    match form:
        case Form.JSON:
            return msgspec.json.encode(local.id).decode()[1:-1]
        case Form.URL:
            return quote(local.id, safe="")
        case Form.PLAIN:
            return local.id


def _is_whole_value(data: bytes, start: int, stop: int) -> bool:
    """Whether an id is all of a JSON string, which is not the name of a member."""
    if data[start - 1 : start] != b'"' or data[stop : stop + 1] != b'"':
        return False
    return not data[stop + 1 :].lstrip(b" \t\r\n").startswith(b":")


MAX_ID_BYTES = 8 * 1024  # a longer string is neither an id nor a URL
MAX_DEPTH = 1_000
_MAX_NUMBER_BYTES = 20
_JSON_TOKEN = re.compile(
    rb'"(?P<text>[^"\\]*(?:\\.[^"\\]*)*)"(?P<colon>[ \t\r\n]*:)?'
    rb"|(?P<open>\")|(?P<number>-?[0-9][0-9.eE+-]*)|(?P<mark>[\[\]{}])",
    re.DOTALL,
)
_INSIDE = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_BLANK = b" \t\r\n"

# Names on the way from the root to a value; None stands for an array.
JsonPath = tuple[str | None, ...]


class IdLookup(Protocol):
    """Finds the meta-ids of local ids."""

    def in_text(self, text: str, place: JsonPath) -> str | None:
        """The text with meta-ids in it; None if it names no replicant."""
        ...

    def of_number(self, number: int, place: JsonPath) -> str | None:
        """The meta-id that a number at a place stands for."""
        ...

    def of_name(self, name: str, place: JsonPath) -> str | None:
        """The meta-id that the name of a member stands for; `place` is that of the object."""
        ...


class MetaIdTranslator:
    """Translates a response body, in pieces."""

    def __init__(self, known: IdLookup) -> None:
        self._known = known
        self._held = b""
        self._open: list[JsonPath] = []  # the places of the containers that are open
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
            found = _JSON_TOKEN.search(data, done)
            if found is None or found["open"] or (not at_end and _may_go_on(found, data)):
                break
            out += [data[done : found.start()], self._token(found)]
            done = found.end()
        passed = len(data) if at_end else self._passed(data, done)
        self._held = data[passed:]
        out.append(data[done:passed])
        return b"".join(out)

    def _passed(self, data: bytes, done: int) -> int:
        """The end of the part that cannot belong to a token whose rest is still to come."""
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
            return self._member_name(found)
        place, self._name = self._here(), None
        number = found["number"]
        replaced = self._of_number(number, place) if number else self._of_text(found["text"], place)
        if replaced is None:
            return found[0]
        self.changed = True
        return msgspec.json.encode(replaced)

    def _member_name(self, found: re.Match[bytes]) -> bytes:
        """The name of a member, which may be an id: {"rooms": {"join": {"!abc": {…}}}}."""
        raw, place = found["text"], self._open[-1] if self._open else ()
        self._name = _text(raw)
        replaced = self._known.of_name(self._name, place) if 0 < len(raw) <= MAX_ID_BYTES else None
        if replaced is None:
            return found[0]
        self.changed = True
        return msgspec.json.encode(replaced) + found["colon"]

    def _enter_or_leave(self, mark: bytes) -> None:
        if mark in b"]}":
            if self._open:
                self._open.pop()
        elif len(self._open) < MAX_DEPTH:
            self._open.append((*self._here(), None) if mark == b"[" else self._here())
        else:
            raise CheopsError(
                f"the response of the service is nested more than {MAX_DEPTH} deep", fault=Fault.APPLICATION, status=502
            )
        self._name = None

    def _here(self) -> JsonPath:
        above = self._open[-1] if self._open else ()
        return above if self._name is None else (*above, self._name)

    def _of_text(self, raw: bytes, place: JsonPath) -> str | None:
        return self._known.in_text(_text(raw), place) if 0 < len(raw) <= MAX_ID_BYTES else None

    def _of_number(self, raw: bytes, place: JsonPath) -> str | None:
        is_id = raw.isdigit() and len(raw) <= _MAX_NUMBER_BYTES
        return self._known.of_number(int(raw), place) if is_id else None


def to_meta(body: bytes, known: IdLookup) -> bytes:
    """A whole body with meta-ids. `MetaIdTranslator` translates one in pieces."""
    translating = MetaIdTranslator(known)
    return translating.feed(body) + translating.finish()


def _is_open(data: bytes, quote: int) -> bool:
    """Whether the end of the string that begins at `quote` is not in `data`, but in a later piece."""
    found = _JSON_TOKEN.match(data, quote)
    return found is None or bool(found["open"])


def _may_go_on(found: re.Match[bytes], data: bytes) -> bool:
    """Whether a token at the end of `data` may go on in the next piece: the rest of a number, or the colon that makes
    a string a name."""
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
