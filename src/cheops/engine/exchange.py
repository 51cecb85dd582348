"""The protocol between sites about one resource: it brings all documents to all sites involved.

A site pushes its new documents at once to the sites involved. Each message says what its sender knows. So each site
sees what the others are missing, and sends it again, its own documents and others', until they acknowledge it. Loss,
reordering and duplication of messages therefore cost only time. When all sites are up to date, nothing is sent. What no
client waits for (an acknowledgement, a reply to another site's operation) goes with the next tick, or with a message
that is sent before that.

Only sites involved in a resource get messages about it: see `Replica.targets`.
"""

from collections.abc import Container, Iterable, Mapping
from typing import TypeVar

from cheops.engine import admission, contents
from cheops.engine.documents import (
    MAX_WANTED,
    Base,
    Message,
    Snapshot,
    document_size,
    epoch_records,
    epochs_from,
    key_of,
    op_key,
    read,
    written,
)
from cheops.engine.events import Effects, Send
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.causality import NOTHING, Vector, contains, covers
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Origin, Reply, Statement
from cheops.log.seals import is_of_one_site

Document = TypeVar("Document", Operation, Reply)


# -- sending ---------------------------------------------------------------------------------------------


def send_pending(replica: Replica, out: Effects, now_ms: int) -> None:
    """Send what this step produced: one message per peer, with the state at the end of the step.

    Operations go to all sites involved at once. A reply goes at once only to the origin of its operation,
    where a client may wait for it; the others get it with the next message to them, or with the next tick.
    """
    ops, replies, acknowledgements = replica.outbox.take()
    find = replica.history.find_matrix
    # Not of an operation that is only proof: its matrix may never have come here.
    introduced = [op.matrix.hash for op in ops if op.matrix.introduced == op.stamp and op.id in replica.history.ops]
    held = {replica.history.ops[op.id].matrix.hash for op in ops if op.id in replica.history.ops}
    matrices = tuple(find(hash_) for hash_ in introduced if hash_ in held)
    waited_for = {reply.op.origin.site for reply in replies if reply.op}
    involved = tuple(replica.targets()) if ops or replies else ()
    for peer in involved:
        # The message may be on its way for some time before it counts as lost and is sent again.
        replica.peer(peer).resend.wait_first(now_ms)
        replica.outbox.defer_replies(peer, replies)
        if ops or peer in waited_for:
            acknowledgements.setdefault(peer, set())
        else:
            replica.outbox.acknowledge_later(peer)
    for peer, wanted in acknowledgements.items():
        is_new = peer in involved
        message = _message(
            replica,
            ops=ops if is_new else (),
            replies=replica.outbox.deferred_replies(peer),
            matrices=matrices if is_new else (),
            wanted=tuple(sorted(wanted))[:MAX_WANTED],
        )
        _send(replica, peer, message, out)


def _send(replica: Replica, peer: str, message: Message, out: Effects) -> None:
    replica.outbox.note_sent(peer, with_replies=bool(message.replies))
    out.others.append(Send(peer, message))


def send_matrices(replica: Replica, peer: str, matrices: tuple[Matrix, ...], out: Effects) -> None:
    _send(replica, peer, _message(replica, matrices=matrices), out)


