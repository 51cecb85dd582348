"""The messages that sites exchange about one resource: documents, and what the sender knows and has applied.

There is one kind of message. Without documents it is an acknowledgement, or a question (`ask`). A *snapshot* is for
a site that lacks what others have forgotten: it holds everything that is left, and up to where that counts.
"""

from collections.abc import Mapping

from msgspec import Struct, field

from cheops.log.history import Epoch
from cheops.log.matrix import Matrix
from cheops.log.operation import (
    Command,
    DocumentBase,
    Incarnation,
    MatrixRef,
    Name,
    Operation,
    OpId,
    OptionalName,
    Reply,
    Stamp,
    Vector,
)
from cheops.log.rules import Fate


class Base(Struct, frozen=True):
    """A checkpoint: the state after everything up to `vector`, as the command that writes it."""

    vector: Vector
    write: Command


class EpochRecord(Struct, frozen=True, array_like=True):
    """An `Epoch` as it is stored and sent. A tuple of them, in order: JSON has no keys that are stamps."""

    introduced: Stamp
    past: Vector
    settled: tuple[tuple[OpId, Fate], ...]


def epoch_records(epochs: Mapping[Stamp, Epoch]) -> tuple[EpochRecord, ...]:
    return tuple(
        EpochRecord(introduced, epochs[introduced].past, tuple(sorted(epochs[introduced].settled.items(), key=_id)))
        for introduced in sorted(epochs)
    )


def _id(item: tuple[OpId, Fate]) -> OpId:
    return item[0]


def epochs_from(records: tuple[EpochRecord, ...]) -> dict[Stamp, Epoch]:
    return {record.introduced: Epoch(record.past, dict(record.settled)) for record in records}


class Snapshot(Struct, frozen=True, omit_defaults=True):
    floor: Vector
    reply_floor: Vector
    base: Base | None
    adopted: MatrixRef | None
    epochs: tuple[EpochRecord, ...]
    rejected_matrices: frozenset[Stamp] = field(default_factory=frozenset)
    root: Stamp | None = None  # distinguishes two resources that were created under one name


class Message(DocumentBase, frozen=True, tag="message"):
    resource: Name
    incarnation: Incarnation  # of the sender's store: what one incarnation knew, the next may not
    ops: tuple[Operation, ...] = ()
    replies: tuple[Reply, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    known: Vector = field(default_factory=dict)
    known_replies: Vector = field(default_factory=dict)
    replies_after: Vector = field(default_factory=dict)  # `replies` are all that is left after these
    settled: Vector = field(default_factory=dict)
    digest: OptionalName = ""
    busy: bool = False  # the sender may still make operations that no other site knows
    ask: bool = False
    wanted: tuple[Name, ...] = ()  # hashes of matrices that the sender lacks
    snapshot: Snapshot | None = None


def size_of(message: Message) -> int:
    """About how many bytes a message has. Commands and their outputs make up nearly all of it."""
    return 500 + sum(map(document_size, message.ops)) + sum(map(document_size, message.replies))


def document_size(document: Operation | Reply) -> int:
    if isinstance(document, Operation):
        return 500 + len(document.payload.line) + 100 * len(document.payload.files)
    return 400 + len(document.output) + len(document.detail) + 100 * len(document.applied)
