"""Snapshots: what a site gets that has missed what the others have forgotten.

A snapshot holds everything that is left of a resource, and up to where that counts. It replaces more than it adds, and
may come from a hostile site: so it is judged as a whole (`admission.admits_snapshot`), and taken in one step. One that
is too large for a message goes in pieces (pieces.py).
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from itertools import chain

from msgspec.structs import replace

from cheops.engine import admission, dispatch, ledger
from cheops.engine.documents import (
    Base,
    Message,
    Snapshot,
    epoch_records,
    epochs_from,
    key_of,
    op_key,
    read,
    written,
)
from cheops.engine.events import Effects, Notify
from cheops.engine.pieces import OutgoingSnapshot, Part, TooLargeError
from cheops.engine.replica import Replica
from cheops.engine.settings import Limits
from cheops.log.causality import NOTHING, Vector, contains, covers, joined
from cheops.log.history import History
from cheops.log.matrix import Matrix
from cheops.log.operation import Operation, OpId, Origin, Reply
from cheops.log.seals import is_of_one_site, overruled_by, standing

# -- sending ---------------------------------------------------------------------------------------------


def send_next(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Send a peer a snapshot, or the next piece of the one that is on its way to it."""
    view = replica.peer(peer)
    if view.snapshot is None or not view.snapshot.held:
        view.begin_snapshot(_outgoing(replica, peer))
    outgoing = view.snapshot
    assert outgoing is not None  # noqa: S101 - it has just begun, if there was none
    piece = outgoing.next_piece
    part = outgoing.parts[piece.number - 1]
    view.note_batch(outgoing.snapshot.floor, NOTHING, now_ms, unfinished=True)
    dispatch.send(
        replica,
        peer,
        out,
        ops=part.ops,
        replies=part.replies,
        matrices=part.matrices,
        ask=True,
        snapshot=outgoing.snapshot if piece.number == piece.total else None,
        piece=piece if outgoing.is_in_pieces else None,
    )


def _outgoing(replica: Replica, peer: str) -> OutgoingSnapshot:
    """A snapshot of a resource as it is now, for a peer."""
    history, limits = replica.history, replica.limits
    adopted = {history.adopted.hash} if history.adopted else set()
    hashes = sorted({op.matrix.hash for op in history.ops.values()} | adopted)
    ops = sorted(history.ops.values(), key=lambda op: op.stamp)
    replies = list(dispatch.replies_beyond(replica, peer, NOTHING))
    snapshot = Snapshot(
        dict(history.floor),
        dict(replica.replies_for(peer)),
        replica.applied.base,
        history.adopted,
        epoch_records(history.epochs),
        frozenset(history.rejected_matrices),
        history.root,
        written(history.contents.floor),
    )
    matrices = list(map(history.find_matrix, hashes))
    said = (
        sorted(history.known.items()),
        sorted(history.floor.items()),
        history.summary(),
        [op.id for op in ops],
        [(reply.origin, reply.n) for reply in replies],
    )
    id_ = sha256(repr(said).encode()).hexdigest()[:32]
    return OutgoingSnapshot(id_, snapshot, _parts([*matrices, *ops, *replies], limits))


def _parts(documents: list[Matrix | Operation | Reply], limits: Limits) -> list[Part]:
    """The documents of a snapshot, in parts that fit into one message each."""
    parts = [
        Part(
            tuple(one for one in batch if isinstance(one, Matrix)),
            tuple(one for one in batch if isinstance(one, Operation)),
            tuple(one for one in batch if isinstance(one, Reply)),
        )
        for batch in dispatch.batches(documents, limits)
    ]
    return parts or [Part()]


# -- receiving -------------------------------------------------------------------------------------------


