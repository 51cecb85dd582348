"""What sites tell each other about a resource, so that all involved end up knowing the same.

New documents of this site are pushed at once to the sites involved. Each message says what its sender knows;
so each site knows what the others lack, and sends it again, its own and others', until they have it: any
loss, reordering or duplication of messages costs time only. When nobody lacks anything there is silence.
What nobody waits for (an acknowledgement, a reply to another site's operation) goes with the next tick, or
with what is sent before that.

Only sites involved in a resource hear of it: those on its list, and those that left it, until they know that.
A site that was removed from the mesh for good is not waited for, on the list or not.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

from cheops.engine import admission
from cheops.engine.documents import Started, key_of, op_key, reply_key
from cheops.engine.events import Effects, Send
from cheops.engine.messages import Base, Message, Snapshot, document_size
from cheops.engine.replica import PeerProgress, Replica
from cheops.engine.settings import Limits
from cheops.log.causality import NOTHING, Vector, contains, covers, joined
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Reply

Document = TypeVar("Document", Operation, Reply)


def targets(replica: Replica) -> Iterator[str]:
    """The other sites that must hear of this resource."""
    history = replica.history
    for site in replica.sites:
        if site != replica.site:
            yield site
    for site in sorted(history.ever_listed.difference(history.site_list)):
        if site != replica.site and not _is_gone(replica, site):
            yield site


def _is_gone(replica: Replica, site: str) -> bool:
    """Whether a site that left knows that it did, and we know all that it ever made; or it will not be back.

    Should it be back after all, what it made without knowing of a seal has no effect (see cheops.log.seals).
    """
    if site in replica.gone:
        return True
    view, by = replica.peers.get(site), replica.history.site_list_op
    if view is None or by is None or view.busy:
        return False
    why = (by.id, *_seals_against(replica, site))
    return all(contains(view.known, id_) for id_ in why) and covers(replica.history.known, view.known)


def _seals_against(replica: Replica, site: str) -> Iterator[OpId]:
    """What a site must know to see that a list which it is on does not count."""
    history = replica.history
    for id_, fate in history.orphans.items():
        if fate.by and site in (history.ops[id_].sites or ()):
            yield fate.by


def view_of(replica: Replica, peer: str) -> PeerProgress:
    return replica.peers.setdefault(peer, PeerProgress())


# -- sending ---------------------------------------------------------------------------------------------


def push(replica: Replica, ops: tuple[Operation, ...], replies: tuple[Reply, ...]) -> None:
    """New documents of this site are to go to everybody involved."""
    replica.new_ops += ops
    replica.new_replies += replies


def acknowledge(replica: Replica, peer: str, wanted: Iterable[str] = ()) -> None:
    """A peer is to hear what we know, and which matrices we lack."""
    replica.owed.setdefault(peer, set()).update(wanted)


def flush(replica: Replica, out: Effects, now_ms: int) -> None:
    """Send what this step gave rise to: one message per peer, which says how things stand at its end.

    Operations go to everybody at once. A reply goes at once only to where its operation came from, since
    somebody may be waiting for it there; the others get it with what goes to them next, or soon.
    """
    ops, replies, owed = tuple(replica.new_ops), tuple(replica.new_replies), replica.owed
    replica.new_ops, replica.new_replies, replica.owed = [], [], {}
    find = replica.history.find_matrix
    matrices = tuple(find(op.matrix.hash) for op in ops if op.matrix.introduced == op.stamp)
    waited_for = {reply.op.origin.site for reply in replies if reply.op}
    involved = tuple(targets(replica)) if ops or replies else ()
    for peer in involved:
        view = view_of(replica, peer)  # give it time to arrive before it counts as lost
        view.next_send_ms = max(view.next_send_ms, now_ms + replica.limits.resend_ms)
        view.replies_later += replies
        if ops or peer in waited_for:
            owed.setdefault(peer, set())
        else:
            replica.owed_later.add(peer)
    for peer, lacking in owed.items():
        is_new = peer in involved
        message = _message(
            replica,
            ops=ops if is_new else (),
            replies=tuple(view_of(replica, peer).replies_later),
            matrices=matrices if is_new else (),
            wanted=tuple(sorted(lacking)),
        )
        _send(replica, peer, message, out)


def pay(replica: Replica) -> None:
    """What was to go later, and did not go with anything else, goes now."""
    for peer in sorted(replica.owed_later):
        acknowledge(replica, peer)


def _send(replica: Replica, peer: str, message: Message, out: Effects) -> None:
    replica.owed_later.discard(peer)
    if message.replies:
        view_of(replica, peer).replies_later = []
    out.others.append(Send(peer, message))


def give_matrices(replica: Replica, peer: str, matrices: tuple[Matrix, ...], out: Effects) -> None:
    _send(replica, peer, _message(replica, matrices=matrices), out)


def catch_up(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Send a site what it lacks, or ask what it knows; and not again before some time has passed."""
    view = view_of(replica, peer)
    view.wait_ms = min(max(replica.limits.resend_ms, view.wait_ms * 2), replica.limits.resend_most_ms)
    view.next_send_ms = now_ms + view.wait_ms
    if view.fresh:
        _send(replica, peer, _message(replica, ask=True), out)
        return
    if not covers(view.known, replica.history.floor):
        view.unfinished = True
        _send(replica, peer, _snapshot(replica), out)
        return
    ops = [op for op in replica.history.ops.values() if not contains(view.known, op.id)]
    ops, more_ops = _batch(sorted(ops, key=lambda op: op.stamp), replica.limits)
    replies, more_replies = _batch(_lacking_replies(replica, view), replica.limits)
    view.unfinished = more_ops or more_replies
    brought = {op.matrix.hash for op in ops if op.matrix.introduced == op.stamp}
    matrices = tuple(map(replica.history.find_matrix, sorted(brought)))
    after = {reply.origin: view.known_replies.get(reply.origin, 0) for reply in replies}
    message = _message(
        replica, ops=tuple(ops), replies=tuple(replies), matrices=matrices, replies_after=after, ask=True
    )
    _send(replica, peer, message, out)


