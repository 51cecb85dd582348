"""Documents, messages and keys as text: JSON for storing and sending, and ids as CouchDB has them.

The types themselves declare their JSON form and its limits (cheops.log.operation, cheops.engine.documents). Data to
decode may come from anywhere: it is checked in full (types, required fields, sizes), and whatever is wrong with it, the
error is a CodecError. What is encoded is decoded once as a check: nothing is stored that could not be read. Equal
documents give equal bytes, so a hash or a signature covers their content.

    origin  "paris/3f2a"          stamp   [1700000000000, 0, "paris/3f2a"]
    op id   ["paris/3f2a", 7]     vector  {"lyon/91c0": 2, "paris/3f2a": 7}

The id of a document is its key as text:

    op/<resource>/<site>/<incarnation>/<seq>   reply/<resource>/<site>/<incarnation>/<n>
    proof/<resource>/<site>/<incarnation>/<seq>   matrix/<hash>   statement/<resource>
    withdrawn/<resource>/<site>/<incarnation>/<seq>   inherited/<resource>
    started/<resource>   ledger/<resource>   clock   peers   lineage

Each part is percent-encoded, so any name is possible. A key has one spelling, and any other is refused: otherwise one
document could be stored under two ids.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Annotated, Any, TypeAlias, TypeVar, get_args
from urllib.parse import quote, unquote

import msgspec

from cheops.engine.documents import (
    Document,
    Drops,
    EpochRecord,
    Inherited,
    Key,
    Ledger,
    Lineage,
    Message,
    Peers,
    Proof,
    Report,
    SiteClock,
    Started,
    Withdrawn,
)
from cheops.log import operation
from cheops.log.matrix import Entry, Matrix, MatrixError
from cheops.log.operation import (
    DocumentBase,
    Name,
    Operation,
    Origin,
    Reply,
    Statement,
    encode_value,
    parse_origin,
    signature_member,
    unsigned,
)
from cheops.matrix_file import MAX_ENTRIES, MAX_TYPES, type_problem
from cheops.store.interface import CodecError
from cheops.text import printable, shortened

VERSION = 1  # of the format, see DocumentBase
MAX_DOCUMENT_BYTES = 8_000_000  # CouchDB's default limit
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

_MOST_KNOWN_MATRICES, _MOST_KNOWN_ENTRIES = 128, 100  # remembered, and the entries of one: larger ones are rare

_T = TypeVar("_T")
_DOCUMENT_TYPES = get_args(Document)
_ALWAYS_SHARED = (Reply, Matrix)
# What msgspec and the constructors of our types raise for bad data; RecursionError is for deep nesting.
_FOREIGN = (msgspec.MsgspecError, MatrixError, ValueError, TypeError, OverflowError, RecursionError)


class _Versioned(msgspec.Struct):
    v: int


# -- how msgspec reads and writes the types that it does not know ----------------------------------------------


class _MatrixDocument(DocumentBase, frozen=True, tag="matrix"):
    """A matrix as JSON. The one document that is not its own JSON form: a `Matrix` computes a lot from its entries,
    and must not do so before their number is checked."""

    hash: Name
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(max_length=MAX_ENTRIES)]

    def to_matrix(self) -> Matrix:
        """Raises ValueError or MatrixError."""
        is_small = len(self.entries) <= _MOST_KNOWN_ENTRIES
        matrix = _known_matrix(self.entries) if is_small else _matrix(self.entries)
        if matrix.hash != self.hash:
            raise ValueError(f"the entries of matrix {self.hash} give another hash, {matrix.hash}")
        return matrix


def _matrix(entries: tuple[Entry, ...]) -> Matrix:
    types = {name for entry in entries for name in (entry.before, entry.after)}
    if len(types) > MAX_TYPES:
        raise ValueError(f"a matrix has at most {MAX_TYPES} types, not {len(types):,}")
    if problem := next(filter(None, map(type_problem, types)), None):
        raise ValueError(problem)
    return Matrix(entries)


# Every message about a new resource has its matrix, and a site knows few different ones.
_known_matrix = lru_cache(maxsize=_MOST_KNOWN_MATRICES)(_matrix)


def _encode_value(value: object) -> object:
    if isinstance(value, Origin):  # first: there are several in every document
        return str(value)
    return _MatrixDocument(value.hash, value.entries) if isinstance(value, Matrix) else encode_value(value)


def _decode_value(type_: type, value: Any) -> object:
    if type_ is Origin and isinstance(value, str):
        return parse_origin(value)
    if type_ is Matrix:
        return msgspec.convert(value, _MatrixDocument).to_matrix()
    raise TypeError(f"expected {type_.__name__}, got {type(value).__name__}")


# Deterministic: dictionaries and sets are sorted, so equal documents have equal bytes at every site.
_encoder = msgspec.json.Encoder(enc_hook=_encode_value, order="deterministic")
_Decoded: TypeAlias = (
    Operation
    | Reply
    | _MatrixDocument
    | Statement
    | Started
    | Ledger
    | Proof
    | Withdrawn
    | Inherited
    | Lineage
    | Drops
    | SiteClock
    | Peers
)
_documents: msgspec.json.Decoder[_Decoded] = msgspec.json.Decoder(_Decoded, dec_hook=_decode_value)
_messages = msgspec.json.Decoder(Message, dec_hook=_decode_value)
# Between agents, where nothing is hashed or signed: MessagePack is smaller.
_packer = msgspec.msgpack.Encoder(enc_hook=_encode_value)
_packed_messages = msgspec.msgpack.Decoder(Message, dec_hook=_decode_value)


# -- documents -------------------------------------------------------------------------------------------


def encode(document: Document) -> bytes:
    """A document as bytes; raises CodecError for one that could not be decoded again."""
    if not isinstance(document, _DOCUMENT_TYPES):
        raise CodecError(f"a {type(document).__name__} is not a document")
    return _encode(document, _decode_document, MAX_DOCUMENT_BYTES)


def stored_form(document: Document) -> bytes:
    """The bytes of a document that was stored or decoded here, so it is not checked again. The same as those that are
    stored, and that its signature covers: equal documents have equal bytes."""
    return _encoder.encode(document)


def decode(data: bytes) -> Document:
    """The document in these bytes; raises CodecError."""
    return _decode(data, MAX_DOCUMENT_BYTES, "document", _decode_document)


def from_json(obj: Mapping[str, Any]) -> Document:
    """The document in plain data; unknown fields, such as `_id`, are ignored. Raises CodecError."""
    return decode(encode_plain(obj))


def content_of(document: Operation | Reply | Statement) -> bytes:
    """The bytes that the signature of a document covers."""
    if isinstance(document, Operation):
        return operation.content_of(document)
    covered = document.without_output() if isinstance(document, Reply) else document
    return unsigned(_encoder.encode(covered), document.signature)


def encode_report(resource: str, report: Report) -> bytes:
    """A report on a resource as bytes: equal ones give equal bytes."""
    return _encoder.encode((resource, report))


def signed(body: bytes, signature: str) -> bytes:
    """The bytes of a document, with a signature added."""
    return body.removesuffix(b"}") + signature_member(signature)


def is_shared(document: Document) -> bool:
    """Whether the document goes to other sites: drafts and a site's own notes do not."""
    return document.verdict is not None if isinstance(document, Operation) else isinstance(document, _ALWAYS_SHARED)


