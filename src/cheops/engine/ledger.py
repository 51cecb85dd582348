"""The ledger of a resource: what is saved of a replica beside its operations and replies, and how it is restored.

A ledger is one document that is written again whenever something in it has changed. It has what cannot be computed from
the operations that are left: from where they count, what a checkpoint holds, which keys of the application must be
wiped, and the state that the store counts resources by (health.py).
"""

from collections.abc import Iterable
from operator import attrgetter

from cheops.engine.documents import (
    Document,
    Inherited,
    Ledger,
    Progress,
    Proof,
    Started,
    Withdrawn,
    epoch_records,
    epochs_from,
    key_of,
    read,
    written,
)
from cheops.engine.events import Effects
from cheops.engine.progress import progress_of, says_the_same
from cheops.engine.replica import Replica, SavedLedger
from cheops.log.causality import NOTHING
from cheops.log.operation import MAX_SITES, Operation, Reply, Statement, store_of


def load(replica: Replica, documents: Iterable[Document]) -> Started | None:
    """Restore the state from the store; return the run that was under way, if any."""
    documents = tuple(documents)  # what is one already is not copied
    started = next((d for d in documents if isinstance(d, Started)), None)
    # The ledger first: it says from where operations count. Then operations, then the replies that refer to them.
    ops = sorted((d for d in documents if isinstance(d, Operation)), key=attrgetter("stamp"))
    decided = [op for op in ops if op.verdict is not None]
    for ledger in (d for d in documents if isinstance(d, Ledger)):
        _restore(replica, ledger, decided)
    replica.drafts.load(op for op in ops if op.verdict is None)
    for op in decided:
        replica.add(op)
    replies = sorted((d for d in documents if isinstance(d, Reply)), key=attrgetter("n"))
    # Those of this store last: they say more than what an earlier store of this site replied.
    for reply in (reply for reply in replies if reply.origin != replica.origin):
        replica.replies.take(reply)
    for reply in (reply for reply in replies if reply.origin == replica.origin):
        replica.replies.take(reply)
        replica.applied.load_reply(reply)
    replica.applied.drop_stale_failures()
    if replica.saved.dirty:
        replica.applied.mark_dirty(replica.saved.dirty)
    replica.statement = next((d for d in documents if isinstance(d, Statement)), None)
    for proof in (d for d in documents if isinstance(d, Proof)):
        replica.keep_proof(proof)
    replica.withdrawn = {d.op.id: d for d in documents if isinstance(d, Withdrawn)}
    if inherited := next((d for d in documents if isinstance(d, Inherited)), None):
        replica.inherited, replica.is_catching_up = inherited.origins, inherited.catching_up
    if replica.saved.closed:
        replica.note_closed()
    _load_peers(replica)
    if replica.saved.unsynced:
        replica.owe_replies()
    return started


def _restore(replica: Replica, ledger: Ledger, ops: list[Operation]) -> None:
    folded = ledger.base.vector if ledger.base else {}
    replica.history.restore(
        ledger.floor,
        folded,
        epochs_from(ledger.epochs),
        ledger.rejected_matrices,
        ledger.adopted,
        read(ledger.contents),
        ops,
    )
    replica.history.ever_listed.update(ledger.untold)
    replica.replies.skip_to(ledger.reply_floor)
    replica.applied.load_base(ledger.base, applied=ledger.base_applied)
    replica.state, replica.due_ms = ledger.state, ledger.due_ms
    replica.drifts = {one.by: one for one in ledger.drifts}
    rejections = len(ledger.rejected_matrices)
    replica.saved = SavedLedger(ledger.unsynced, ledger.closed, rejections, ledger.dirty, ledger.progress)