def assembled(replica: Replica, peer: str, message: Message, out: Effects, now_ms: int) -> Message:
    """A message with all pieces of its snapshot, if this is the last one; otherwise without its piece."""
    if message.piece is None:
        return message
    whole = None
    try:
        if replica.source.site == peer:  # what this site has not asked for takes no memory
            whole = replica.assemblies.add(peer, message, now_ms)
    except TooLargeError:
        replica.peer(peer).as_source.back_off(now_ms)
        replica.source.clear()
        most = replica.limits.snapshot_bytes
        what = f"{peer} sends a snapshot of more than {most:,} bytes: raise limits.snapshot_size of this site"
        out.others.append(Notify(replica.resource, admission.REFUSED, None, what, by=peer))
    return whole or replace(message, ops=(), replies=(), matrices=(), snapshot=None, piece=None, replies_after={})


def take(
    replica: Replica, peer: str, message: Message, matrices: Mapping[str, Matrix], out: Effects
) -> set[str] | None:
    """Take the snapshot in a message, if there is one that this site needs. Returns the hashes of matrices that are
    missing; None if nothing of the message may be taken."""
    snapshot = message.snapshot
    if snapshot is None or not _is_needed(replica, message, snapshot):
        return set()
    if not admission.admits_snapshot(replica, peer, message, snapshot, out):
        return None
    if missing := _hashes_in(message, snapshot) - matrices.keys():
        return missing
    _take_snapshot(replica, message, snapshot, out)
    return set()


def _is_needed(replica: Replica, message: Message, snapshot: Snapshot) -> bool:
    """Whether this site cannot do without a snapshot. Where the operations in the message fill the gap, they are taken
    one by one, and checked like any others: a snapshot replaces more than it adds.

    But what a site folded while it was alone, others must have from its checkpoint, even if they know every operation.
    Its seal orphans nothing, so an operation that comes too late for it has an effect: on top of the checkpoint."""
    known = dict(replica.history.known)
    if covers(known, snapshot.floor):
        return False
    for op in sorted(message.ops, key=lambda op: op.seq):
        if _is_next(op, known):
            known[op.origin] = op.seq
    if not replica.history.ops or not covers(known, snapshot.floor):
        return True
    folded = snapshot.base.vector if snapshot.base else NOTHING
    alone = [op for op in message.ops if is_of_one_site(op) and contains(folded, op.id)]
    return bool(alone) and not _is_own_senior(replica.history, message, alone)


def _is_own_senior(history: History, message: Message, theirs: Iterable[Operation]) -> bool:
    """Whether this site, too, has sealed alone and folded what another one must have from its checkpoint; and that one
    does not know all of it. If each knows what the other has folded, the newer seal decides."""
    ours = [op for op in history.seals if is_of_one_site(op) and contains(history.folded, op.id)]
    if not ours:
        return False
    newest = max(ours, key=lambda op: op.stamp)
    known = joined(message.known, {newest.origin: newest.seq} if _is_next(newest, message.known) else NOTHING)
    return not covers(known, history.folded) or newest.stamp > max(op.stamp for op in theirs)


def _is_next(op: Operation, known: Vector) -> bool:
    return known.get(op.origin, 0) == op.seq - 1


def _hashes_in(message: Message, snapshot: Snapshot) -> set[str]:
    adopted = {snapshot.adopted.hash} if snapshot.adopted else set()
    return adopted | {op.matrix.hash for op in message.ops}


