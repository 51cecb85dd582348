"""Documents: what a site stores, and the messages in which sites send each other the shared ones.

Operations (once they have a verdict), replies and matrices are immutable and shared between sites. A site overwrites
the other documents below, and they never leave it.

There is one kind of message, about one resource: documents, and what its sender knows and has applied. Without
documents it is an acknowledgement, or a question (`ask`). A *snapshot* is for a site that has missed what others have
forgotten: it holds everything that is left, and up to where that counts. One that is too large for a message comes in
pieces (snapshot.py).
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, TypeAlias

from msgspec import Meta, Struct, field

from cheops.log.causality import Clock
from cheops.log.epochs import Epoch
from cheops.log.matrix import Matrix
from cheops.log.operation import (
    MAX_ORIGINS,
    MAX_SITES,
    Command,
    DocumentBase,
    Incarnation,
    MatrixRef,
    Name,
    Number,
    Operation,
    OpId,
    OptionalName,
    Ordinal,
    Origin,
    Reply,
    Signature,
    Stamp,
    Statement,
    Vector,
)
from cheops.log.rules import Fate

Key: TypeAlias = tuple[object, ...]
MAX_WANTED = 1_000  # matrices that one message asks for
MAX_LOST = 8  # contents of one id that are kept beside the one that counts


# Per origin, the sum of the contents of its operations, in hexadecimal digits: JSON has no numbers that large.
Contents: TypeAlias = Annotated[
    Mapping[Origin, Annotated[str, Meta(pattern=r"^[0-9a-f]{1,32}\Z")]], Meta(max_length=MAX_ORIGINS)
]


# What `History.summary` gives, or nothing.
Summary: TypeAlias = Annotated[str, Meta(pattern=r"^([0-9a-f]{16}(\.[0-9a-f]{16}){2})?\Z")]


def written(contents: Mapping[Origin, int]) -> dict[Origin, str]:
    return {origin: f"{content:x}" for origin, content in contents.items()}


def read(contents: Contents) -> dict[Origin, int]:
    return {origin: int(text, 16) for origin, text in contents.items()}


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


# -- of one site ---------------------------------------------------------------------------------------


class Started(DocumentBase, frozen=True, tag="started"):
    """Stored before a run, so that the site notices after a crash that the run may have happened."""

    resource: Name
    n: Number
    op: OpId | None  # the operation, or the base of a replay; None: a crash leaves nothing open
    replay: bool = False
    from_start: bool = False
    hook: bool = False
    units: bool = False
    dirty: tuple[OptionalName, ...] = ()  # keys of which the application may hold parts until something wipes them


class Drift(Struct, frozen=True, array_like=True):
    """A site has found that the applications differ, although all sites had applied the same: see drift.py."""

    by: Name
    differs: str
    known: Vector  # the operations at that time


class PeerRecord(Struct, frozen=True, omit_defaults=True):
    """What another site had of a resource when it last reported. All of it only grows as long as its store lives.

    Vectors hold only what differs from those of `Progress`; nothing, if the site was up to date.
    """

    incarnation: Name  # of its store, and its generation
    heard_ms: Number | None = None  # when it last reported
    known: Vector = field(default_factory=dict)
    known_replies: Vector = field(default_factory=dict)
    settled: Vector = field(default_factory=dict)
    digest: OptionalName | None = None  # None: that of `Progress`
    busy: bool = False
    differs: bool = False
    dropped: bool = False
    refuses: bool = False


class Progress(Struct, frozen=True, omit_defaults=True):
    """What the other sites have of a resource, beside what this site had when it saved that."""

    known: Vector
    known_replies: Vector
    digest: OptionalName
    peers: Mapping[Name, PeerRecord]


class Ledger(DocumentBase, frozen=True, tag="ledger"):
    """What a site remembers of a resource when the documents themselves are forgotten; and what it knows of others."""

    resource: Name
    unsynced: bool = False  # some site involved is not known to have all of it: a restart loads the resource
    floor: Vector = field(default_factory=dict)
    reply_floor: Vector = field(default_factory=dict)
    base: Base | None = None
    base_applied: bool = False
    adopted: MatrixRef | None = None
    epochs: tuple[EpochRecord, ...] = ()
    rejected_matrices: frozenset[Stamp] = field(default_factory=frozenset)
    contents: Contents = field(default_factory=dict)  # of everything up to `floor`
    dirty: tuple[OptionalName, ...] = ()  # keys of which the application may hold parts until something wipes them
    drifts: Annotated[tuple[Drift, ...], Meta(max_length=MAX_SITES)] = ()
    state: str = ""  # a health.State, which the store counts; empty: this site has no such resource, or never looked
    progress: Progress | None = None
    generation: Number = 0  # of this site's origin in the resource, see `Drops`
    due_ms: Number | None = None  # a tombstone: when the resource may be dropped
    closed: bool = False  # this site has promised to add nothing to it as it is: see tombstones.py
    # Sites that left, and are not known to know it: the lists that named them may be forgotten.
    untold: Annotated[tuple[Name, ...], Meta(max_length=MAX_SITES)] = ()


class LostContent(Struct, frozen=True, omit_defaults=True):
    """An operation that does not count, because another one has its id."""

    op: Operation
    content: Annotated[str, Meta(pattern=r"^[0-9a-f]{1,32}\Z")]  # the hash of all of it
    cut: bool = False  # without what no policy looks at


class Proof(DocumentBase, frozen=True, tag="proof"):
    """That an origin gave one id to several operations: those that do not count. The one that does is in the log.

    Large ones, and those beyond a number, are kept without what no policy looks at: `cut`. See contents.py.
    """

    resource: Name
    origin: Origin
    seq: Ordinal
    detail: str
    lost: Annotated[tuple[LostContent, ...], Meta(min_length=1, max_length=MAX_LOST)]

    @property
    def operations(self) -> Iterator[Operation]:
        return (one.op for one in self.lost)


class Withdrawn(DocumentBase, frozen=True, tag="withdrawn"):
    """An operation of this site that an earlier incarnation of its store made, and that is not in the log any more. Its
    id may be that of another operation at the other sites. See incarnation.py."""

    resource: Name
    op: Operation
    old: bool = False  # a draft that was in the store before the copy was made: others may have forgotten it since
    again: OpId | None = None  # the operation that it was issued again as
    problem: str = ""  # why it could not be issued again


class Inherited(DocumentBase, frozen=True, tag="inherited"):
    """The earlier stores of this site whose effects the application may hold of a resource; each is handled once."""

    resource: Name
    origins: tuple[Origin, ...]
    catching_up: bool = False  # what they ran may still arrive


class ClosedIncarnation(Struct, frozen=True, array_like=True):
    """An incarnation of this store that makes no operations any more, and why."""

    incarnation: Incarnation
    after: Clock  # its operations that are stamped later are withdrawn
    why: str
    at_ms: Number = 0  # when it was closed
    ahead: bool = False  # because of stamps after the present time, which is `after`


class Lineage(DocumentBase, frozen=True, tag="lineage"):
    """The earlier incarnations of this very store: see incarnation.py."""

    closed: tuple[ClosedIncarnation, ...]
    unfinished: bool = True  # resources that were not loaded since may have operations to withdraw

    def closes(self, incarnation: str) -> bool:
        return any(one.incarnation == incarnation for one in self.closed)


NO_LINEAGE = Lineage((), unfinished=False)


class Drops(DocumentBase, frozen=True, tag="drops"):
    """What a site remembers of the resources that it has dropped: see tombstones.py."""

    generation: Number = 0  # how often it has dropped some: the generation of its origin in what it begins from now on
    until_ms: Number = 0  # the latest stamp in any of them


NO_DROPS = Drops()


class Peers(DocumentBase, frozen=True, tag="peers"):
    """The incarnation of each other site at which all its resources were looked at; empty: it was removed since."""

    incarnations: Mapping[Name, OptionalName]


class SiteClock(DocumentBase, frozen=True, tag="clock"):
    """The clock. It is stored so that a stamp after a crash is later than all stamps before it."""

    clock: Clock


Document: TypeAlias = (
    Operation
    | Reply
    | Matrix
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


def key_of(document: Document) -> Key:  # noqa: C901, PLR0911, PLR0912 - one per kind
    """The key that a document is stored under. A draft and the operation it becomes have the same one."""
    match document:
        case Operation():
            return ("op", document.resource, document.origin, document.seq)
        case Reply():
            return ("reply", document.resource, document.origin, document.n)
        case Matrix():
            return ("matrix", document.hash)
        case Statement():
            return ("statement", document.resource)  # the last one of this site
        case Started():
            return ("started", document.resource)
        case Ledger():
            return ("ledger", document.resource)
        case Proof():
            return ("proof", document.resource, document.origin, document.seq)
        case Withdrawn():
            return ("withdrawn", document.resource, document.op.origin, document.op.seq)
        case Inherited():
            return ("inherited", document.resource)
        case Lineage():
            return ("lineage",)
        case Drops():
            return ("drops",)
        case SiteClock():
            return ("clock",)
        case Peers():
            return ("peers",)


def op_key(resource: str, id_: OpId) -> Key:
    return ("op", resource, id_.origin, id_.seq)


def reply_key(resource: str, origin: Origin, n: int) -> Key:
    return ("reply", resource, origin, n)


# -- messages ------------------------------------------------------------------------------------------


class Snapshot(Struct, frozen=True, omit_defaults=True):
    floor: Vector
    reply_floor: Vector
    base: Base | None
    adopted: MatrixRef | None
    epochs: tuple[EpochRecord, ...]
    rejected_matrices: frozenset[Stamp] = field(default_factory=frozenset)
    root: Stamp | None = None  # distinguishes two resources that were created under one name
    contents: Contents = field(default_factory=dict)  # of everything up to `floor`


class Piece(Struct, frozen=True, array_like=True):
    """One of several messages that make up a snapshot."""

    snapshot: Name  # the same for all of them
    number: Ordinal
    total: Ordinal


class Report(Struct, frozen=True, omit_defaults=True):
    """What a site says of itself: what it has of a resource. Others pass it on, see hub.py. The signature is by the
    site, over the resource and all the rest."""

    origin: Origin
    number: Number  # the greater one is the later one
    known: Vector
    known_replies: Vector
    settled: Vector
    digest: OptionalName = ""
    summary: Summary = ""
    busy: bool = False
    closed: bool = False
    signature: Signature = ""

    @property
    def incarnation(self) -> str:
        return self.origin.incarnation


class Message(DocumentBase, frozen=True, tag="message"):
    resource: Name
    incarnation: Incarnation  # of the sender's origin: what an earlier one knew, this one may not
    ops: tuple[Operation, ...] = ()
    replies: tuple[Reply, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    known: Vector = field(default_factory=dict)
    known_replies: Vector = field(default_factory=dict)
    replies_after: Vector = field(
        default_factory=dict
    )  # `replies` are all that the sender has kept after these numbers
    settled: Vector = field(default_factory=dict)
    digest: OptionalName = ""
    summary: Summary = ""  # of the contents of the operations that the sender knows, see History.summary
    busy: bool = False  # the sender may still make operations that no other site knows
    ask: bool = False
    recall: bool = False  # the sender asks for its own operations and replies beyond those that it knows
    wanted: Annotated[tuple[Name, ...], Meta(max_length=MAX_WANTED)] = ()  # hashes of matrices that the sender needs
    snapshot: Snapshot | None = None
    source: OptionalName = (
        ""  # the site from which the sender wants what it lacks; empty: it lacks nothing that it knows of
    )
    piece: Piece | None = None  # the documents are a part of a snapshot; `snapshot` comes with the last one
    held: Piece | None = None  # the last piece that the sender has, of a snapshot of the receiver
    seal_wanted: Vector = field(default_factory=dict)  # the sender wants to seal this, and asks for a statement
    seal_origins: Annotated[tuple[Origin, ...], Meta(max_length=MAX_SITES)] = ()  # for these sites and their stores
    statements: Annotated[tuple[Statement, ...], Meta(max_length=1)] = ()  # the sender's own
    ready: bool = False  # the sender has nothing against forgetting the resource: see tombstones.py
    closed: bool = False  # the sender has promised to add nothing to the log as it is
    over: Stamp | None = (
        None  # the last stamp in the log, if all sites have deleted the resource, or the sender has left
    )
    dropped: Vector = field(default_factory=dict)  # a log of which the receiver wrote, and which the sender has dropped
    number: Number = 0  # of the report that this message is
    for_others: bool = False  # the sender relies on the receiver to pass that report on, and the sender's own replies
    signature: Signature = ""  # of that report, see `Report`
    reports: Annotated[tuple[Report, ...], Meta(max_length=MAX_SITES)] = ()  # of other sites
    ages: Annotated[tuple[Number, ...], Meta(max_length=MAX_SITES)] = ()  # for how many ms the sender has had each
    pull: bool = False  # the sender asks for the replies and reports that it lacks
    unreached: Annotated[tuple[Name, ...], Meta(max_length=MAX_SITES)] = ()  # sites that the sender cannot reach now
    refuses: bool = False  # the sender refuses an operation that others depend on

    def report_of(self, site: str) -> Report:
        """The report that this message is, as a message of a site."""
        return Report(
            Origin(site, self.incarnation),
            self.number,
            self.known,
            self.known_replies,
            self.settled,
            self.digest,
            self.summary,
            self.busy,
            self.closed,
            self.signature,
        )


def size_of(message: Message) -> int:
    """The approximate number of bytes of a message. Commands and their outputs are nearly all of it."""
    documents: tuple[Operation | Reply | Matrix, ...] = (*message.matrices, *message.ops, *message.replies)
    reports = 100 * len(message.reports)
    return (
        500
        + reports
        + sum(map(document_size, documents))
        + (_snapshot_size(message.snapshot) if message.snapshot else 0)
    )


def _snapshot_size(snapshot: Snapshot) -> int:
    state = len(snapshot.base.write.line) if snapshot.base else 0
    return state + 100 * sum(len(epoch.settled) for epoch in snapshot.epochs)


def document_size(document: Operation | Reply | Matrix) -> int:
    # The constants are what the other fields take in JSON. An estimate is enough to limit a message, and
    # encoding every document twice would be slow.
    if isinstance(document, Operation):
        statements = len(document.seal.statements) if document.seal else 0
        payload, rest = document.payload, 50 * len(document.deps) + 400 * statements
        return 500 + len(payload.line) + 100 * len(payload.files) + rest
    if isinstance(document, Matrix):
        return 100 + 100 * len(document.entries)
    return 400 + len(document.output) + len(document.detail) + 100 * len(document.applied)
