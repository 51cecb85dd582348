"""Every document and message there can be, with names as awkward as they may be."""

from hypothesis import strategies as st
from msgspec import structs

from cheops.engine.documents import Base, Document, Ledger, Message, Peers, SiteClock, Snapshot, Started, epoch_records
from cheops.log.causality import Clock
from cheops.log.epochs import Epoch
from cheops.log.matrix import Matrix
from cheops.log.operation import (
    MAX_COUNT,
    MAX_COUNTER,
    MAX_NUMBER,
    Applied,
    Command,
    FileRef,
    Kind,
    MatrixRef,
    Operation,
    OpId,
    Origin,
    Reply,
    Seal,
    Stamp,
    Statement,
    Status,
    Timing,
    Verdict,
)
from cheops.log.rules import Fate, Rule
from cheops.text import is_invisible
from tests.log.histories import MATRICES

AWKWARD = [
    "/",
    "%",
    "%2F",
    "_design",
    ".",
    "..",
    "a/b",
    " ",
    "é",
    "e\u0301",
    "\U0001f600",
    "\x00",
    "\n",
    '"',
    "\\",
    "+",
]
texts = st.text(max_size=12)  # without lone surrogates, which are no text
names = st.one_of(st.sampled_from(AWKWARD), st.text(min_size=1, max_size=12))
numbers = st.one_of(st.integers(0, 9), st.integers(0, MAX_NUMBER))
counts = st.one_of(st.integers(0, 9), st.integers(0, MAX_COUNT))
ordinals = st.one_of(st.integers(1, 9), st.integers(1, MAX_COUNT))
counters = st.one_of(st.integers(0, 9), st.integers(0, MAX_COUNTER))
flags = st.booleans()

visible = names.map(lambda name: "".join("x" if is_invisible(one) else one for one in name))
incarnations = st.from_regex(r"[!-.0-~]{1,20}", fullmatch=True)
origins = st.builds(Origin, visible, incarnations)
op_ids = st.builds(OpId, origins, ordinals)
stamps = st.builds(Stamp, numbers, counters, origins)
vectors = st.dictionaries(origins, counts, max_size=3)
refs = st.builds(MatrixRef, names, stamps)
key_tuples = st.lists(texts, max_size=3).map(tuple)
name_tuples = st.lists(names, max_size=3).map(tuple)
hashes = st.binary(min_size=32, max_size=32).map(bytes.hex)


def statements(resources: st.SearchStrategy[str] = names) -> st.SearchStrategy[Statement]:
    return st.builds(Statement, resource=resources, origin=origins, seal=hashes, made=counts)


seals = st.builds(
    Seal, vectors, stamps, st.lists(origins, max_size=3).map(tuple), st.lists(statements(), max_size=2).map(tuple)
)
commands = st.builds(Command, texts, st.lists(st.builds(FileRef, names, hashes, numbers), max_size=2).map(tuple))
fates = st.builds(Fate, st.sampled_from(Rule), st.none() | op_ids)
epochs = st.dictionaries(stamps, st.builds(Epoch, vectors, st.dictionaries(op_ids, fates, max_size=2)), max_size=2).map(
    epoch_records
)
bases = st.builds(Base, vectors, commands)
rejected_matrices = st.frozensets(stamps, max_size=2)
matrices = st.sampled_from(list(MATRICES.values()))


def operations(
    resources: st.SearchStrategy[str] = names,
    verdicts: st.SearchStrategy[Verdict | None] = st.none() | st.sampled_from(Verdict),  # noqa: B008 - immutable
) -> st.SearchStrategy[Operation]:
    return st.builds(
        Operation,
        resource=resources,
        rtype=texts,
        type=texts,
        kind=st.sampled_from(Kind),
        payload=commands,
        origin=origins,
        seq=ordinals,
        deps=vectors,
        stamp=stamps,
        matrix=refs,
        sites=st.none() | name_tuples,
        parallel=flags,
        verdict=verdicts,
        why=texts,
        seal=st.none() | seals,
    )


def replies(resources: st.SearchStrategy[str] = names) -> st.SearchStrategy[Reply]:
    return st.builds(
        Reply,
        resource=resources,
        origin=origins,
        n=ordinals,
        op=st.none() | op_ids,
        key=texts,
        status=st.sampled_from(Status),
        wiped=key_tuples,
        replay=flags,
        detail=texts,
        output=texts,
        timing=st.builds(Timing, numbers, numbers),
        applied=st.lists(st.builds(Applied, op_ids, texts), max_size=2).map(tuple),
    )


runs = st.builds(
    Started,
    resource=names,
    n=numbers,
    op=st.none() | op_ids,
    replay=flags,
    from_start=flags,
    hook=flags,
    units=flags,
    dirty=key_tuples,
)
ledgers = st.builds(
    Ledger,
    resource=names,
    unsynced=flags,
    floor=vectors,
    reply_floor=vectors,
    base=st.none() | bases,
    base_applied=flags,
    adopted=st.none() | refs,
    epochs=epochs,
    rejected_matrices=rejected_matrices,
    dirty=key_tuples,
    untold=st.lists(names, max_size=2).map(tuple),
)
clocks = st.builds(SiteClock, st.builds(Clock, numbers, counters))
peers = st.builds(Peers, st.dictionaries(names, names, max_size=3))
documents: st.SearchStrategy[Document] = st.one_of(
    operations(), replies(), matrices, statements(), runs, ledgers, clocks, peers
)
snapshots = st.builds(
    Snapshot,
    floor=vectors,
    reply_floor=vectors,
    base=st.none() | bases,
    adopted=st.none() | refs,
    epochs=epochs,
    rejected_matrices=rejected_matrices,
    root=st.none() | stamps,
)


@st.composite
def messages(draw: st.DrawFn) -> Message:
    resource = st.just(draw(names))
    decided = operations(resource, st.sampled_from(Verdict))
    return draw(
        st.builds(
            Message,
            resource=resource,
            incarnation=incarnations,
            ops=st.lists(decided, max_size=2).map(tuple),
            replies=st.lists(replies(resource), max_size=2).map(tuple),
            matrices=st.lists(matrices, max_size=2).map(tuple),
            known=vectors,
            known_replies=vectors,
            replies_after=vectors,
            settled=vectors,
            digest=texts,
            busy=flags,
            ask=flags,
            wanted=name_tuples,
            snapshot=st.none() | snapshots,
            seal_wanted=vectors,
            seal_origins=st.lists(origins, max_size=3).map(tuple),
            statements=st.lists(statements(resource), max_size=1).map(tuple),
        )
    )


def contents(value: object) -> object:
    """What a document says, to be compared: operations are equal when their ids are, and matrices by their hash."""
    if isinstance(value, Operation):
        return (Operation, value.id, value.key, structs.astuple(value))
    if isinstance(value, Matrix):
        return (Matrix, value.entries)
    if isinstance(value, Message):
        return {name: contents(part) for name, part in structs.asdict(value).items()}
    if type(value) is tuple:
        return tuple(map(contents, value))
    return value
