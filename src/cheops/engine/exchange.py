"""The protocol between sites about one resource: it brings all documents to all sites involved.

A site pushes its new documents at once to the sites involved. Each message says what its sender knows. So each site
sees what the others are missing, and they get it again until they acknowledge it (catch_up.py). Loss, reordering and
duplication of messages therefore cost only time. When all sites are up to date, nothing is sent. What no client waits
for (an acknowledgement, a reply to another site's operation) goes with the next tick, or with a message that is sent
before that.

Only sites involved in a resource get messages about it: see `Replica.targets`.
"""

from collections.abc import Container, Iterable, Mapping
from operator import attrgetter

from cheops.engine import admission, contents, dispatch, hub, ledger, snapshot, tombstones
from cheops.engine.documents import MAX_WANTED, Message, key_of
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, contains, covers
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Origin, Statement

# -- sending ---------------------------------------------------------------------------------------------


def send_pending(replica: Replica, up: Container[str], out: Effects, now_ms: int) -> None:
    """Send what this step produced: one message per peer, with the state at the end of the step.

    Operations go to all sites involved at once, and a reply to the site that passes it on (hub.py). Others that
    should get it do so with the next message to them, or with the next tick.
    """
    ops, replies, acknowledgements = replica.outbox.take()
    if not ops and not replies and not acknowledgements:
        return
    matrices = _introduced(replica, ops) if ops else ()
    waited_for = {reply.op.origin.site for reply in replies if reply.op}
    receivers = hub.assign(replica, replies, up)
    involved = [peer for peer in replica.targets() if ops or peer in receivers]
    # A site that is catching up gets the new ones after the old: now they would only wait there, and be sent twice. But
    # another content of an id that it knows comes only now.
    is_proof = bool(replica.proofs) and any(op.id in replica.proofs for op in ops)
    pushed = [peer for peer in involved if is_proof or not replica.peer(peer).is_catching_up]
    for peer in pushed:
        if not replica.was_absent(peer):  # what it gets now waits there for what it lacks: it is asked soon
            replica.note_push(peer, now_ms)
        if ops or peer in waited_for:
            acknowledgements.setdefault(peer, set())
        else:
            replica.outbox.acknowledge_later(peer)
    for peer, wanted in acknowledgements.items():
        is_new = peer in pushed
        new = (ops, matrices) if is_new else ((), ())
        _send(replica, peer, new, wanted, up, out)


def _introduced(replica: Replica, ops: Iterable[Operation]) -> tuple[Matrix, ...]:
    """The matrices that these operations introduce."""
    history = replica.history
    # Not of an operation that is only proof: its matrix may never have come here.
    introduced = [op.matrix.hash for op in ops if op.matrix.introduced == op.stamp and op.id in history.ops]
    if not introduced:
        return ()
    held = {history.ops[op.id].matrix.hash for op in ops if op.id in history.ops}
    return tuple(history.find_matrix(hash_) for hash_ in introduced if hash_ in held)


def _send(  # noqa: PLR0913, PLR0917 - what goes into the message
    replica: Replica,
    peer: str,
    new: tuple[tuple[Operation, ...], tuple[Matrix, ...]],
    wanted: Iterable[str],
    up: Container[str],
    out: Effects,
) -> None:
    """Send a peer this, and the replies that it gets from this site."""
    ops, matrices = new
    first, *rest = hub.batches_for(replica, peer)
    dispatch.send(
        replica,
        peer,
        out,
        ops=ops,
        replies=first.replies,
        replies_after=first.after,
        matrices=matrices,
        wanted=tuple(sorted(wanted))[:MAX_WANTED],
        for_others=not ops and hub.relies_on(replica, peer, up),
        unreached=tuple(site for site in replica.targets() if site not in up) if ops else (),
    )
    for batch in rest:
        dispatch.send(replica, peer, out, replies=batch.replies, replies_after=batch.after)


def send_matrices(replica: Replica, peer: str, matrices: tuple[Matrix, ...], out: Effects) -> None:
    dispatch.send(replica, peer, out, matrices=matrices)


def ask(replica: Replica, peer: str, out: Effects) -> None:
    """Ask a peer what it knows and has settled."""
    dispatch.send(replica, peer, out, ask=True)


def ask_all(replica: Replica, up: Container[str], out: Effects) -> None:
    for peer in replica.targets():
        if peer in up:
            ask(replica, peer, out)


