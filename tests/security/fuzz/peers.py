"""Targets: messages of a hostile site, as structured changes of real ones, through the whole receiving path.

An input is a message, a document or a heartbeat as plain JSON, which the mutator changes as a tree. Most of what comes
out would be dropped for its signature alone, so the target does what a hostile site does: it signs all that bears its
own name anew, packs it as its agent would, and sends it over a connection that its certificate has opened. Sometimes it
leaves the signatures as they were, or takes that of another document.
"""

from functools import cache
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from cheops.engine.documents import Base, Document, EpochRecord, Message, Piece, Report, Snapshot
from cheops.errors import CheopsError
from cheops.log.operation import (
    Command,
    FileRef,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Reply,
    Seal,
    Stamp,
    Statement,
    Status,
    Verdict,
    seal_hash,
)
from cheops.log.rules import Fate, Rule
from cheops.peers.couchdb.documents import RefusedError, couch_document, parse_document
from cheops.peers.links import EnvelopeError, pack
from cheops.store import codec
from cheops.store.interface import CodecError
from tests.security.fuzz.receiver import (
    HERE,
    HONEST,
    LYON,
    PARIS,
    RULES,
    SHARED,
    Receiver,
    of_paris,
    operation,
    signed,
)
from tests.security.fuzz.structure import restructured
from tests.security.fuzz.targets import JSON_TOKENS, Target

_UNCHANGED, _SWAPPED = 0, 1  # of eight inputs one keeps its signatures, and one has those of others


# -- samples -----------------------------------------------------------------------------------------------


def of_lyon(n: int, kind: Kind = Kind.NORMAL, **changes: Any) -> Operation:
    past = {PARIS: 2, **({LYON: n - 1} if n > 1 else {})}
    found: Operation = signed(operation(LYON, n, kind, **({"deps": past} | changes)), "lyon")
    return found


def _samples() -> tuple[Message, ...]:
    stamp = Stamp(1_700_000_000_500, 0, LYON)
    ref = MatrixRef(RULES.hash, Stamp(1_700_000_000_000, 0, PARIS))
    reply = Reply(SHARED, LYON, 1, OpId(PARIS, 1), "set", Status.OK, ("set", "inc"), output="OK")
    own = Reply(SHARED, LYON, 2, OpId(LYON, 1), "set", Status.KO, detail="no")
    root, origins, stable = Stamp(1_700_000_000_001, 0, PARIS), (LYON, PARIS), {PARIS: 2, LYON: 2}
    stated = seal_hash(stable, origins, root)
    seal = Seal(stable, root, origins, (signed(Statement(SHARED, PARIS, stated, 2), "paris"),))
    own_statement = signed(Statement(SHARED, LYON, stated, 2), "lyon")
    snapshot = Snapshot({PARIS: 1}, {LYON: 1}, Base({PARIS: 1}, Command("write 1")), ref, (), root=seal.root)
    fate = Fate(next(iter(Rule)), OpId(PARIS, 2))
    epochs = (EpochRecord(ref.introduced, {PARIS: 1}, ((OpId(PARIS, 1), fate),)),)
    head = (SHARED, LYON.incarnation)
    # In the short form: a group of reports, and replies below one another.
    said = Report(PARIS, 7, {PARIS: 2}, {PARIS: 1, LYON: 1}, {PARIS: 2}, "d")
    reports = (said, replace(said, origin=HERE, number=9, known_replies={PARIS: 1, LYON: 1, HERE: 1}))
    alike = [Reply(SHARED, LYON, n, OpId(PARIS, n), "set", Status.OK, output_hash=f"{n:024}") for n in (1, 2)]
    rows = tuple(signed(replace(one, op=OpId(PARIS, 1)), "lyon") for one in alike)
    return (
        Message(*head, (of_lyon(1),), rows, known={PARIS: 2, LYON: 1}, reports=reports, ages=(1, 2), for_others=True),
        Message(*head, (of_lyon(1), of_lyon(2)), (signed(reply, "lyon"),), (RULES,), {PARIS: 2, LYON: 2}, {LYON: 1}),
        Message(*head, (of_paris(SHARED, 1), of_paris(SHARED, 2), of_lyon(1)), known={PARIS: 2, LYON: 1}, ask=True),
        Message(*head, (of_lyon(1), of_lyon(2), of_lyon(3, Kind.SEAL, seal=seal, payload=Command(""), type="!seal"))),
        Message(*head, (of_lyon(1, Kind.DELETE),), (signed(reply, "lyon"), signed(own, "lyon")), settled={PARIS: 2}),
        Message(*head, (of_lyon(1, Kind.FORCE, payload=Command("f", (FileRef("f", "0" * 64, 1),))),), busy=True, digest="x"),
        Message(*head, (of_lyon(1, Kind.SITES, sites=("lyon", "here")),), wanted=(RULES.hash,)),
        Message(*head, (of_lyon(1, verdict=Verdict.VOID, why="no"),), replies_after={LYON: 0}),
        Message(*head, (of_paris(SHARED, 1),), matrices=(RULES,), known={PARIS: 8}, snapshot=snapshot),
        Message(*head, known={PARIS: 2}, snapshot=replace(snapshot, floor={PARIS: 2, HERE: 1}, epochs=epochs)),
        Message(*head, (of_paris(SHARED, 1),), matrices=(RULES,), known={PARIS: 8}, ask=True, piece=Piece("9f", 1, 2)),
        Message(*head, known={PARIS: 8}, ask=True, piece=Piece("9f", 2, 2), snapshot=snapshot),
        Message(*head, known={PARIS: 1}, source="here", held=Piece("9f", 1, 2)),
        Message(HONEST, LYON.incarnation, (of_paris(HONEST, 1),), known={PARIS: 2}, ask=True),
        Message(HONEST, LYON.incarnation, (of_lyon(1, resource=HONEST),), known={PARIS: 2, LYON: 1}),
        Message(HONEST, LYON.incarnation, known={PARIS: 2}, snapshot=replace(snapshot, floor={PARIS: 2}, base=None)),
        Message(*head, known=stable, settled=stable, seal_wanted={PARIS: 2}, seal_origins=(HERE, LYON, PARIS)),
        Message(*head, known=stable, statements=(own_statement,)),
        Message("fresh", LYON.incarnation, (of_lyon(1, resource="fresh", deps={}, sites=("lyon", "here")),)),
        Message("fresh", LYON.incarnation, (of_lyon(1, resource="fresh", deps={}, sites=("lyon", "here"), stamp=stamp),)),
    )  # fmt: skip


