"""What clients hear: first that their operation is durable, then its verdict, then how it went at each site.

A site has dealt with an operation when its reply says so, or when it says that it has settled it and we have
all replies that it had made by then: it has passed over it, because something had superseded it.
"""

from cheops.engine.events import Answer, Effects, Stage
from cheops.engine.replica import Replica
from cheops.log.causality import NOTHING, Vector, contains, covers
from cheops.log.operation import Operation, OpId, Reply, Status, Verdict

_LAST_WORDS = (Status.OK, Status.KO)
_WORDS = (*_LAST_WORDS, Status.UNKNOWN)
_FOR_GOOD = (*_LAST_WORDS, Status.SUPERSEDED)


def tell_decided(replica: Replica, op: Operation, reply: Reply, out: Effects) -> None:
    """The acknowledgement. What has no effect anywhere, no other site will be heard of."""
    client = replica.clients.get(op.id)
    if client is None:
        return
    client.heard[replica.site] = reply.status
    out.others.append(_answer(client.request, Stage.DECIDED, op.id, replica.site, reply.status, reply))
    if op.verdict is not Verdict.OK:
        del replica.clients[op.id]


def tell_of_sites(replica: Replica, out: Effects) -> None:
    """What has become known of operations whose clients still wait."""
    for id_, client in list(replica.clients.items()):
        if not contains(replica.history.known, id_):
            continue  # a draft: its verdict comes first
        for site in replica.sites:
            before = client.heard.get(site)
            status = _word(replica, id_, site)
            if status and status is not before and before not in _FOR_GOOD:
                client.heard[site] = status
                reply = replica.by_op.get((id_, site))
                out.others.append(_answer(client.request, Stage.SITE, id_, site, status, reply))
        if all(client.heard.get(site) in _FOR_GOOD for site in replica.sites):
            del replica.clients[id_]


def _word(replica: Replica, id_: OpId, site: str) -> Status | None:
    """What a site has said of an operation, or what follows from what it has settled."""
    reply = replica.by_op.get((id_, site))
    if reply is not None and reply.status in _LAST_WORDS:
        return reply.status
    if not contains(_settled(replica, site), id_):
        return reply.status if reply and reply.status in _WORDS else None
    op = replica.history.ops.get(id_)
    return Status.OK if op and op.is_silent else Status.SUPERSEDED


def _settled(replica: Replica, site: str) -> Vector:
    """What a site has settled, as far as that says what became of it there.

    A reply of it may still be on its way; to a site that has left the resource it may never come. And while
    it is not on the list a site settles all without running it: that counts for nothing when it is back, and
    not before we know of all that it has settled, for it may be that which took it off the list.
    """
    if not replica.is_involved:
        return NOTHING
    view, by = replica.peers.get(site), replica.history.site_list_op
    settled = replica.settled if site == replica.site else view.settled if view else NOTHING
    if by is None or not contains(settled, by.id) or not covers(replica.history.known, settled):
        return NOTHING
    made = [(origin, n) for origin, n in view.known_replies.items() if origin.site == site] if view else []
    has_all = all(n <= replica.known_replies.get(origin, 0) for origin, n in made)
    return settled if has_all else NOTHING


def _answer(  # noqa: PLR0913, PLR0917 - an answer's fields
    request: str, stage: Stage, id_: OpId, site: str, status: Status, reply: Reply | None
) -> Answer:
    if reply is None or reply.op is None:  # of a replay, which speaks of many
        return Answer(request, stage, id_, site, status)
    return Answer(request, stage, id_, site, status, reply.detail, reply.output, reply.timing)