def _load_peers(replica: Replica) -> None:
    """Restore what the peers have. A report of a store that was replaced since says nothing about the new one."""
    saved = replica.saved.progress
    if saved is None:
        return
    for site, record in saved.peers.items():
        store = store_of(record.incarnation)
        if store == replica.met.get(site, store):
            replica.peer(site).restore(record, saved)
            if not replica.proofs:  # otherwise contents must be compared, which only a new report allows
                owed = replica.replies.known if replica.saved.unsynced else NOTHING
                replica.peer(site).skip_question(replica.history.known, owed)


def save(replica: Replica, out: Effects) -> None:
    """Save the ledger as it is now."""
    history, applied, saved = replica.history, replica.applied, replica.saved
    saved.rejections, saved.dirty = len(history.rejected_matrices), applied.dirty
    saved.progress, saved.closed = _progress(replica), replica.is_closed
    ledger = Ledger(
        replica.resource,
        unsynced=saved.unsynced,
        floor=dict(history.floor),
        reply_floor={origin: n for origin, n in replica.replies.known.items() if n},
        base=applied.base,
        base_applied=applied.base_applied,
        adopted=history.adopted,
        epochs=epoch_records(history.epochs),
        rejected_matrices=frozenset(history.rejected_matrices),
        contents=written(history.contents.floor),
        dirty=applied.dirty,
        drifts=tuple(replica.drifts.values()),
        state=replica.state,
        progress=saved.progress,
        generation=replica.origin.generation,
        due_ms=replica.due_ms,
        closed=saved.closed,
        untold=tuple(replica.untold())[:MAX_SITES],
    )
    out.documents[key_of(ledger)] = ledger


def save_state(replica: Replica, out: Effects, state: str, *, unsynced: bool, due_ms: int | None = None) -> None:
    """Save the state, whether this resource must be loaded when the site starts again, and when it may be dropped,
    if they have changed."""
    if (replica.saved.unsynced, replica.state, replica.due_ms) != (unsynced, state, due_ms):
        replica.saved.unsynced, replica.state, replica.due_ms = unsynced, state, due_ms
        save(replica, out)


def close(replica: Replica, out: Effects) -> None:
    """Promise that this site adds nothing to the log."""
    replica.note_closed()
    save(replica, out)


def save_progress(replica: Replica, out: Effects) -> None:
    """Save what the peers have, if that says more than the ledger; before the resource leaves memory."""
    # Not for a later time alone: that would be a write for each look at a resource that does not change.
    if not says_the_same(_progress(replica), replica.saved.progress):
        save(replica, out)


def _progress(replica: Replica) -> Progress | None:
    # Only of sites that were ever on the list: any site may send a message.
    peers = {site: peer for site, peer in replica.peers.items() if site in replica.history.ever_listed}
    return progress_of(peers, replica.history.known, replica.replies.known, replica.applied.digest())


def save_changes(replica: Replica, out: Effects) -> None:
    """Save the ledger if something changed in this step that must outlive a crash."""
    # Without this, a rejected matrix could be in force again after a restart, once its operation is forgotten; and
    # nobody would know that the application still holds something that no operation stands for.
    # And a promise about a log that has grown since would count for the longer one.
    is_closed = replica.has_promised and replica.is_closed
    now = (len(replica.history.rejected_matrices), replica.applied.dirty, is_closed)
    if now != (replica.saved.rejections, replica.saved.dirty, replica.saved.closed):
        save(replica, out)


def mark_dirty(replica: Replica, keys: tuple[str, ...], out: Effects) -> None:
    """The application may hold anything of these keys; this is remembered across a crash."""
    replica.applied.mark_dirty(keys)
    save_unfinished_replay(replica, out, keys)


def save_unfinished_replay(
    replica: Replica, out: Effects, dirty: tuple[str, ...] = (), *, from_start: bool = False
) -> None:
    """Remember across a crash that the application may hold parts of these keys, until a replay wipes them."""
    started = Started(replica.resource, 0, None, replay=True, from_start=from_start, dirty=dirty)
    out.documents[key_of(started)] = started