MESSAGES = _samples()
_ENCODED = tuple(map(codec.encode_message, MESSAGES))


def _readable(envelope: bytes) -> bytes:
    """An envelope as JSON, with its documents as such: so a change of structure reaches all of it."""
    site, documents, parts = msgspec.msgpack.decode(envelope)
    return msgspec.json.encode([site, [msgspec.Raw(one) for one in documents], _with_texts(parts)])


_BYTES = "bytes "  # before those that JSON does not have, in hexadecimal digits


def _with_texts(tree: Any) -> Any:
    if isinstance(tree, bytes):
        return _BYTES + tree.hex()
    if isinstance(tree, dict):
        return {key: _with_texts(value) for key, value in tree.items()}
    return [_with_texts(one) for one in tree] if isinstance(tree, list) else tree


def _with_bytes(tree: Any) -> Any:
    if isinstance(tree, str) and tree.startswith(_BYTES):
        return bytes.fromhex(tree.removeprefix(_BYTES))
    if isinstance(tree, dict):
        return {key: _with_bytes(value) for key, value in tree.items()}
    return [_with_bytes(one) for one in tree] if isinstance(tree, list) else tree


def _envelope(readable: bytes) -> bytes:
    """The opposite, as far as it is one."""
    try:
        site, documents, parts = msgspec.json.decode(readable)
        return msgspec.msgpack.encode([site, [msgspec.json.encode(one) for one in documents], _with_bytes(parts)])
    except (ValueError, TypeError, OverflowError, RecursionError):
        return readable


_BODIES = tuple(_readable(pack("lyon", [one])) for one in MESSAGES)
_DOCUMENTS: list[Document] = []
for _message_of_lyon in MESSAGES:
    _DOCUMENTS += [*_message_of_lyon.ops, *_message_of_lyon.replies]
_STORED = tuple(map(codec.encode, _DOCUMENTS))
_NAMES = (
    b'"lyon"',
    b'"paris"',
    b'"here"',
    b'"counter"',
    b'"honest"',
    b'"../../x"',
    b'"/etc/x"',
    b'"-x"',
    b'"a\\u001b"',
)
_NUMBERS = (b"9007199254740991", b"9007199254740992", b"1700000100000", b"1700000160001", b"253402300800000")
_TOKENS = (*JSON_TOKENS, *_NAMES, *_NUMBERS)


# -- targets -----------------------------------------------------------------------------------------------


def _resigned(document: Any, way: int) -> Any:
    if way == _UNCHANGED or document.origin.site != "lyon":
        return document
    return replace(document, signature=MESSAGES[0].ops[0].signature) if way == _SWAPPED else signed(document, "lyon")


def _message(data: bytes) -> None:
    """A message by the channel."""
    way, message = crc32(data) % 8, codec.decode_message(data)
    ops = tuple(_resigned(one, way) for one in message.ops)
    replies = tuple(_resigned(one, way) for one in message.replies)
    receiver = Receiver()
    receiver.take_body(pack("lyon", [replace(message, ops=ops, replies=replies)]))
    receiver.check()


def _twice(data: bytes) -> None:
    """Two messages, one after the other: the second may contradict the first."""
    receiver = Receiver()
    for line in data.split(b"\n")[:4]:
        message = codec.decode_message(line)
        ops = tuple(_resigned(one, 7) for one in message.ops)
        replies = tuple(_resigned(one, 7) for one in message.replies)
        receiver.take_body(pack("lyon", [replace(message, ops=ops, replies=replies)]))
    receiver.check()


def _body(data: bytes) -> None:
    """Any bytes by the channel."""
    receiver = Receiver()
    receiver.take_body(_envelope(data))
    receiver.check()


def _couch(data: bytes) -> None:
    """A document by CouchDB's protocol."""
    document = codec.decode(data)
    if not isinstance(document, Operation | Reply):
        return
    sent = couch_document(_resigned(document, crc32(data) % 8))
    parsed, _ = parse_document(msgspec.json.decode(sent.as_couch(history=True)))
    receiver = Receiver()
    try:
        receiver.accept([parsed])
    finally:
        receiver.check()


@cache
def _pairs() -> tuple[bytes, ...]:
    return tuple(b"\n".join((_ENCODED[0], one)) for one in _ENCODED) + tuple(
        b"\n".join((one, other)) for one in _ENCODED[2:5] for other in _ENCODED[7:9]
    )


PEERS: dict[str, Target] = {
    "peer-message": Target(_message, _ENCODED, (CodecError, EnvelopeError), _TOKENS, 60, make=restructured),
    "peer-messages": Target(_twice, _pairs(), (CodecError, EnvelopeError), _TOKENS, 30, make=restructured),
    "peer-body": Target(_body, _BODIES, (EnvelopeError, CodecError, RefusedError), _TOKENS, 20, make=restructured),
    "peer-document": Target(_couch, _STORED, (CheopsError,), _TOKENS, 40, make=restructured),
}
