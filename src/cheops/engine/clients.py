"""What clients that wait are told about their operation: first that it is durable, then its verdict, then each site.

A site is finished with an operation when its reply says so; or when it says that it has settled the operation and we
have all replies that it had made by then: it has passed over it, because something had superseded it.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cheops.engine.events import Answer, Effects, Stage
from cheops.log.causality import NOTHING, Vector, contains, covers
from cheops.log.operation import Operation, OpId, Reply, Status, Verdict

if TYPE_CHECKING:
    from cheops.engine.replica import Replica

_FINISHED = (Status.OK, Status.KO)
_FINAL = (*_FINISHED, Status.SUPERSEDED)  # nothing is reported after one of these
_REPORTED = (*_FINISHED, Status.UNKNOWN)


@dataclass(slots=True)
class _Client:
    request: str
    reported: dict[str, Status] = field(default_factory=dict)  # the last status of each site that it got


class WaitingClients:
    """The clients of one resource that wait for what becomes of their operation. They do not survive a restart."""

    def __init__(self) -> None:
        self._by_op: dict[OpId, _Client] = {}

    def __len__(self) -> int:
        return len(self._by_op)

    @property
    def operations(self) -> tuple[OpId, ...]:
        return tuple(self._by_op)

    def add(self, id_: OpId, request: str) -> None:
        self._by_op[id_] = _Client(request)

    def remove(self, id_: OpId) -> None:
        self._by_op.pop(id_, None)

    def report_verdict(self, op: Operation, reply: Reply, out: Effects) -> None:
        """The acknowledgement. What has no effect anywhere gets no reply of another site."""
        client = self._by_op.get(op.id)
        if client is None:
            return
        site = reply.origin.site
        client.reported[site] = reply.status
        out.others.append(_answer(client.request, Stage.DECIDED, op.id, site, reply.status, reply))
        if op.verdict is not Verdict.OK:
            del self._by_op[op.id]

    def report_sites(self, replica: "Replica", out: Effects) -> None:
        """Report what has become known since the last time. A client whose sites are all finished is removed."""
        for id_, client in list(self._by_op.items()):
            if not contains(replica.history.known, id_):
                continue  # a draft: its verdict comes first
            for site in replica.sites:
                before = client.reported.get(site)
                status = _status_at(replica, id_, site)
                if status and status is not before and before not in _FINAL:
                    client.reported[site] = status
                    reply = replica.replies.get(id_, site)
                    out.others.append(_answer(client.request, Stage.SITE, id_, site, status, reply))
            if all(client.reported.get(site) in _FINAL for site in replica.sites):
                del self._by_op[id_]


def _status_at(replica: "Replica", id_: OpId, site: str) -> Status | None:
    """What a site has replied to an operation, or what follows from what it has settled."""
    reply = replica.replies.get(id_, site)
    if reply is not None and reply.status in _FINISHED:
        return reply.status
    if not contains(_settled_at(replica, site), id_):
        return reply.status if reply and reply.status in _REPORTED else None
    op = replica.history.ops.get(id_)
    return Status.OK if op and op.is_silent else Status.SUPERSEDED


def _settled_at(replica: "Replica", site: str) -> Vector:
    """What a site has settled, as far as that says what became of it there.

    A reply of it may still be on its way; to a site that has left the resource it may never come. And while
    it is not on the list a site settles all without running it: that counts for nothing when it is back, and
    not before we know of all that it has settled, for it may be that which took it off the list.
    """
    if not replica.is_involved:
        return NOTHING
    view, by = replica.peers.get(site), replica.history.site_list_op
    settled = replica.applied.settled if site == replica.site else view.settled if view else NOTHING
    if by is None or not contains(settled, by.id) or not covers(replica.history.known, settled):
        return NOTHING
    made = [(origin, n) for origin, n in view.known_replies.items() if origin.site == site] if view else []
    has_all = all(n <= replica.replies.known.get(origin, 0) for origin, n in made)
    return settled if has_all else NOTHING


def _answer(  # noqa: PLR0913, PLR0917 - an answer's fields
    request: str, stage: Stage, id_: OpId, site: str, status: Status, reply: Reply | None
) -> Answer:
    if reply is None or reply.op is None:  # the reply of a replay is about many operations
        return Answer(request, stage, id_, site, status)
    return Answer(request, stage, id_, site, status, reply.detail, reply.output, reply.timing)