# -- messages --------------------------------------------------------------------------------------------


def encode_message(message: Message) -> bytes:
    return _encode(message, _messages.decode, MAX_MESSAGE_BYTES)


def decode_message(data: bytes) -> Message:
    """The message in these bytes; raises CodecError."""
    return _decode(data, MAX_MESSAGE_BYTES, "message", lambda raw: _checked_message(_messages.decode(raw)))


def pack_message(message: Message) -> bytes:
    """As MessagePack. The engine made it, so it is not checked."""
    return _packer.encode(message)


def unpack_message(data: bytes) -> Message:
    """The opposite of `pack_message`; raises CodecError."""
    return _decode(
        data, MAX_MESSAGE_BYTES, "message", lambda raw: _checked_message(_packed_messages.decode(raw)), msgspec.msgpack
    )


# -- both ------------------------------------------------------------------------------------------------


def _decode_document(data: bytes) -> Document:
    document = _documents.decode(data)
    if isinstance(document, Operation):  # first: most are
        return document
    if isinstance(document, _MatrixDocument):
        return document.to_matrix()
    if isinstance(document, Ledger):
        _check_epochs(document.epochs)
    return document


def _checked_message(message: Message) -> Message:
    if not all(map(is_shared, message.ops)):
        raise ValueError("it holds a draft: an operation goes to others with its verdict")
    documents: tuple[Operation | Reply | Statement, ...] = (*message.ops, *message.replies, *message.statements)
    others = {document.resource for document in documents} - {message.resource}
    if others:
        raise ValueError(f"it is about '{message.resource}' and holds a document of '{others.pop()}'")
    if message.snapshot:
        _check_epochs(message.snapshot.epochs)
    return message