def _batch(documents: Iterable[Document], limits: Limits) -> tuple[list[Document], bool]:
    """The first of these, as many as go into one message; and whether there are more."""
    taken: list[Document] = []
    size = 0
    for document in documents:
        if len(taken) == limits.batch or (taken and size > limits.batch_bytes):
            return taken, True
        taken.append(document)
        size += document_size(document)
    return taken, False


def ask(replica: Replica, peer: str, out: Effects) -> None:
    """Have a peer say how things stand there."""
    _send(replica, peer, _message(replica, ask=True), out)


def _lacking_replies(replica: Replica, view: PeerProgress) -> Iterator[Reply]:
    for origin, last in replica.known_replies.items():
        known = view.known_replies.get(origin, 0)
        retained = replica.replies.get(origin, {})
        yield from (retained[n] for n in sorted(retained) if known < n <= last)


def _snapshot(replica: Replica) -> Message:
    history = replica.history
    return _message(
        replica,
        ops=tuple(sorted(history.ops.values(), key=lambda op: op.stamp)),
        replies=tuple(reply for replies in replica.replies.values() for reply in replies.values()),
        matrices=tuple(map(history.find_matrix, sorted(_hashes(replica)))),
        ask=True,
        snapshot=Snapshot(
            dict(history.floor),
            dict(replica.known_replies),
            replica.base,
            history.adopted,
            {introduced: epoch.copy() for introduced, epoch in history.epochs.items()},
            frozenset(history.disowned),
            history.root,
        ),
    )


def _hashes(replica: Replica) -> set[str]:
    adopted = replica.history.adopted
    return {op.matrix.hash for op in replica.history.ops.values()} | ({adopted.hash} if adopted else set())