def recall(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Ask a peer what it has, and for the documents of this site that are not in its store."""
    if replica.peer(peer).may_recall(now_ms):
        dispatch.send(replica, peer, out, ask=True, recall=True)


def answer_recall(replica: Replica, peer: str, message: Message, out: Effects, now_ms: int) -> None:
    """Send a peer its own documents beyond those that its store has: proof that the store is an old copy."""
    origin = Origin(peer, message.incarnation)
    is_asked = message.recall and peer in replica.history.ever_listed
    if not is_asked or not replica.peer(peer).may_recall(now_ms):
        return
    made, replied = message.known.get(origin, 0), message.known_replies.get(origin, 0)
    ops = [op for op in replica.history.ops.values() if op.origin == origin and op.seq > made]
    replies, _ = dispatch.first_batch(
        (one for one in replica.replies.of_origin(origin) if one.n > replied), replica.limits
    )
    # What was forgotten is under a seal, which has the statement of that site.
    ops, _ = dispatch.first_batch(sorted(ops or replica.history.seals, key=lambda op: op.stamp), replica.limits)
    dispatch.send(replica, peer, out, ops=tuple(ops), replies=tuple(replies))


def ask_for_statement(replica: Replica, peer: str, stable: Vector, origins: tuple[Origin, ...], out: Effects) -> None:
    """Ask a peer to state that it has settled all of this, and that these are the sites and their stores."""
    dispatch.send(replica, peer, out, seal_wanted=stable, seal_origins=origins)


def ask_for_promises(replica: Replica, up: Iterable[str], out: Effects, now_ms: int) -> None:
    """Before a deleted resource can be forgotten: ask the sites that have not said that it may be."""
    for peer in sorted(tombstones.to_ask(replica).intersection(up)):
        if replica.peer(peer).may_recall(now_ms):
            ask(replica, peer, out)


def report_dropped(replica: Replica, peer: str, log: Vector, out: Effects) -> None:
    """Tell a peer that this site has dropped the log that it wrote about."""
    dispatch.send(replica, peer, out, dropped=log)


def send_statement(replica: Replica, peer: str, statement: Statement, out: Effects) -> None:
    dispatch.send(replica, peer, out, statements=(statement,))


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


# -- receiving -------------------------------------------------------------------------------------------


def take(replica: Replica, peer: str, message: Message, matrices: Mapping[str, Matrix], out: Effects) -> set[str]:
    """Take what is new in a message and return the hashes of matrices that are missing."""
    missing = snapshot.take(replica, peer, message, matrices, out)
    if missing is None or missing:
        return missing or set()
    answer = _take_operations(replica, peer, message.ops, matrices, out) if message.ops else []
    missing = deliver(replica, matrices, out) if replica.inbox.waiting else set()
    if message.replies and tombstones.may_be_same_life(replica, message):
        _take_replies(replica, message, out)
    if message.ops and replica.is_target(peer):
        _compare_later(replica, peer, message)
        if answer and message.ask:  # not an answer to an answer
            batch, _ = dispatch.first_batch(answer, replica.limits)
            dispatch.send(replica, peer, out, ops=tuple(batch))
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
            replica.inbox.hold(op, endorsed=admission.is_endorsed_by(replica, peer, op))
    return answer


def _compare_later(replica: Replica, peer: str, message: Message) -> None:
    """If an operation of a peer was refused, the two sites may hold different contents of something before it."""
    if any(op.id in replica.inbox.refused for op in message.ops):
        replica.peer(peer).note_refusal()


def _take_replies(replica: Replica, message: Message, out: Effects) -> None:
    """Take the replies that leave no gap. The others come again once the gap is filled."""
    known_before = dict(replica.replies.known)
    for reply in sorted(message.replies, key=attrgetter("n")):
        last = replica.replies.known.get(reply.origin, 0)
        after = message.replies_after.get(reply.origin)
        # Numbers may be missing because the sender has dropped those replies, not because they are still to come.
        without_gap = after is not None and after <= known_before.get(reply.origin, 0)
        is_next = reply.n == last + 1 or (without_gap and reply.n > last)
        if is_next and admission.admits_reply(replica, reply):
            replica.take_reply(reply, out)


def deliver(replica: Replica, matrices: Mapping[str, Matrix], out: Effects) -> set[str]:
    """Take every waiting operation whose dependencies and matrix are here (causal delivery); return the hashes of the
    matrices that are missing."""
    missing: set[str] = set()
    progressed = True
    # An operation that is taken may be what others wait for. In the order of stamps one pass is usually enough.
    while progressed:
        progressed = False
        for first in sorted(replica.inbox.waiting.values(), key=attrgetter("stamp")):
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
            snapshot.start_over(replica, None, out)
            ledger.save(replica, out)
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
