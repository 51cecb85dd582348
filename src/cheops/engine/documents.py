"""What a site keeps: immutable documents, and a few local ones that are overwritten."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cheops.engine.messages import Base
from cheops.log.causality import Clock, Vector
from cheops.log.history import Epoch
from cheops.log.matrix import Matrix
from cheops.log.operation import MatrixRef, Operation, OpId, Origin, Reply, Stamp

Key: TypeAlias = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Started:
    """Written before a run, so that a crash in between is seen."""

    resource: str
    n: int
    op: OpId | None  # the operation, or with `replay` its base; None: nothing that a crash could leave open
    replay: bool = False
    from_start: bool = False
    hook: bool = False
    units: bool = False
    dirty: tuple[str, ...] = ()  # keys of which the application may hold parts until something wipes them


@dataclass(frozen=True, slots=True)
class Ledger:
    """What a site remembers of a resource beside its documents."""

    resource: str
    unsynced: bool = False  # some site involved is not known to have all of it
    floor: Vector = field(default_factory=dict)
    reply_floor: Vector = field(default_factory=dict)
    base: Base | None = None
    base_applied: bool = False
    adopted: MatrixRef | None = None
    epochs: dict[Stamp, Epoch] = field(default_factory=dict)
    rejected_matrices: frozenset[Stamp] = frozenset()


@dataclass(frozen=True, slots=True)
class Peers:
    """The incarnations of other sites that were last seen."""

    incarnations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SiteClock:
    """The clock must not go back over a crash."""

    clock: Clock


Document: TypeAlias = Operation | Reply | Matrix | Started | Ledger | SiteClock | Peers


def key_of(document: Document) -> Key:  # noqa: PLR0911 - one per kind
    """Under which key a document is kept. A draft and the operation it becomes share theirs."""
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
