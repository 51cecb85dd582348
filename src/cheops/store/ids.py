"""The key of a document as text, which CouchDB takes for its `_id`.

    op/<resource>/<site>/<incarnation>/<seq>   reply/<resource>/<site>/<incarnation>/<n>
    matrix/<hash>   started/<resource>   ledger/<resource>   clock   peers

Each part is percent-encoded, so any name will do. A key has one spelling; any other is refused, or one
document could be kept under two ids.
"""

import re
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from cheops.engine.documents import Key
from cheops.log.operation import Origin
from cheops.store.errors import CodecError
from cheops.text import printable, shortened

_MAX_ID_CHARACTERS = 50_000  # three names of the greatest length, every byte of them encoded
_NUMBER = re.compile("[1-9][0-9]{0,15}")
_NUMBERED = {kind: kind for kind in ("op", "reply")}
_NAMED = {kind: kind for kind in ("matrix", "started", "ledger")}
_SINGLE = {kind: kind for kind in ("clock", "peers")}
_PARTS = {**dict.fromkeys(_NUMBERED, 5), **dict.fromkeys(_NAMED, 2), **dict.fromkeys(_SINGLE, 1)}


def id_of(key: Key) -> str:
    """The text under which a key is kept and sent; raises CodecError."""
    try:
        return _id(*key)
    except (TypeError, ValueError, KeyError):  # ValueError: also half of a surrogate pair, which is no text
        raise CodecError(f"{printable(shortened(repr(key)))} is not the key of a document") from None


def _id(kind: Any, name: Any = None, origin: Any = None, number: Any = None) -> str:
    if origin is not None:
        site, incarnation = origin
        return f"{_NUMBERED[kind]}/{_quoted(name)}/{_quoted(site)}/{_quoted(incarnation)}/{number:d}"
    return f"{_NAMED[kind]}/{_quoted(name)}" if name is not None else _SINGLE[kind]


def key_of_id(id_: str) -> Key:
    """The opposite of `id_of`; raises CodecError."""
    kind, *rest = parts = id_.split("/") if len(id_) <= _MAX_ID_CHARACTERS else [""]
    if _PARTS.get(kind) == len(parts) and all(rest):
        key = _key(kind, rest)
        if key is not None and id_of(key) == id_:
            return key
    raise CodecError(f"'{printable(shortened(id_))}' is not the id of a document of Cheops")


_LOWER = str.maketrans("ABCDEFGHIJKLMNOPQRSTUVWXYZ", "abcdefghijklmnopqrstuvwxyz")


def ascii_lower(text: str) -> str:
    """A text as stores compare it in a search: SQLite has no other small letters."""
    return text.translate(_LOWER)


def resource_of(key: Key) -> str:
    """The resource that a document belongs to; empty for one of the site."""
    return str(key[1]) if len(key) > 1 and key[0] != "matrix" else ""


def _key(kind: str, parts: list[str]) -> Key | None:
    if not parts:
        return (kind,)
    try:
        names = [_unquoted(part) for part in parts[:3]]
    except UnicodeDecodeError:
        return None
    if len(parts) == 1:
        return (kind, names[0])
    if not _NUMBER.fullmatch(parts[3]):
        return None
    return (kind, names[0], Origin(names[1], names[2]), int(parts[3]))


@lru_cache(maxsize=4_096)
def _quoted(name: str) -> str:
    return quote(name, safe="")


@lru_cache(maxsize=4_096)
def _unquoted(part: str) -> str:
    return unquote(part, errors="strict")
