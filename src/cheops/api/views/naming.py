"""Names, times and vectors as the API shows them, and operations found by their names."""

from collections.abc import Iterable
from datetime import UTC, datetime

from cheops.engine.replica import Replica
from cheops.errors import ClientError
from cheops.log.operation import Operation, OpId, Stamp
from cheops.log.vector import Vector
from cheops.text import printable, shortened

_LAST_YEAR_MS = 253_402_300_799_000  # what a date can hold; clocks are not trusted


class NoSuchOperationError(ClientError):
    """No operation of this name is known here."""

    status = 404


def time_text(ms: int) -> str:
    """A time in ISO 8601, in UTC."""
    at = datetime.fromtimestamp(min(max(ms, 0), _LAST_YEAR_MS) / 1000, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def stamp_text(stamp: Stamp) -> str:
    return time_text(stamp.time_ms)


def vector_text(vector: Vector) -> dict[str, int]:
    """Per site the highest number; of several incarnations that of the one that went furthest."""
    found: dict[str, int] = {}
    for origin, number in sorted(vector.items()):
        found[origin.site] = max(number, found.get(origin.site, 0))
    return found


def by_stamp(replica: Replica) -> list[Operation]:
    """Everything that is known of a resource here, drafts included, in the order of the log."""
    return sorted((*replica.history.ops.values(), *replica.drafts), key=lambda op: op.stamp)


def full_name(id_: OpId) -> str:
    """`site1@6f1c9a:3`: also tells the incarnations of a site apart."""
    return f"{id_.origin.site}@{id_.origin.incarnation}:{id_.seq}"


def find(replica: Replica, name: str) -> Operation:
    """The operation that is called `site1:3` or `site1@6f1c9a:3`; of several incarnations the newest."""
    found = [op for op in by_stamp(replica) if name in (str(op.id), full_name(op.id))]
    if not found:
        newest = ", ".join(str(op.id) for op in by_stamp(replica)[-5:])
        raise NoSuchOperationError(
            f"no operation '{printable(shortened(name))}' of '{printable(shortened(replica.resource))}' is "
            f"known here; the newest are {newest or 'none'}. Old ones are forgotten when they have no effect"
        )
    return found[-1]


def names(ids: Iterable[OpId]) -> tuple[str, ...]:
    return tuple(map(str, ids))