def catch_up(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Send a site what it is missing, or ask what it knows; the next attempt waits until the resend timer is due."""
    view = replica.peer(peer)
    view.resend.back_off(now_ms)
    if view.is_unknown:
        _send(replica, peer, _message(replica, ask=True), out)
        return
    if not covers(view.known, replica.history.floor):
        # It is missing operations that this site has forgotten: they exist only as their effect, in a snapshot.
        view.note_batch(unfinished=True)
        _send(replica, peer, _snapshot(replica), out)
        return
    ops = [op for op in replica.history.ops.values() if not contains(view.known, op.id)]
    # By stamp, so that causes come before their effects: a batch that ends in the middle leaves nothing waiting.
    ops, more_ops = _batch(sorted(ops, key=lambda op: op.stamp), replica.limits)
    replies, more_replies = _batch(replica.replies.beyond(view.known_replies), replica.limits)
    view.note_batch(unfinished=more_ops or more_replies)
    introduced = {op.matrix.hash for op in ops if op.matrix.introduced == op.stamp}
    matrices = tuple(map(replica.history.find_matrix, sorted(introduced)))
    after = {reply.origin: view.known_replies.get(reply.origin, 0) for reply in replies}
    message = _message(
        replica, ops=tuple(ops), replies=tuple(replies), matrices=matrices, replies_after=after, ask=True
    )
    _send(replica, peer, message, out)


def _batch(documents: Iterable[Document], limits: Limits) -> tuple[list[Document], bool]:
    """The first documents, as many as fit into one message; and whether there are more."""
    batch: list[Document] = []
    size = 0
    for document in documents:
        if len(batch) == limits.batch or (batch and size > limits.batch_bytes):
            return batch, True
        batch.append(document)
        size += document_size(document)
    return batch, False


def send_all_again(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Send operations that a peer knows by their ids, because its contents differ: the next batch of all of them."""
    view = replica.peer(peer)
    view.recheck.back_off(now_ms)
    ops = sorted(replica.history.ops.values(), key=lambda op: op.stamp)
    batch, more = _batch([op for op in ops if view.rechecked is None or op.stamp > view.rechecked], replica.limits)
    view.note_rechecked(batch[-1].stamp if more else None)
    _send(replica, peer, _message(replica, ops=tuple(batch), ask=True), out)


def ask(replica: Replica, peer: str, out: Effects) -> None:
    """Ask a peer what it knows and has settled."""
    _send(replica, peer, _message(replica, ask=True), out)


def ask_all(replica: Replica, up: Container[str], out: Effects) -> None:
    for peer in replica.targets():
        if peer in up:
            ask(replica, peer, out)


def recall(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Ask a peer what it has, and for the documents of this site that are not in its store."""
    if replica.peer(peer).may_recall(now_ms):
        _send(replica, peer, _message(replica, ask=True, recall=True), out)


def answer_recall(replica: Replica, peer: str, message: Message, out: Effects, now_ms: int) -> None:
    """Send a peer its own documents beyond those that its store has: proof that the store is an old copy."""
    origin = Origin(peer, message.incarnation)
    is_asked = message.recall and peer in replica.history.ever_listed
    if not is_asked or not replica.peer(peer).may_recall(now_ms):
        return
    made, replied = message.known.get(origin, 0), message.known_replies.get(origin, 0)
    ops = [op for op in replica.history.ops.values() if op.origin == origin and op.seq > made]
    replies, _ = _batch((one for one in replica.replies.of_origin(origin) if one.n > replied), replica.limits)
    # What was forgotten is under a seal, which has the statement of that site.
    ops, _ = _batch(sorted(ops or replica.history.seals, key=lambda op: op.stamp), replica.limits)
    _send(replica, peer, _message(replica, ops=tuple(ops), replies=tuple(replies)), out)


def ask_for_statement(replica: Replica, peer: str, stable: Vector, origins: tuple[Origin, ...], out: Effects) -> None:
    """Ask a peer to state that it has settled all of this, and that these are the sites and their stores."""
    _send(replica, peer, _message(replica, seal_wanted=stable, seal_origins=origins), out)


def send_statement(replica: Replica, peer: str, statement: Statement, out: Effects) -> None:
    _send(replica, peer, _message(replica, statements=(statement,)), out)


def request_matrices(replica: Replica, up: Container[str], known: Container[str], now_ms: int) -> None:
    """Ask the sites that are up for the matrices that waiting operations need."""
    inbox = replica.inbox
    missing = {op.matrix.hash for op in inbox.waiting.values() if op.matrix.hash not in known}
    if not missing or not inbox.matrix_request.is_due(now_ms):
        return
    inbox.matrix_request.back_off(now_ms)
    for peer in replica.targets():
        if peer in up:
            replica.outbox.acknowledge(peer, sorted(missing)[:MAX_WANTED])


def _snapshot(replica: Replica) -> Message:
    history = replica.history
    return _message(
        replica,
        ops=tuple(sorted(history.ops.values(), key=lambda op: op.stamp)),
        replies=tuple(replica.replies),
        matrices=tuple(map(history.find_matrix, sorted(_hashes(replica)))),
        ask=True,
        snapshot=Snapshot(
            dict(history.floor),
            dict(replica.replies.known),
            replica.applied.base,
            history.adopted,
            epoch_records(history.epochs),
            frozenset(history.rejected_matrices),
            history.root,
            written(history.contents.floor),
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
    recall: bool = False,
    snapshot: Snapshot | None = None,
    seal_wanted: Vector = NOTHING,
    seal_origins: tuple[Origin, ...] = (),
    statements: tuple[Statement, ...] = (),
) -> Message:
    return Message(
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
        seal_wanted=dict(seal_wanted),
        seal_origins=seal_origins,
        statements=statements,
    )


# -- receiving -------------------------------------------------------------------------------------------


def take(replica: Replica, peer: str, message: Message, matrices: Mapping[str, Matrix], out: Effects) -> set[str]:
    """Take what is new in a message and return the hashes of matrices that are missing."""
    if message.snapshot and _is_needed(replica, message, message.snapshot):
        if not admission.admits_snapshot(replica, peer, message, message.snapshot, out):
            return set()
        if missing := _hashes_in(message, message.snapshot) - matrices.keys():
            return missing
        _take_snapshot(replica, message, message.snapshot, out)
    answer = _take_operations(replica, peer, message.ops, matrices, out)
    missing = deliver(replica, matrices, out)
    _take_replies(replica, message, out)
    if peer in set(replica.targets()):
        _compare_later(replica, peer, message)
        if answer and message.ask:  # not an answer to an answer
            batch, _ = _batch(answer, replica.limits)
            _send(replica, peer, _message(replica, ops=tuple(batch)), out)
    return missing


def _take_operations(
    replica: Replica, peer: str, ops: Iterable[Operation], matrices: Mapping[str, Matrix], out: Effects
) -> list[Operation]:
    """Hold the operations that are new until they can be delivered. Returns what the peer may not know."""
    answer: list[Operation] = []
    known = dict(replica.history.known)  # and what these add to it without a gap
    for op in ops:
        if contains(replica.history.known, op.id):
            answer += contents.compare(replica, peer, op, matrices, out)
            continue
        if op.origin == replica.origin:
            contents.refuse_own(replica, peer, op, out)
            continue
        # What need not wait takes no place: it may be just what a full queue waits for.
        if is_next := _follows(op, known) and op.matrix.hash in matrices:
            known[op.origin] = op.seq
        if is_next or admission.may_wait(replica, op):
            replica.inbox.hold(op)
            admission.note_endorsement(replica, peer, op)
    return answer


def _is_needed(replica: Replica, message: Message, snapshot: Snapshot) -> bool:
    """Whether this site cannot do without a snapshot. Where the operations in the message fill the gap, they are taken
    one by one, and checked like any others: a snapshot replaces more than it adds.

    But what a site folded while it was alone, others must have from its checkpoint, even if they know every operation.
    Its seal orphans nothing, so an operation that comes too late for it has an effect: on top of the checkpoint."""
    known = dict(replica.history.known)
    if covers(known, snapshot.floor):
        return False
    folded = snapshot.base.vector if snapshot.base else NOTHING
    if not replica.history.ops or any(is_of_one_site(op) and contains(folded, op.id) for op in message.ops):
        return True
    for op in sorted(message.ops, key=lambda op: op.seq):
        if known.get(op.origin, 0) == op.seq - 1:
            known[op.origin] = op.seq
    return not covers(known, snapshot.floor)


def _compare_later(replica: Replica, peer: str, message: Message) -> None:
    """If an operation of a peer was refused, the two sites may hold different contents of something before it."""
    if any(op.id in replica.inbox.refused for op in message.ops):
        replica.peer(peer).note_refusal()


def _take_replies(replica: Replica, message: Message, out: Effects) -> None:
    """Take the replies that leave no gap. The others come again once the gap is filled."""
    known_before = dict(replica.replies.known)
    for reply in sorted(message.replies, key=lambda reply: reply.n):
        last = replica.replies.known.get(reply.origin, 0)
        after = message.replies_after.get(reply.origin)
        # Numbers may be missing because the sender has dropped those replies, not because they are still to come.
        without_gap = after is not None and after <= known_before.get(reply.origin, 0)
        is_next = reply.n == last + 1 or (without_gap and reply.n > last)
        if is_next and admission.admits_reply(replica, reply):
            replica.take_reply(reply, out)


def _hashes_in(message: Message, snapshot: Snapshot) -> set[str]:
    adopted = {snapshot.adopted.hash} if snapshot.adopted else set()
    return adopted | {op.matrix.hash for op in message.ops}


def deliver(replica: Replica, matrices: Mapping[str, Matrix], out: Effects) -> set[str]:
    """Take every waiting operation whose dependencies and matrix are here (causal delivery); return the hashes of the
    matrices that are missing."""
    missing: set[str] = set()
    progressed = True
    # An operation that is taken may be what others wait for. In the order of stamps one pass is usually enough.
    while progressed:
        progressed = False
        for first in sorted(replica.inbox.waiting.values(), key=lambda op: op.stamp):
            op: Operation | None = first
            while op is not None and _deliver_one(replica, op, matrices, missing, out):
                op, progressed = _skipped_successor(replica, op), True
    return missing


def _deliver_one(
    replica: Replica, op: Operation, matrices: Mapping[str, Matrix], missing: set[str], out: Effects
) -> bool:
    """Whether the operation was taken into the history."""
    if contains(replica.history.known, op.id):
        replica.inbox.release(op)
    elif not _follows(op, replica.history.known):
        return False
    elif not admission.admits(replica, op, out):  # before the matrix: one that is refused must not cause requests
        replica.inbox.release(op)
    elif op.matrix.hash not in matrices:
        missing.add(op.matrix.hash)
    else:
        replica.inbox.release(op)
        replica.add(op)
        out.documents[key_of(op)] = op
        if replica.history.take_lost_root():
            # What this site had forgotten belonged to a resource that gives way: start over with the other one.
            _start_over(replica, None, out)
            replica.save_ledger(out)
        return True
    return False


def _skipped_successor(replica: Replica, op: Operation) -> Operation | None:
    """The next operation of the same origin if its stamp is earlier, so that the loop by stamp has skipped it.

    No correct site sends such operations. A hostile one may send thousands: without this shortcut, each of them would
    need a pass of its own, which takes minutes.
    """
    after = replica.inbox.waiting.get(OpId(op.origin, op.seq + 1))
    return after if after is not None and after.stamp < op.stamp else None


def _follows(op: Operation, known: Vector) -> bool:
    """Whether everything that an operation depends on is known."""
    return known.get(op.origin, 0) == op.seq - 1 and covers(known, op.deps)


def _take_snapshot(replica: Replica, message: Message, snapshot: Snapshot, out: Effects) -> None:
    """The other sites have forgotten what is missing here: rebuild the history from what they have kept."""
    history, our_root, our_floor = replica.history, replica.history.root, replica.history.floor
    if our_root and snapshot.root and our_root < snapshot.root:
        # Two resources of one name meet, and theirs gives way: what they forgot has no effect.
        history.raise_floor(snapshot.floor, read(snapshot.contents))
        for op in sorted(message.ops, key=lambda op: op.stamp):  # their seals prove the floor to other sites
            if op.seal and contains(snapshot.floor, op.id) and op.id not in history.ops:
                replica.add(op)
                out.documents[key_of(op)] = op
        replica.replies.skip_to(_reply_floor(replica, message, snapshot))
        replica.save_ledger(out)
        return
    kept = {op.id for op in message.ops}
    folded = snapshot.base.vector if snapshot.base else {}
    # What the sender has forgotten has no effect by its word; by ours it must not have one either. So only what the
    # checkpoint covers goes at once. The rest is added again, and forgotten when this site finds it without effect.
    gone = [id_ for id_ in history.ops if _is_replaced(history, id_, snapshot, folded) and id_ not in kept]
    out.drop(op_key(replica.resource, id_) for id_ in gone)
    theirs = [op for op in message.ops if contains(snapshot.floor, op.id)]
    taken = {op.id for op in theirs}.union(gone)
    ours = [op for op in history.ops.values() if op.id not in taken]
    our_contents = history.contents.floor
    history.restore(
        snapshot.floor,
        folded,
        epochs_from(snapshot.epochs),
        snapshot.rejected_matrices,
        snapshot.adopted,
        read(snapshot.contents),
        [*theirs, *ours],
    )
    if snapshot.base or replica.applied.base:
        _start_over(replica, snapshot.base, out)
    if our_root and snapshot.root and our_root != snapshot.root:
        history.raise_floor(our_floor, our_contents)  # ours gives way: what we forgot has no effect now
    replica.applied.history_changed(0)
    # Both lists again in causal order, which `History.add` requires and which stamps extend.
    for op in sorted([*theirs, *ours], key=lambda op: op.stamp):
        replica.add(op)
        out.documents[key_of(op)] = op
    for reply in message.replies:
        if reply.n <= snapshot.reply_floor.get(reply.origin, 0) and reply.origin != replica.origin:
            replica.take_reply(reply, out)
    replica.replies.skip_to(_reply_floor(replica, message, snapshot))
    replica.save_ledger(out)


def _is_replaced(history: History, id_: OpId, snapshot: Snapshot, folded: Vector) -> bool:
    """Whether a snapshot takes the place of an operation: the checkpoint holds it, or it has no effect here."""
    return contains(snapshot.floor, id_) and (contains(folded, id_) or id_ in history.fates)


def _reply_floor(replica: Replica, message: Message, snapshot: Snapshot) -> dict[Origin, int]:
    """Up to where replies are missing on purpose. A site counts its own replies, and if it is in contact, no other site
    can say that it has made more of them."""
    floor: dict[Origin, int] = {}
    for origin, n in snapshot.reply_floor.items():
        view = replica.peers.get(origin.site)
        if origin == replica.origin:
            continue
        if view is not None and view.incarnation == origin.incarnation:
            sent = (reply.n for reply in message.replies if reply.origin == origin)
            floor[origin] = min(n, max([view.known_replies.get(origin, 0), *sent]))
        else:
            floor[origin] = n
    return floor


def _start_over(replica: Replica, base: Base | None, out: Effects) -> None:
    replica.applied.start_over(base)
    replica.save_unfinished_replay(out, from_start=True)