def _message(  # noqa: PLR0913 - a message's fields
    replica: Replica,
    *,
    ops: tuple[Operation, ...] = (),
    replies: tuple[Reply, ...] = (),
    matrices: tuple[Matrix, ...] = (),
    wanted: tuple[str, ...] = (),
    replies_after: Vector = NOTHING,
    ask: bool = False,
    snapshot: Snapshot | None = None,
) -> Message:
    return Message(
        replica.resource,
        replica.origin.incarnation,
        ops,
        replies,
        matrices,
        known=dict(replica.history.known),
        known_replies=dict(replica.known_replies),
        replies_after=replies_after,
        settled=dict(replica.settled),
        digest=replica.digest(),
        busy=bool(replica.drafts or replica.running),
        ask=ask,
        wanted=wanted,
        snapshot=snapshot,
    )


# -- receiving -------------------------------------------------------------------------------------------


def take(replica: Replica, peer: str, message: Message, matrices: Mapping[str, Matrix], out: Effects) -> set[str]:
    """Take what is new in a message; gives the hashes of matrices that are lacking."""
    if message.snapshot and not covers(replica.history.known, message.snapshot.floor):
        if not admission.admits_snapshot(replica, peer, message, out):
            return set()
        if lacking := _hashes_in(message, message.snapshot) - matrices.keys():
            return lacking
        _take_snapshot(replica, message, message.snapshot, out)
    for op in message.ops:
        if not contains(replica.history.known, op.id) and admission.may_wait(replica, op):
            replica.waiting[op.id] = op
            admission.note_endorsement(replica, peer, op)
    lacking = deliver(replica, matrices, out)
    known = dict(replica.known_replies)
    for reply in sorted(message.replies, key=lambda reply: reply.n):
        last = replica.known_replies.get(reply.origin, 0)
        after = message.replies_after.get(reply.origin)
        without_gap = after is not None and after <= known.get(reply.origin, 0)
        is_next = reply.n == last + 1 or (without_gap and reply.n > last)
        if is_next and admission.admits_reply(replica, reply):
            take_reply(replica, reply, out)
    return lacking


def _hashes_in(message: Message, snapshot: Snapshot) -> set[str]:
    adopted = {snapshot.adopted.hash} if snapshot.adopted else set()
    return adopted | {op.matrix.hash for op in message.ops}


def deliver(replica: Replica, matrices: Mapping[str, Matrix], out: Effects) -> set[str]:
    """Take every waiting operation whose past is here (causal delivery), and whose matrix is."""
    lacking: set[str] = set()
    moved = True
    while moved:
        moved = False
        for first in sorted(replica.waiting.values(), key=lambda op: op.stamp):
            op: Operation | None = first
            while op is not None and _is_taken(replica, op, matrices, lacking, out):
                op, moved = _behind(replica, op), True
    return lacking


def _is_taken(replica: Replica, op: Operation, matrices: Mapping[str, Matrix], lacking: set[str], out: Effects) -> bool:
    if contains(replica.history.known, op.id):
        _waits_no_more(replica, op)
    elif not _is_ready(replica, op):
        return False
    elif not admission.admits(replica, op, out):
        _waits_no_more(replica, op)
    elif op.matrix.hash not in matrices:
        lacking.add(op.matrix.hash)
    else:
        _waits_no_more(replica, op)
        replica.add(op)
        out.documents[key_of(op)] = op
        if replica.history.lost_root:
            _give_way(replica, out)
        return True
    return False


def _waits_no_more(replica: Replica, op: Operation) -> None:
    replica.waiting.pop(op.id, None)
    replica.endorsed.discard(op.id)


def _behind(replica: Replica, op: Operation) -> Operation | None:
    """The next of the same site, where its stamp is earlier, so that it was passed over. No honest site makes
    such; with thousands of them every other way to find them takes minutes."""
    after = replica.waiting.get(OpId(op.origin, op.seq + 1))
    return after if after is not None and after.stamp < op.stamp else None


def _is_ready(replica: Replica, op: Operation) -> bool:
    known = replica.history.known
    return known.get(op.origin, 0) == op.seq - 1 and covers(known, op.deps)


def take_reply(replica: Replica, reply: Reply, out: Effects) -> None:
    stale = replica.note_reply(reply)
    out.drop(reply_key(replica.resource, old.origin, old.n) for old in stale)
    out.documents[key_of(reply)] = reply


