"""Documents, messages and keys as text: JSON for storing and sending, and the ids that CouchDB knows them by.

What is read may come from anywhere. It is checked in full (types, required fields, sizes), and whatever is
wrong with it, the error is a CodecError. What is written is held to the same: nothing is stored that could
not be read. Equal documents give equal bytes, so a hash of them can stand for their content.

The id of a document is its key as text:

    op/<resource>/<site>/<incarnation>/<seq>   reply/<resource>/<site>/<incarnation>/<n>
    matrix/<hash>   started/<resource>   ledger/<resource>   clock   peers

Each part is percent-encoded, so any name will do. A key has one spelling; any other is refused, or one
document could be stored under two ids.
"""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote, unquote

import msgspec

from cheops.engine.documents import Document, Key
from cheops.engine.messages import Message
from cheops.log.matrix import Matrix, MatrixError
from cheops.log.operation import Operation, Origin, Reply
from cheops.store.converter import VERSION
from cheops.store.forms import CONVERTERS, MESSAGE, DocumentForm, MessageForm
from cheops.store.interface import CodecError
from cheops.text import printable, shortened

MAX_DOCUMENT_BYTES = 8_000_000  # what a CouchDB takes unless it is told otherwise
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_T = TypeVar("_T")
_documents: msgspec.json.Decoder[Any] = msgspec.json.Decoder(DocumentForm)
_messages: msgspec.json.Decoder[Any] = msgspec.json.Decoder(MessageForm)
_encoder = msgspec.json.Encoder()
_unpackers = {converter.form: converter.unpack for converter in CONVERTERS.values()}
_FOREIGN = (msgspec.MsgspecError, MatrixError, ValueError, TypeError, OverflowError, RecursionError)


class _Versioned(msgspec.Struct):
    v: int


# -- documents -------------------------------------------------------------------------------------------


def encode(document: Document) -> bytes:
    """A document as bytes; raises CodecError for one that could not be read again."""
    converter = CONVERTERS.get(type(document))
    if converter is None:
        raise CodecError(f"a {type(document).__name__} is not a document")
    # Of the others, the form says all that there is to check; a matrix may contradict itself.
    check = _document if isinstance(document, Matrix) else _documents.decode
    return _written(converter.pack(document), check, MAX_DOCUMENT_BYTES)


def decode(data: bytes) -> Document:
    """The document in these bytes; raises CodecError."""
    return _read(data, MAX_DOCUMENT_BYTES, "document", _document)


def to_json(document: Document) -> dict[str, Any]:
    """A document as plain data: what a JSON reader makes of `encode`."""
    return decode_plain(encode(document))


def from_json(obj: Mapping[str, Any]) -> Document:
    """The document in plain data; fields that are not known, such as `_id`, do no harm. Raises CodecError."""
    return decode(encode_plain(obj))


def content_of(document: Operation | Reply) -> bytes:
    """What the signature of a document that was read is about."""
    return unsigned(_encoder.encode(CONVERTERS[type(document)].pack(document)), document.signature)


def unsigned(body: bytes, signature: str) -> bytes:
    """What a signature is about: the bytes of a document without it. It stands last, in plain characters."""
    return body.removesuffix(_signature_member(signature)) + b"}" if signature else body


def signed(body: bytes, signature: str) -> bytes:
    """The bytes of a document that had no signature, with one."""
    return body.removesuffix(b"}") + _signature_member(signature)


def _signature_member(signature: str) -> bytes:
    return b',"signature":"%b"}' % signature.encode("ascii")


def is_shared(document: Document) -> bool:
    """Whether other sites may have it: a draft and what a site notes for itself are its own affair."""
    return isinstance(document, Reply | Matrix) or (isinstance(document, Operation) and document.verdict is not None)


# -- messages --------------------------------------------------------------------------------------------


def encode_message(message: Message) -> bytes:
    return _written(MESSAGE.pack(message), _messages.decode, MAX_MESSAGE_BYTES)


def decode_message(data: bytes) -> Message:
    """The message in these bytes; raises CodecError."""
    return _read(data, MAX_MESSAGE_BYTES, "message", _message)


def message_to_json(message: Message) -> dict[str, Any]:
    return decode_plain(encode_message(message))


def message_from_json(obj: Mapping[str, Any]) -> Message:
    """The message in plain data; raises CodecError."""
    return decode_message(encode_plain(obj))


# -- both ------------------------------------------------------------------------------------------------


def _document(data: bytes) -> Document:
    form = _documents.decode(data)
    document: Document = _unpackers[type(form)](form)
    return document


def _message(data: bytes) -> Message:
    message: Message = MESSAGE.unpack(_messages.decode(data))
    if not all(map(is_shared, message.ops)):
        raise ValueError("it holds a draft: an operation goes to others with its verdict")
    documents: tuple[Operation | Reply, ...] = (*message.ops, *message.replies)
    strangers = {document.resource for document in documents} - {message.resource}
    if strangers:
        raise ValueError(f"it is about '{message.resource}' and holds a document of '{strangers.pop()}'")
    return message


def _read(data: bytes, limit: int, what: str, read: Callable[[bytes], _T]) -> _T:
    if len(data) > limit:
        raise CodecError(f"a {what} of {len(data):,} bytes; at most {limit:,} are accepted")
    try:
        return read(data)
    except _FOREIGN as error:
        raise CodecError(_reason(data, what, error)) from None


def _reason(data: bytes, what: str, error: BaseException) -> str:
    """A newer format first: what else is wrong would only mislead."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).v
    except _FOREIGN:
        version = VERSION
    if version > VERSION:
        return f"a {what} in version {version} of the format; this agent reads up to {VERSION}: upgrade it"
    return f"not a {what} of Cheops: {printable(shortened(str(error), 300))}"


def _written(form: msgspec.Struct, check: Callable[[bytes], object], limit: int) -> bytes:
    try:
        data = _encoder.encode(form)
        check(data)
    except _FOREIGN as error:
        raise CodecError(f"this cannot be kept or sent: {printable(shortened(str(error), 300))}") from None
    if len(data) > limit:
        raise CodecError(f"this has {len(data):,} bytes, too many to be kept or sent; at most {limit:,} are accepted")
    return data


def encode_plain(obj: Mapping[str, Any]) -> bytes:
    """Plain data as JSON, also what is no document; raises CodecError."""
    try:
        return _encoder.encode(dict(obj))
    except _FOREIGN as error:
        raise CodecError(f"not plain JSON data: {printable(shortened(str(error), 300))}") from None


def decode_plain(data: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except _FOREIGN as error:
        raise CodecError(f"not plain JSON data: {printable(shortened(str(error), 300))}") from None


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
