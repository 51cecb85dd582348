"""What sites say to each other about one resource: documents, and what the sender knows and has applied.

One form for everything. A message without documents is an acknowledgement, or a question (`ask`). A
*snapshot* is for a site that lacks what others have forgotten: all that is left, and up to where it counts.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from cheops.log.causality import Vector
from cheops.log.history import Epoch
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, MatrixRef, Operation, Reply, Stamp


@dataclass(frozen=True, slots=True)
class Base:
    """A checkpoint: the state after everything up to `vector`, as the command that writes it."""

    vector: Vector
    write: Command


@dataclass(frozen=True, slots=True)
class Snapshot:
    floor: Vector
    reply_floor: Vector
    base: Base | None
    adopted: MatrixRef | None
    epochs: Mapping[Stamp, Epoch]
    rejected_matrices: frozenset[Stamp] = frozenset()
    root: Stamp | None = None  # which of several resources of this name it is


@dataclass(frozen=True, slots=True)
class Message:
    resource: str
    incarnation: str  # of the sender's store: what one incarnation knew, the next may not
    ops: tuple[Operation, ...] = ()
    replies: tuple[Reply, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    known: Vector = field(default_factory=dict)
    known_replies: Vector = field(default_factory=dict)
    replies_after: Vector = field(default_factory=dict)  # after these, `replies` are all that is left so far
    settled: Vector = field(default_factory=dict)
    digest: str = ""
    busy: bool = False  # the sender may still make operations of which nobody has heard
    ask: bool = False
    wanted: tuple[str, ...] = ()  # hashes of matrices that the sender lacks
    snapshot: Snapshot | None = None


def size_of(message: Message) -> int:
    """About how many bytes a message has: what counts is what commands and their outputs bring."""
    return 500 + sum(map(document_size, message.ops)) + sum(map(document_size, message.replies))


def document_size(document: Operation | Reply) -> int:
    if isinstance(document, Operation):
        return 500 + len(document.payload.line) + 100 * len(document.payload.files)
    return 400 + len(document.output) + len(document.detail) + 100 * len(document.applied)