def _take_snapshot(replica: Replica, message: Message, snapshot: Snapshot, out: Effects) -> None:
    """Others have forgotten what we lack: begin again from what they have left."""
    history = replica.history
    if history.root and snapshot.root and history.root < snapshot.root:
        # Two resources of one name meet, and theirs has to give way: what it forgot is without effect.
        history.known = joined(history.known, snapshot.floor)
        history.floor = joined(history.floor, snapshot.floor)
        replica.known_replies = joined(replica.known_replies, snapshot.reply_floor)
        save_ledger(replica, out)
        return
    kept = {op.id for op in message.ops}
    for id_ in [id_ for id_ in history.ops if contains(snapshot.floor, id_) and id_ not in kept]:
        out.drop([op_key(replica.resource, id_)])
    ours = [op for op in history.ops.values() if not contains(snapshot.floor, op.id)]
    theirs = [op for op in message.ops if contains(snapshot.floor, op.id)]
    fresh = type(history)(history.find_matrix)
    fresh.floor, fresh.known = dict(snapshot.floor), dict(snapshot.floor)
    fresh.epochs = {introduced: epoch.copy() for introduced, epoch in snapshot.epochs.items()}
    fresh.disowned = set(snapshot.disowned)
    fresh.take_matrix(snapshot.adopted)
    if snapshot.base:
        fresh.folded = dict(snapshot.base.vector)
    if snapshot.base or replica.base:
        _begin_anew(replica, snapshot.base, out)
    if history.root and snapshot.root and history.root != snapshot.root:
        fresh.known = joined(fresh.known, history.floor)  # what we forgot is without effect now
        fresh.floor = joined(fresh.floor, history.floor)
    replica.history, replica.agreed = fresh, 0
    for op in sorted([*theirs, *ours], key=lambda op: op.stamp):
        replica.add(op)
        out.documents[key_of(op)] = op
    for reply in message.replies:
        if reply.n <= snapshot.reply_floor.get(reply.origin, 0) and reply.origin != replica.origin:
            take_reply(replica, reply, out)
    replica.known_replies = joined(replica.known_replies, snapshot.reply_floor)
    save_ledger(replica, out)


def _give_way(replica: Replica, out: Effects) -> None:
    """What we had forgotten belonged to a resource that stands back: begin with what the other one is."""
    replica.history.lost_root = False
    _begin_anew(replica, None, out)
    save_ledger(replica, out)


def _begin_anew(replica: Replica, base: Base | None, out: Effects) -> None:
    """What we have applied counts from a base that is not this one: begin from the start."""
    replica.base, replica.base_applied, replica.needs_start = base, False, True
    replica.applied, replica.agreed = [], 0
    started = Started(replica.resource, 0, None, replay=True, from_start=True)
    out.documents[key_of(started)] = started


def save_ledger(replica: Replica, out: Effects) -> None:
    ledger = replica.ledger()
    out.documents[key_of(ledger)] = ledger


def note_peer(replica: Replica, peer: str, message: Message, now_ms: int) -> None:
    """What a message says of its sender."""
    view = view_of(replica, peer)
    go_on = view.fresh or view.unfinished
    view.fresh = False
    progress = not covers(view.known, message.known) or not covers(view.known_replies, message.known_replies)
    view.known = joined(view.known, message.known)
    view.known_replies = joined(view.known_replies, message.known_replies)
    if covers(message.settled, view.settled):  # not one that was overtaken
        view.digest, view.busy, view.incarnation = message.digest, message.busy, message.incarnation
    view.settled = joined(view.settled, message.settled)
    view.last_contact_ms = now_ms
    if progress:
        view.wait_ms = 0
    if go_on:
        view.next_send_ms, view.unfinished = 0, False


def lacks_something(replica: Replica, peer: str) -> bool:
    view = view_of(replica, peer)
    return (
        view.fresh
        or not covers(view.known, replica.history.known)
        or not covers(view.known_replies, replica.known_replies)
    )


def is_synced(replica: Replica) -> bool:
    return not any(lacks_something(replica, peer) for peer in targets(replica))
