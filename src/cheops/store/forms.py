"""The JSON form of every document and message: one declaration per kind, one line per field.

A form has the fields of what it stands for, under the same names, each with the type and limits that are
checked when it comes from outside, and a shape (see shapes.py) where it is not a plain value. So a new
field of a document is one line here; a test says so when it is missing.

Fields at their default are left out, unknown ones are ignored. `doc` names the kind, `v` the version of the
format.
"""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta, Struct

from cheops.engine.documents import Ledger, Peers, SiteClock, Started
from cheops.engine.messages import Base, Message, Snapshot
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, MatrixRef, Operation, Reply, Seal, Status, Verdict
from cheops.matrix_file import MAX_ENTRIES, MAX_TYPES, type_problem
from cheops.store.converter import Converter
from cheops.store.shapes import (
    AppliedForm,
    ClockForm,
    EpochsForm,
    FilesForm,
    KeysForm,
    MaybeName,
    Name,
    NamesForm,
    Number,
    OpIdForm,
    Ordinal,
    OriginForm,
    PeersForm,
    SignatureForm,
    SitesForm,
    StampForm,
    StampsForm,
    TimingForm,
    VectorForm,
)


class _Form(Struct, omit_defaults=True, tag_field="doc"):
    v: Literal[1]


class _Part(Struct, omit_defaults=True):
    """Of a document: it has no version of its own."""


# -- parts -----------------------------------------------------------------------------------------------


class CommandPart(_Part):
    line: str
    files: FilesForm = []


class MatrixRefPart(_Part):
    hash: Name
    introduced: StampForm


class SealPart(_Part):
    stable: VectorForm
    root: StampForm


COMMAND = Converter(CommandPart, Command)
MATRIX_REF = Converter(MatrixRefPart, MatrixRef)
SEAL = Converter(SealPart, Seal)
CommandForm: TypeAlias = Annotated[CommandPart, COMMAND.shape]
MatrixRefForm: TypeAlias = Annotated[MatrixRefPart, MATRIX_REF.shape]
SealForm: TypeAlias = Annotated[SealPart, SEAL.shape]


class BasePart(_Part):
    vector: VectorForm
    write: CommandForm


class EntryPart(_Part):
    before: Name
    after: Name
    result: Result
    concurrent_both: bool = False


BASE = Converter(BasePart, Base)
ENTRY = Converter(EntryPart, Entry)
BaseForm: TypeAlias = Annotated[BasePart, BASE.shape]
EntriesForm: TypeAlias = Annotated[list[EntryPart], Meta(max_length=MAX_ENTRIES), ENTRY.shape.each()]


# -- documents -------------------------------------------------------------------------------------------


class OperationForm(_Form, tag="op"):
    resource: Name
    rtype: MaybeName
    type: MaybeName
    kind: Kind
    payload: CommandForm
    origin: OriginForm
    seq: Ordinal
    deps: VectorForm
    stamp: StampForm
    matrix: MatrixRefForm
    sites: SitesForm | None = None
    parallel: bool = False
    verdict: Verdict | None = None
    why: str = ""
    seal: SealForm | None = None
    signature: SignatureForm = ""  # the last: see codec.unsigned


class ReplyForm(_Form, tag="reply"):
    resource: Name
    origin: OriginForm
    n: Ordinal
    op: OpIdForm | None
    key: MaybeName
    status: Status
    wiped: KeysForm = []
    replay: bool = False
    detail: str = ""
    output: str = ""
    timing: TimingForm = (0, 0)
    applied: AppliedForm = []
    signature: SignatureForm = ""


class MatrixForm(_Form, tag="matrix"):
    hash: Name
    entries: EntriesForm


class StartedForm(_Form, tag="started"):
    resource: Name
    n: Number
    op: OpIdForm | None
    replay: bool = False
    from_start: bool = False
    hook: bool = False
    units: bool = False
    dirty: KeysForm = []


class LedgerForm(_Form, tag="ledger"):
    resource: Name
    unsynced: bool = False
    floor: VectorForm = []
    reply_floor: VectorForm = []
    base: BaseForm | None = None
    base_applied: bool = False
    adopted: MatrixRefForm | None = None
    epochs: EpochsForm = []
    rejected_matrices: StampsForm = []


class ClockDocumentForm(_Form, tag="clock"):
    clock: ClockForm


class PeersDocumentForm(_Form, tag="peers"):
    incarnations: PeersForm


def _matrix(hash: str, entries: tuple[Entry, ...]) -> Matrix:  # noqa: A002 - the name of the field
    """From outside, so what follows from the entries must not grow beyond what a file may ask for."""
    types = {name for entry in entries for name in (entry.before, entry.after)}
    if len(types) > MAX_TYPES:
        raise ValueError(f"a matrix has at most {MAX_TYPES} types, not {len(types):,}")
    if problem := next(filter(None, map(type_problem, types)), None):
        raise ValueError(problem)
    matrix = Matrix(entries)
    if matrix.hash != hash:
        raise ValueError(f"the entries of matrix {hash} give another hash, {matrix.hash}")
    return matrix


OPERATION = Converter(OperationForm, Operation)
REPLY = Converter(ReplyForm, Reply)
MATRIX = Converter(MatrixForm, _matrix)

# Every kind of document: how to make its form, and from which form it is made.
CONVERTERS: dict[type, Converter] = {
    Operation: OPERATION,
    Reply: REPLY,
    Matrix: MATRIX,
    Started: Converter(StartedForm, Started),
    Ledger: Converter(LedgerForm, Ledger),
    SiteClock: Converter(ClockDocumentForm, SiteClock),
    Peers: Converter(PeersDocumentForm, Peers),
}
DocumentForm: TypeAlias = (
    OperationForm | ReplyForm | MatrixForm | StartedForm | LedgerForm | ClockDocumentForm | PeersDocumentForm
)


# -- messages --------------------------------------------------------------------------------------------


class SnapshotPart(_Part):
    floor: VectorForm
    reply_floor: VectorForm
    base: BaseForm | None
    adopted: MatrixRefForm | None
    epochs: EpochsForm
    rejected_matrices: StampsForm = []
    root: StampForm | None = None


SNAPSHOT = Converter(SnapshotPart, Snapshot)


class MessageForm(_Form, tag="message"):
    resource: Name
    incarnation: Name
    ops: Annotated[list[OperationForm], OPERATION.shape.each()] = []
    replies: Annotated[list[ReplyForm], REPLY.shape.each()] = []
    matrices: Annotated[list[MatrixForm], MATRIX.shape.each()] = []
    known: VectorForm = []
    known_replies: VectorForm = []
    settled: VectorForm = []
    digest: MaybeName = ""
    busy: bool = False
    ask: bool = False
    wanted: NamesForm = []
    replies_after: VectorForm = []
    snapshot: Annotated[SnapshotPart, SNAPSHOT.shape] | None = None


MESSAGE = Converter(MessageForm, Message)
