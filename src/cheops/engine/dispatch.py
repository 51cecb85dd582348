"""Messages to other sites: how one is made of what this site has, and how much goes into one.

What is sent, and when, is decided in exchange.py (what is new) and catch_up.py (what another site lacks).
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from cheops.engine import tombstones
from cheops.engine.admission import waiting_for_refused
from cheops.engine.documents import Message, Piece, Report, Snapshot, document_size
from cheops.engine.events import Effects, Send
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.causality import NOTHING, Vector
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, Origin, Reply, Statement


class PassedReport(NamedTuple):
    """A report of another site, and for how long this one has had it."""

    report: Report
    age_ms: int


SharedDocument = TypeVar("SharedDocument", bound=Operation | Reply | Matrix)


def send(  # noqa: PLR0913 - a message's fields
    replica: Replica,
    peer: str,
    out: Effects,
    *,
    ops: tuple[Operation, ...] = (),
    replies: tuple[Reply, ...] = (),
    matrices: tuple[Matrix, ...] = (),
    wanted: tuple[str, ...] = (),
    replies_after: Vector = NOTHING,
    ask: bool = False,
    recall: bool = False,
    snapshot: Snapshot | None = None,
    piece: Piece | None = None,
    seal_wanted: Vector = NOTHING,
    seal_origins: tuple[Origin, ...] = (),
    statements: tuple[Statement, ...] = (),
    dropped: Vector = NOTHING,
    passed: tuple[PassedReport, ...] = (),
    pull: bool = False,
    for_others: bool = False,
    unreached: tuple[str, ...] = (),
) -> None:
    """Send a message, with what this site knows and has at the moment. `for_others`: the receiver may pass that on."""
    message = Message(
        replica.resource,
        replica.origin.incarnation,
        ops,
        replies,
        matrices,
        known=dict(replica.history.known),
        known_replies=dict(replica.replies.known),
        replies_after=replies_after,
        settled=dict(replica.applied.settled),
        digest=replica.applied.digest(),
        summary=replica.history.summary(),
        busy=bool(replica.drafts or replica.slot.running),
        ask=ask,
        recall=recall,
        wanted=wanted,
        snapshot=snapshot,
        source=replica.source.site,
        piece=piece,
        held=replica.assemblies.held(replica.resource, peer),
        seal_wanted=dict(seal_wanted),
        seal_origins=seal_origins,
        statements=statements,
        over=tombstones.last_stamp(replica),
        ready=replica.has_promised and replica.is_ready,
        closed=replica.has_promised and replica.is_closed,
        dropped=dict(dropped),
        number=replica.duties.next_report(),
        for_others=for_others,
        unreached=unreached,
        refuses=bool(replica.inbox.waiting and waiting_for_refused(replica)),
        reports=tuple(one.report for one in passed),
        ages=tuple(one.age_ms for one in passed),
        pull=pull,
    )
    replica.outbox.note_sent(peer)
    out.others.append(Send(peer, message))


def replies_beyond(replica: Replica, peer: str, known: Vector) -> Iterator[Reply]:
    """The replies for a peer that knows this many of them, of all sites."""
    wanted = replica.replies_for(peer)
    return (reply for reply in replica.replies.beyond(known) if reply.n <= wanted.get(reply.origin, 0))


def first_batch(documents: Iterable[SharedDocument], limits: Limits) -> tuple[list[SharedDocument], bool]:
    """The first documents, as many as fit into one message; and whether there are more."""
    batch: list[SharedDocument] = []
    size = 0
    for document in documents:
        if len(batch) == limits.batch or (batch and size > limits.batch_bytes):
            return batch, True
        batch.append(document)
        size += document_size(document)
    return batch, False


def batches(documents: Iterable[SharedDocument], limits: Limits) -> list[list[SharedDocument]]:
    """All documents, in parts that fit into one message each."""
    left, found = list(documents), []
    while left:
        batch, _ = first_batch(left, limits)
        found.append(batch)
        del left[: len(batch)]
    return found
