"""Operations, their verdicts, and the replies of sites: the immutable documents that sites exchange.

An operation exists twice in its life. As a *draft* it is known to its origin alone, which runs it first. With
the outcome comes the *verdict*, and from then on the operation, verdict included, is immutable and
goes to the other sites. So nobody ever holds an operation whose fate at its origin is open. (A type that
asks for `parallel` gets its verdict, OK, before it is run anywhere.)

With its verdict an operation gets the signature of its origin, and so does a reply, where the mesh has
identities: once, just before it is first kept. Nothing here reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Origin(NamedTuple):
    """A site and the incarnation of its store: a site reborn with an empty disk is a new origin."""

    site: str
    incarnation: str


class Stamp(NamedTuple):
    """A time of the hybrid logical clock. Totally ordered, and later than everything it depends on."""

    time_ms: int
    counter: int
    origin: Origin


class OpId(NamedTuple):
    """The name of an operation within its resource."""

    origin: Origin
    seq: int

    def __str__(self) -> str:
        return f"{self.origin.site}:{self.seq}"


class Kind(StrEnum):
    """What an operation is beyond its user-given type."""

    NORMAL = "normal"
    FORCE = "force"  # the operator's word: becomes the new base
    DELETE = "delete"  # beats everything
    SITES = "sites"  # changes the list of sites, touches no application
    SEAL = "seal"  # only says what is settled for good, touches no application


# The keys of operations of a special kind, whatever their type.
RESERVED_KEYS = {
    Kind.FORCE: "!force",
    Kind.DELETE: "!delete",
    Kind.SITES: "!sites",
    Kind.SEAL: "!seal",
}
# Kinds that touch no application: nothing is run for them.
SILENT_KINDS = frozenset((Kind.SITES, Kind.SEAL))
SILENT_KEYS = frozenset(RESERVED_KEYS[kind] for kind in SILENT_KINDS)


class Verdict(StrEnum):
    """What became of an operation at its origin."""

    OK = "OK"
    VOID = "VOID"  # definitely failed there: no effect anywhere
    SUPERSEDED = "SUPERSEDED"  # beaten before it could run: no effect anywhere


class Status(StrEnum):
    """What became of an operation at one site."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    OK = "OK"
    KO = "KO"
    SUPERSEDED = "SUPERSEDED"
    VOID = "VOID"
    UNKNOWN = "UNKNOWN"


class MatrixRef(NamedTuple):
    """Which matrix an operation was made under: its hash, and the stamp of the operation that brought it."""

    hash: str
    introduced: Stamp


class Seal(NamedTuple):
    """What an operation says to be settled for good: every site involved has applied all up to `stable`.

    Only what is under a seal that all sites know may be forgotten, see seals.py. `root` is the stamp of the
    resource's first seal: it tells apart two resources that were made under one name without knowing of each
    other.
    """

    stable: Mapping[Origin, int]
    root: Stamp


@dataclass(frozen=True, slots=True)
class Command:
    """A payload: a command line, and the files that came with it (name and content hash)."""

    line: str
    files: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Operation:
    """One modifying request on one resource. Compared by identity of its id, never by content."""

    resource: str
    rtype: str  # the resource's type, by which a site finds reset, checkpoint, on_error …
    type: str
    kind: Kind
    payload: Command
    origin: Origin
    seq: int
    deps: Mapping[Origin, int]
    stamp: Stamp
    matrix: MatrixRef
    sites: tuple[str, ...] | None = None  # the new list of sites, where it changes or begins one
    parallel: bool = False
    verdict: Verdict | None = None  # None: a draft
    why: str = ""  # with a verdict other than OK: what failed, or what beat it
    seal: Seal | None = None
    signature: str = ""  # of its origin, over all the rest
    # Asked for all the time, so made once: the name, and under which key it stands in the matrix.
    id: OpId = field(init=False)
    key: str = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "id", OpId(self.origin, self.seq))
        object.__setattr__(self, "key", RESERVED_KEYS.get(self.kind, self.type))

    def decided(self, verdict: Verdict, why: str) -> "Operation":
        """What a draft becomes. Field by field: `dataclasses.replace` takes three times as long."""
        return Operation(
            self.resource,
            self.rtype,
            self.type,
            self.kind,
            self.payload,
            self.origin,
            self.seq,
            self.deps,
            self.stamp,
            self.matrix,
            self.sites,
            self.parallel,
            verdict,
            why,
            self.seal,
        )

    @property
    def is_silent(self) -> bool:
        """Whether does not touch the application."""
        return self.kind in SILENT_KINDS

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Operation) and self.id == other.id and self.resource == other.resource
        )

    def __hash__(self) -> int:
        return hash(self.id)

    def is_before(self, other: "Operation") -> bool:
        """Whether the other was made in knowledge of this one."""
        return other.deps.get(self.origin, 0) >= self.seq

    def is_concurrent(self, other: "Operation") -> bool:
        return self != other and not self.is_before(other) and not other.is_before(self)


class Timing(NamedTuple):
    """When a run began, by the clock of its site, and how long it took."""

    at_ms: int = 0
    took_ms: int = 0


NO_TIME = Timing()


@dataclass(frozen=True, slots=True)
class Applied:
    """An operation as a site remembers having run it: it may have been forgotten by the history since."""

    id: OpId
    key: str


@dataclass(frozen=True, slots=True)
class Reply:
    """The outcome of one run at one site: number `n` of that origin for this resource.

    A replay has one reply, without an operation. It says all that is applied at the site after it; so the
    reply of an earlier replay says nothing more, and is dropped.
    """

    resource: str
    origin: Origin
    n: int
    op: OpId | None
    key: str  # the operation's key
    status: Status
    wiped: tuple[str, ...] = ()  # the keys of the operations whose effect this run wiped
    replay: bool = False
    detail: str = ""
    output: str = ""
    timing: Timing = NO_TIME
    applied: tuple[Applied, ...] = ()  # of a replay
    signature: str = field(default="", compare=False)  # of its origin, over all the rest
