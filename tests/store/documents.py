"""Documents to keep, with as little to say as possible."""

from collections.abc import Iterable

from cheops.engine.documents import Document, Key, key_of
from cheops.engine.events import Save
from cheops.log.matrix import Entry, Matrix, Result
from cheops.log.operation import Command, Kind, MatrixRef, Operation, OpId, Origin, Reply, Stamp, Status, Verdict

PARIS, LYON = Origin("paris", "p1"), Origin("lyon", "l1")
COUNTER = Matrix([Entry("set", "inc", Result.KEEP_ORDER)])
FILE = Matrix([Entry("add", "set", Result.REVERSE_ORDER)])


def operation(
    resource: str,
    seq: int,
    sites: tuple[str, ...] | None = None,
    verdict: Verdict | None = Verdict.OK,
    line: str = "set 1",
) -> Operation:
    stamp = Stamp(1_000 + seq, 0, PARIS)
    deps = {PARIS: seq - 1} if seq > 1 else {}
    ref = MatrixRef(COUNTER.hash, stamp)
    return Operation(
        resource,
        "",
        "set",
        Kind.NORMAL,
        Command(line),
        PARIS,
        seq,
        deps,
        stamp,
        ref,
        sites,
        verdict=verdict,
    )


def draft(resource: str, seq: int, sites: tuple[str, ...] | None = None) -> Operation:
    return operation(resource, seq, sites, verdict=None)


def reply(resource: str, n: int, origin: Origin = PARIS) -> Reply:
    return Reply(resource, origin, n, OpId(PARIS, n), "set", Status.OK, ("set", "inc"))


def save(*documents: Document) -> Save:
    return Save(documents)


def forget(*documents: Document) -> Save:
    return Save((), keys(documents))


def keys(documents: Iterable[Document]) -> tuple[Key, ...]:
    return tuple(map(key_of, documents))