def _check_epochs(epochs: Iterable[EpochRecord]) -> None:
    """They become dictionaries, in which one of two equal keys would be lost."""
    _check_distinct([epoch.introduced for epoch in epochs])
    for epoch in epochs:
        _check_distinct([id_ for id_, _ in epoch.settled])


def _check_distinct(keys: list[Any]) -> None:
    if len(set(keys)) < len(keys):
        raise ValueError("an epoch is given twice, or an operation twice in one epoch")


def _decode(data: bytes, limit: int, what: str, decode_: Callable[[bytes], _T], form: Any = msgspec.json) -> _T:
    if len(data) > limit:
        raise CodecError(f"a {what} of {len(data):,} bytes; at most {limit:,} are accepted")
    try:
        return decode_(data)
    except _FOREIGN as error:
        raise CodecError(_reason(data, what, error, form)) from None


def _reason(data: bytes, what: str, error: BaseException, form: Any) -> str:
    """If the format is newer, say only that: any other complaint would mislead."""
    try:
        version = form.decode(data, type=_Versioned).v
    except _FOREIGN:
        version = VERSION
    if version > VERSION:
        return f"a {what} in version {version} of the format; this agent reads up to {VERSION}: upgrade it"
    return f"not a {what} of Cheops: {printable(shortened(str(error), 300))}"


def _encode(value: Document | Message, check: Callable[[bytes], object], limit: int) -> bytes:
    try:
        data = _encoder.encode(value)
        check(data)
    except _FOREIGN as error:
        raise CodecError(f"this cannot be stored or sent: {printable(shortened(str(error), 300))}") from None
    if len(data) > limit:
        raise CodecError(f"this has {len(data):,} bytes, too many to be stored or sent; at most {limit:,} are accepted")
    return data


def encode_plain(obj: Mapping[str, Any]) -> bytes:
    """Any plain data as JSON; raises CodecError."""
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
_NUMBERED = {kind: kind for kind in ("op", "reply", "proof", "withdrawn")}
_NAMED = {kind: kind for kind in ("matrix", "statement", "started", "ledger", "inherited")}
_SINGLE = {kind: kind for kind in ("clock", "peers", "lineage", "drops")}
_PARTS = {**dict.fromkeys(_NUMBERED, 5), **dict.fromkeys(_NAMED, 2), **dict.fromkeys(_SINGLE, 1)}


def id_of(key: Key) -> str:
    """A key as text; raises CodecError."""
    try:
        return _id(*key)
    except (TypeError, ValueError, KeyError, AttributeError):  # ValueError: also half of a surrogate pair
        raise CodecError(f"{printable(shortened(repr(key)))} is not the key of a document") from None


def _id(kind: Any, name: Any = None, origin: Any = None, number: Any = None) -> str:
    if origin is not None:
        return f"{_NUMBERED[kind]}/{_quoted(name)}/{_quoted(origin.site)}/{_quoted(origin.incarnation)}/{number:d}"
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
    """A text as stores compare it in a search: SQLite's `lower` knows ASCII only."""
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
    if not _NUMBER.fullmatch(parts[3]) or "/" in names[2]:
        return None
    return (kind, names[0], Origin(names[1], names[2]), int(parts[3]))


@lru_cache(maxsize=512)  # names have up to 1,000 characters
def _quoted(name: str) -> str:
    return quote(name, safe="")


@lru_cache(maxsize=512)
def _unquoted(part: str) -> str:
    return unquote(part, errors="strict")
