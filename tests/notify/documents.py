"""Operations and replies for tests, with as little said as possible."""

from typing import Any

from msgspec.structs import replace

from cheops.log.operation import Command, Kind, MatrixRef, Operation, OpId, Origin, Reply, Stamp, Status, Verdict

HERE = Origin("site1", "aaa")
THERE = Origin("site2", "bbb")
_PLAIN = Operation(
    "n",
    "tally",
    "inc",
    Kind.NORMAL,
    Command("true"),
    HERE,
    1,
    {},
    Stamp(1_000, 0, HERE),
    MatrixRef("m", Stamp(0, 0, HERE)),
    verdict=Verdict.OK,
)


def operation(seq: int = 1, **fields: Any) -> Operation:
    return replace(_PLAIN, seq=seq, **fields)


def reply(n: int, op: OpId | None, status: Status = Status.OK, **fields: Any) -> Reply:
    given: dict[str, Any] = {"resource": "n", "origin": THERE, "key": "inc", **fields}
    return Reply(given.pop("resource"), given.pop("origin"), n, op, given.pop("key"), status, **given)
