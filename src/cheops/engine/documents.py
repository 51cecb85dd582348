"""The documents that a site stores: immutable ones that sites share, and a few of its own that it overwrites.

Shared are operations (once they have a verdict), replies and matrices. The others below never leave the site.
"""

from collections.abc import Mapping
from typing import TypeAlias

from msgspec import field

from cheops.engine.messages import Base, EpochRecord
from cheops.log.causality import Clock
from cheops.log.matrix import Matrix
from cheops.log.operation import (
    DocumentBase,
    MatrixRef,
    Name,
    Number,
    Operation,
    OpId,
    OptionalName,
    Origin,
    Reply,
    Stamp,
    Vector,
)

Key: TypeAlias = tuple[object, ...]


class Started(DocumentBase, frozen=True, tag="started"):
    """Stored before a run, so that the site notices after a crash that the run may have happened."""

    resource: Name
    n: Number
    op: OpId | None  # the operation, or with `replay` its base; None: nothing that a crash could leave open
    replay: bool = False
    from_start: bool = False
    hook: bool = False
    units: bool = False
    dirty: tuple[OptionalName, ...] = ()  # keys of which the application may hold parts until something wipes them


class Ledger(DocumentBase, frozen=True, tag="ledger"):
    """What a site remembers of a resource beside its documents."""

    resource: Name
    unsynced: bool = False  # some site involved is not known to have all of it
    floor: Vector = field(default_factory=dict)
    reply_floor: Vector = field(default_factory=dict)
    base: Base | None = None
    base_applied: bool = False
    adopted: MatrixRef | None = None
    epochs: tuple[EpochRecord, ...] = ()
    rejected_matrices: frozenset[Stamp] = field(default_factory=frozenset)


class Peers(DocumentBase, frozen=True, tag="peers"):
    """The last known incarnation of each other site."""

    incarnations: Mapping[Name, Name]


class SiteClock(DocumentBase, frozen=True, tag="clock"):
    """The clock, stored because it must not go back over a crash."""

    clock: Clock


Document: TypeAlias = Operation | Reply | Matrix | Started | Ledger | SiteClock | Peers


def key_of(document: Document) -> Key:  # noqa: PLR0911 - one per kind
    """The key that a document is stored under. A draft and the operation it becomes have the same one."""
    match document:
        case Operation():
            return ("op", document.resource, document.origin, document.seq)
        case Reply():
            return ("reply", document.resource, document.origin, document.n)
        case Matrix():
            return ("matrix", document.hash)
        case Started():
            return ("started", document.resource)
        case Ledger():
            return ("ledger", document.resource)
        case SiteClock():
            return ("clock",)
        case Peers():
            return ("peers",)


def op_key(resource: str, id_: OpId) -> Key:
    return ("op", resource, id_.origin, id_.seq)


def reply_key(resource: str, origin: Origin, n: int) -> Key:
    return ("reply", resource, origin, n)
