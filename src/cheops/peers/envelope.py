"""Messages of an engine as bytes: an envelope in MessagePack, with each document in the form in which it is stored.

    [site, [document, …], [[message, [op, …], [[origin, [reply, …]], …], [matrix, …], short form, rows], …]]

A document is the very bytes that its origin signed, and that the store keeps. It is decoded once, by the receiver. A
message names its documents by their places in the list: several messages may carry the same document (a matrix, say),
and two contents under one id, which are proof against their origin, are just two documents. Replies are grouped by
origin, so that a reply that cannot be read leaves a hole with its origin only. What a message says of origins, and
replies that are like others, have a short form (short_form.py).

A document or message that is wrong costs its sender that one, and nothing else. An envelope without documents and
messages says that its sender does not know a list of origins that the receiver has referred to (origin_tables.py).
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from cheops.engine.documents import Document, Message, key_of
from cheops.errors import CheopsError, Fault
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Origin, Reply
from cheops.peers import short_form
from cheops.peers.origin_tables import OriginTables, UnknownListError
from cheops.peers.short_form import MOST_ENTRIES, Budget, ReplyRows, ShortForm
from cheops.store import codec
from cheops.store.interface import CodecError
from cheops.text import printable, shortened

T = TypeVar("T")
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_NOT_SHARED = "documents of this kind are not shared between sites"


class EnvelopeError(CheopsError):
    """A peer sent a body that does not have the form described above."""

    fault = Fault.PEER
    status = 400


# A sender puts a fraction of these into one envelope (links.py, engine/settings.py). An item of one byte becomes an
# object of a hundred, and zlib makes a thousand bytes of one: without limits a few kilobytes would fill the memory.
MOST_DOCUMENTS = 50_000  # also of those that messages name: one document may be named many times
MOST_MESSAGES = 1_000
_MOST_REFUSED = 200  # documents that cannot be read: who sends more has read none of them, or is hostile
_MOST_SHORT_BYTES = 8 * 1024 * 1024  # of the short form of one message, and of each list of it; of reports, of all

_Places = Annotated[list[int], msgspec.Meta(max_length=MOST_DOCUMENTS)]  # in the list of documents
_PlacesByOrigin = Annotated[list[tuple[str, _Places]], msgspec.Meta(max_length=MOST_DOCUMENTS)]
_Rows = Annotated[list[ReplyRows], msgspec.Meta(max_length=MOST_DOCUMENTS)]
_NONE = msgspec.Raw(b"\xc0")
_EMPTY = msgspec.Raw(b"\x90")  # a list


class _Part(msgspec.Struct, array_like=True):
    message: msgspec.Raw  # without its documents
    ops: _Places = []
    replies: msgspec.Raw = _EMPTY  # _PlacesByOrigin
    matrices: _Places = []
    short: msgspec.Raw = _NONE  # a ShortForm, or none
    rows: msgspec.Raw = _EMPTY  # _Rows


class _Said(msgspec.Struct):
    """The member of a message that may be many times as large in memory."""

    reports: msgspec.Raw = _EMPTY


class _Envelope(msgspec.Struct, array_like=True):
    """Its messages are read one by one: what is wrong with one of them costs no other, and each has its own limits."""

    site: Annotated[str, msgspec.Meta(max_length=128)]
    documents: Annotated[list[bytes], msgspec.Meta(max_length=MOST_DOCUMENTS)]
    parts: Annotated[list[msgspec.Raw], msgspec.Meta(max_length=MOST_MESSAGES)]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Envelope)
_part_decoder = msgspec.msgpack.Decoder(_Part)
_short_decoder = msgspec.msgpack.Decoder(ShortForm)
_replies_decoder = msgspec.msgpack.Decoder(_PlacesByOrigin)
_rows_decoder = msgspec.msgpack.Decoder(_Rows)
_said_decoder = msgspec.msgpack.Decoder(_Said)


_COMPRESSED = (b"x", b"X")  # the first byte of zlib's form, by its window; that of an envelope is 0x93
_SMALL_BYTES = 16_384  # for these a small window is enough, which is set up in a tenth of the time
_LARGE_WINDOW, _SMALL_WINDOW = 15, 13
_LARGE_MEMORY, _SMALL_MEMORY = 8, 6
# What every envelope has: zlib refers to it instead of repeating it. It must be the same at all sites, and zlib checks
# that: to change it, a reader must first know both.
_WORDS = (
    b'"verdict":"VOID","why":""SUPERSEDED","kind":"delete","parallel":true,"wiped":["replay":true,"status":"KO"'
    b'"detail":"","status":"UNKNOWN"\xa3ask\xc3\xa4pull\xc3\xa6wanted\xa6source\xa4busy\xc3\xa5ready\xc3\xa6closed\xc3'
    b'{"doc":"op","resource":"","rtype":"","type":"","kind":"normal","payload":{"line":"","files":[["'
    b'"},"origin":"","seq":1,"deps":{"":1},"stamp":[170000,0,""],"matrix":["",[170000,0,""]],"sites":["","verdict":"OK"'
    b'{"doc":"reply","resource":"","origin":"","n":1,"op":["",1],"key":"","status":"OK","output":"","timing":[170000,'
    b'"output_hash":"","signature":"\xa9unreached\xa9signature\xaafor_others\xc3\x91\x96\xde\x00\x06\xa3doc\xa7message'
    b"\xa8resource\xabincarnation\xac\xa6digest\xb0\xa7summary\xd92\xa6number\xcf\x00\x00\x01"
)


# A copy of it takes half the time in which a new one reads the words.
_small_stream = zlib.compressobj(1, zlib.DEFLATED, _SMALL_WINDOW, _SMALL_MEMORY, zdict=_WORDS)


def compressed(body: bytes) -> bytes:
    """A body in a shorter form, which `unpack` reads as well."""
    if len(body) <= _SMALL_BYTES:
        stream = _small_stream.copy()
    else:
        stream = zlib.compressobj(1, zlib.DEFLATED, _LARGE_WINDOW, _LARGE_MEMORY, zdict=_WORDS)
    return stream.compress(body) + stream.flush()


def readable(body: bytes) -> bytes:
    """An envelope in MessagePack, whether it was compressed or not. Stops at the limit: a small body may expand to
    gigabytes."""
    if not body.startswith(_COMPRESSED):
        return body
    stream = zlib.decompressobj(zdict=_WORDS)
    try:
        expanded = stream.decompress(body, codec.MAX_MESSAGE_BYTES + 1)
    except zlib.error as error:
        raise EnvelopeError(f"not messages of a site: {error}") from None
    if len(expanded) > codec.MAX_MESSAGE_BYTES:
        raise EnvelopeError(f"messages of more than {codec.MAX_MESSAGE_BYTES:,} bytes", status=413)
    if not stream.eof or stream.unused_data:
        raise EnvelopeError("not messages of a site: their compressed form is incomplete, or too long")
    return expanded


def is_larger(body: bytes, most_bytes: int) -> bool:
    """Whether an envelope has more bytes than this, also once it is expanded."""
    if len(body) > most_bytes or not body.startswith(_COMPRESSED):
        return len(body) > most_bytes
    try:
        return len(zlib.decompressobj(zdict=_WORDS).decompress(body, most_bytes + 1)) > most_bytes
    except zlib.error:
        return False  # `readable` refuses it


def pack(site: str, messages: Iterable[Message], to: str = "", tables: OriginTables | None = None) -> bytes:
    """The envelope of these messages `to` a site; without its name, it may be for any. `tables` is what that site
    knows."""
    writer = _Writer(site, to, tables or OriginTables())
    parts = [msgspec.Raw(_encoder.encode(writer.part(message))) for message in messages]
    return _encoder.encode(_Envelope(site, list(writer.places), parts))


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(_encoder.encode(value))


class _Writer:
    """Writes one envelope."""

    def __init__(self, site: str, to: str, tables: OriginTables) -> None:
        self.places: dict[bytes, int] = {}  # of documents
        self._site = site
        self._to = to
        self._tables = tables

    def _place(self, document: Document) -> int:
        return self.places.setdefault(codec.stored_form(document), len(self.places))

    def part(self, message: Message) -> _Part:
        ops, matrices = [self._place(op) for op in message.ops], [self._place(one) for one in message.matrices]
        bare = message
        if message.ops or message.replies or message.matrices:
            bare = msgspec.structs.replace(message, ops=(), replies=(), matrices=())
        origins = short_form.origins_of(message)
        if origins is None:
            alone = [[reply] for reply in self._replies_of(message)]
            return _Part(msgspec.Raw(codec.pack_message(bare)), ops, _raw(self._firsts(alone)), matrices)
        places = {origin: place for place, origin in enumerate(origins)}
        short = short_form.shortened(message, places)
        short.names = self._tables.form_of(origins)
        alike = short_form.alike(self._replies_of(message))
        rows = [short_form.rows_below(first, self._place(first), others, places) for first, *others in alike if others]
        raw = msgspec.Raw(codec.pack_message(short_form.without_short(bare)))
        return _Part(raw, ops, _raw(self._firsts(alike)), matrices, _raw(short), _raw(rows))

    def _firsts(self, alike: Iterable[Sequence[Reply]]) -> list[tuple[str, _Places]]:
        """The first ones of these groups."""
        replies: dict[str, _Places] = {}
        for first, *_ in alike:
            replies.setdefault(str(first.origin), []).append(self._place(first))
        return list(replies.items())

    def _replies_of(self, message: Message) -> list[Reply]:
        """Outputs go to the site that made the operation, because a client waits there; or to the one that passes them
        on to it. Others fetch one if somebody looks at it (node/document_fetcher.py)."""

        def has_output(reply: Reply) -> bool:
            return (
                not self._to
                or (reply.op is not None and reply.op.origin.site == self._to)
                or (message.for_others and reply.origin.site == self._site)
            )

        return [reply if has_output(reply) else reply.without_output() for reply in message.replies]


class Refused(NamedTuple):
    """A document or message that cannot be taken."""

    id: str  # empty if it cannot be read
    reason: str


class Unpacked(NamedTuple):
    """What an envelope holds."""

    site: str
    messages: list[Message]
    refused: list[Refused]
    is_unknown: bool = False  # some messages refer to lists of origins that are not known here


TablesOf = Callable[[str], OriginTables]  # of the site that an envelope names as its sender


def unpack(body: bytes, tables_of: TablesOf = lambda _sender: OriginTables()) -> Unpacked:
    """The sender and its messages, with everything checked; raises EnvelopeError for a body that is none at all."""
    expanded = readable(body)
    try:
        read = _decoder.decode(expanded)
    except _UNREADABLE as error:
        raise EnvelopeError(f"not messages of a site: {printable(shortened(str(error), 300))}") from None
    refused: list[Refused] = []
    documents = [_document(raw, refused) for raw in read.documents]
    if len(refused) >= _MOST_REFUSED:
        refused.append(Refused("", "too many documents that cannot be read; no others were looked at"))
    messages, budgets, tables, is_unknown = [], _Budgets(), tables_of(read.site), False
    if not read.documents and not read.parts:
        tables.forget_shown()
    for raw in read.parts:
        try:
            messages.append(_message(_part_decoder.decode(raw), documents, tables, budgets))
        except UnknownListError:
            is_unknown = True
        except (CodecError, ValueError, *_UNREADABLE) as error:
            refused.append(Refused("", printable(shortened(str(error), 300))))
    return Unpacked(read.site, messages, refused, is_unknown)


def _document(raw: bytes, refused: list[Refused]) -> Document | None:
    if len(refused) >= _MOST_REFUSED:
        return None
    try:
        document = codec.decode(raw)
    except CodecError as error:
        refused.append(Refused(_name(raw), str(error)))
        return None
    if codec.is_shared(document):
        return document
    refused.append(Refused(codec.id_of(key_of(document)), _NOT_SHARED))
    return None


class _Named(msgspec.Struct):
    doc: str
    resource: str
    origin: str
    seq: int | None = None
    n: int | None = None


def _name(raw: bytes) -> str:
    """The id that a document claims which cannot be read; empty if even that cannot be."""
    try:
        claimed = msgspec.json.decode(raw, type=_Named)
    except _UNREADABLE:
        return ""
    number = claimed.n if claimed.seq is None else claimed.seq
    return printable(shortened(f"{claimed.doc}/{claimed.resource}/{claimed.origin}/{number}"))


class _Budgets:
    """What all messages of an envelope may have together."""

    def __init__(self) -> None:
        self.entries = Budget(MOST_ENTRIES, "numbers")
        self.documents = Budget(MOST_DOCUMENTS, "documents")
        self.reports = Budget(_MOST_SHORT_BYTES, "bytes of reports without a short form")


def _message(part: _Part, documents: Sequence[Document | None], tables: OriginTables, budgets: _Budgets) -> Message:
    """A message with its documents, as far as they are there; raises CodecError or ValueError."""
    budgets.reports.spend(memoryview(_said_decoder.decode(part.message).reports).nbytes)
    bare = codec.unpack_message(bytes(part.message))
    if bare.ops or bare.replies or bare.matrices:
        raise CodecError("a message names its documents, and holds none")
    origins: tuple[Origin, ...] = ()
    if part.short != _NONE:
        short = _bounded(part.short, _short_decoder)
        origins = tables.read(short.names)
        bare = short_form.expanded(bare, short, origins, budgets.entries)
    else:
        budgets.entries.spend(sum(map(len, (bare.known, bare.known_replies, bare.replies_after, bare.settled))))
    replies_at = _bounded(part.replies, _replies_decoder)
    rows = _bounded(part.rows, _rows_decoder)
    budgets.documents.spend(len(bare.reports))  # each has a signature to check
    if not (part.ops or replies_at or part.matrices):
        return bare
    named = len(part.ops) + len(part.matrices) + sum(len(places) for _, places in replies_at)
    budgets.documents.spend(named + sum(len(some.sites) for some in rows))

    def at(places: _Places) -> list[Document | None]:
        return [documents[place] if 0 <= place < len(documents) else None for place in places]

    ops, matrices = at(part.ops), at(part.matrices)
    replies = [(origin, at(places)) for origin, places in replies_at]
    more, holes = _replies_in_rows(rows, documents, origins)
    # A document of another resource stays in: the engine refuses it, and counts that. See engine/intake.py.
    whole = msgspec.structs.replace(
        bare,
        ops=tuple(one for one in ops if isinstance(one, Operation)),
        replies=(*(one for _, some in replies for one in some if isinstance(one, Reply)), *more),
        matrices=tuple(one for one in matrices if isinstance(one, Matrix)),
    )
    holes.update(origin for origin, some in replies if not all(isinstance(one, Reply) for one in some))
    if not holes and len(whole.ops) == len(ops) and len(whole.matrices) == len(matrices):
        return whole
    return _without_counts(whole, holes)


def _bounded(raw: msgspec.Raw, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """A part of a message that may be eight times as large in memory; raises ValueError if that is too much."""
    if memoryview(raw).nbytes > _MOST_SHORT_BYTES:
        raise ValueError(f"a part of a message with more than {_MOST_SHORT_BYTES:,} bytes")
    return decoder.decode(raw)


def _replies_in_rows(
    rows: Iterable[ReplyRows], documents: Sequence[Document | None], origins: Sequence[Origin]
) -> tuple[list[Reply], set[str]]:
    """The replies in rows, and the origins of those whose first one is missing; raises ValueError."""
    found: list[Reply] = []
    holes: set[str] = set()
    for some in rows:
        first = documents[some.like] if 0 <= some.like < len(documents) else None
        if isinstance(first, Reply):
            found += short_form.replies_in(some, first, origins)
        else:
            holes |= short_form.sites_in(some, origins)
    return found, holes


def _without_counts(message: Message, holes: set[str]) -> Message:
    """A message some of whose documents are missing, without what would count them as received."""
    if message.snapshot or message.piece:  # it is valid only as a whole
        return msgspec.structs.replace(message, ops=(), replies=(), snapshot=None, piece=None, replies_after={})
    after = {origin: n for origin, n in message.replies_after.items() if origin not in holes}
    return msgspec.structs.replace(message, replies_after=after)
