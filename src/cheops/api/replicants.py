"""What the log of a replicant says of where it is, and how it is deleted."""

from typing import NamedTuple

from cheops.backends.http_paths import filled, trimmed
from cheops.backends.http_request import PayloadError, Request, command_of, request_of
from cheops.engine.replica import Replica


class Beginning(NamedTuple):
    """`item` is as an operation has it (see http_request), `path` where clients find it."""

    item: str
    path: str
    is_named: bool


def beginning(replica: Replica) -> Beginning | None:
    """By the operation that began it."""
    for op in (*replica.history.ops.values(), *replica.drafts):
        try:
            request = request_of(op.payload)
        except PayloadError:
            continue
        if request.creates:
            path = request.item if request.named else filled(request.item, replica.resource)
            return Beginning(request.item, trimmed(path), request.named)
    return None


def deletion(replica: Replica) -> str | None:
    """The request that deletes it, as the payload of an operation."""
    begun = beginning(replica)
    if begun is None:
        return None
    request = Request(method="DELETE", path=begun.path, item=begun.item, named=begun.is_named)
    return command_of(request).line