def _take_snapshot(replica: Replica, message: Message, snapshot: Snapshot, out: Effects) -> None:
    """The other sites have forgotten what is missing here: rebuild the history from what they have kept."""
    history, our_root, our_floor = replica.history, replica.history.root, replica.history.floor
    if (our_root and snapshot.root and our_root < snapshot.root) or _is_overruled(history, message, snapshot):
        # Two resources of one name meet, or what two parts of the sites did apart. Theirs gives way: what they forgot
        # has no effect. Their seals prove the floor to other sites.
        _take_beside_ours(replica, message, snapshot, [op for op in message.ops if op.seal], out)
        return
    if _must_keep_checkpoint(history, message, snapshot):
        new = [op for op in message.ops if op.seal or not contains(history.known, op.id)]
        _take_beside_ours(replica, message, snapshot, new, out)
        return
    kept = {op.id for op in message.ops}
    held = {id_ for id_ in history.ops if not contains(snapshot.floor, id_)}
    folded = snapshot.base.vector if snapshot.base else {}
    # What the sender has forgotten has no effect by its word; by ours it must not have one either. So only what the
    # checkpoint covers goes at once. The rest is added again, and forgotten when this site finds it without effect.
    gone = [id_ for id_ in history.ops if _is_replaced(history, id_, snapshot, folded) and id_ not in kept]
    out.drop(op_key(replica.resource, id_) for id_ in gone)
    # Also what our checkpoint held, and theirs does not: it is in effect after theirs.
    counted = joined(snapshot.floor, our_floor)
    theirs = [op for op in message.ops if contains(counted, op.id) and op.id not in held]
    taken = {op.id for op in theirs}.union(gone)
    ours = [op for op in history.ops.values() if op.id not in taken]
    our_contents, we_folded = history.contents.floor, bool(history.folded)
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
        start_over(replica, snapshot.base, out)
    is_other = our_root and snapshot.root and our_root != snapshot.root
    # What we forgot is not here any more, and has no effect: because ours gives way, or by our own word. But what our
    # checkpoint held had one. It is lost with the checkpoint, and must not count as known; unless its author sealed it
    # without knowledge of a seal that counts now.
    overruled = our_floor if is_other or not we_folded else overruled_by(_standing(message.ops, ours), ours)
    history.raise_floor({o: n for o, n in our_floor.items() if n <= overruled.get(o, 0)}, our_contents)
    replica.applied.history_changed(0)
    # Both lists again in causal order, which `History.add` requires and which stamps extend.
    for op in sorted([*theirs, *ours], key=lambda op: op.stamp):
        replica.add(op)
        out.documents[key_of(op)] = op
    for reply in message.replies:
        if reply.n <= snapshot.reply_floor.get(reply.origin, 0) and reply.origin != replica.origin:
            replica.take_reply(reply, out)
    replica.replies.skip_to(_reply_floor(replica, message, snapshot))
    ledger.save(replica, out)


def _take_beside_ours(
    replica: Replica, message: Message, snapshot: Snapshot, kept: Iterable[Operation], out: Effects
) -> None:
    """Keep what is here, and count what the others have forgotten as known. `kept` is what is taken of the rest."""
    history = replica.history
    history.raise_floor(snapshot.floor, read(snapshot.contents))
    for op in sorted(kept, key=lambda op: op.stamp):
        if contains(snapshot.floor, op.id) and op.id not in history.ops:
            replica.add(op)
            out.documents[key_of(op)] = op
    replica.replies.skip_to(_reply_floor(replica, message, snapshot))
    ledger.save(replica, out)


def _must_keep_checkpoint(history: History, message: Message, snapshot: Snapshot) -> bool:
    """Whether this site has a checkpoint, and the sender has none: two sites that were each removed at the other went
    on alone, and only this one has what its checkpoint holds. What the other one forgot had no effect. The rest comes
    on top of the checkpoint, here and there, unless a seal of theirs orphans what it holds."""
    if snapshot.base is not None or not history.folded:
        return False
    seals = _standing(message.ops, history.seals)
    return all(sealing in seals for sealing in history.seals)


def _standing(*ops: Iterable[Operation]) -> list[Operation]:
    """The seals that count among all of these operations."""
    return standing(op for op in chain(*ops) if op.seal)


def _is_overruled(history: History, message: Message, snapshot: Snapshot) -> bool:
    """Whether all that is missing here was sealed and forgotten without knowledge of a seal that counts here."""
    overruled = overruled_by(_standing(message.ops, history.seals), message.ops)
    return bool(overruled) and covers(joined(history.known, overruled), snapshot.floor)


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


def start_over(replica: Replica, base: Base | None, out: Effects) -> None:
    """Have everything run again, from a checkpoint if there is one."""
    replica.applied.start_over(base)
    ledger.save_unfinished_replay(replica, out, from_start=True)
