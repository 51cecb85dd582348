"""Catching up: how a site gets what it lacks, once, although several others could send it.

Each site knows from messages what the others have. To a site that lacks something it sends a question (`ask`), which
says what it knows itself. The other one chooses one *source* among the sites that ask: all its messages name it, and
only the source sends. So a log is sent once to a site that joins, however many sites have it.

- The source sends one batch, in the order of stamps, and the next when that is acknowledged. If it is not, it goes
  again after a time that doubles.
- A site keeps its source while that makes progress. If the source is down, brings nothing for a while, or takes very
  long, the next site that asks takes its place: so a document reaches a site however links fail.
- A site sends its own new documents to all (exchange.py). It repeats them to each site that does not acknowledge them
  and has no source.
- A site that comes back to the list lacks what was made without it. Nobody has sent that, so nobody repeats it: it
  is asked, and chooses a source, like a new one. So does a site that left, for a later list (`Replica.was_absent`).
- A site that never answers may hear nevertheless. It gets the first batch again and again, at long intervals.
"""

from collections.abc import Container

from cheops.engine import dispatch, hub, snapshot
from cheops.engine.documents import Message
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, contains, covers
from cheops.log.operation import Operation, Origin, Reply

# -- to a site that lacks something ------------------------------------------------------------------------


def attend(replica: Replica, peer: str, up: Container[str], out: Effects, now_ms: int) -> None:
    """Send a peer what it is missing, if it is up and that is due."""
    if peer not in up:
        return
    view = replica.peers.get(peer)
    # Mostly nothing is due. Each tick asks this for each site, and `targets` looks at all of them.
    may_differ = view is not None and (view.differs or view.refused)
    if view and not (view.in_charge or view.resend.is_due(now_ms) or (may_differ and view.is_recheck_due(now_ms))):
        return
    if not replica.is_target(peer):
        return
    view = replica.peer(peer)
    view.in_charge = view.in_charge and replica.is_behind(peer)
    if view.resend.is_due(now_ms) and replica.is_behind(peer) and _is_task(replica, peer):
        send_missing(replica, peer, up, out, now_ms)
    elif view.is_recheck_due(now_ms):
        send_all_again(replica, peer, out, now_ms)


def _is_task(replica: Replica, peer: str) -> bool:
    """Whether it is up to this site that a peer gets what it lacks, or is asked what it has."""
    view = replica.peer(peer)
    # A site that has left gets no reports of others: so what it knows and they may not, is its own task.
    if view.is_asked or view.is_silent or view.in_charge or not replica.is_involved:
        return True
    return view.source == replica.site or replica.owes(peer)


def send_missing(replica: Replica, peer: str, up: Container[str], out: Effects, now_ms: int) -> None:
    """Send what a peer is missing, or ask what it has; the next attempt waits until the resend timer is due."""
    view = replica.peer(peer)
    if view.is_silent or (view.source == replica.site and not view.must_ask):
        _send_next(replica, peer, up, out, now_ms)
    elif view.must_ask or view.source or not _repeat(replica, peer, up, out, now_ms):
        view.note_question(now_ms)
        dispatch.send(replica, peer, out, ask=True)


def _send_next(replica: Replica, peer: str, up: Container[str], out: Effects, now_ms: int) -> None:
    """Send the next batch of what a peer is missing: the documents of all sites."""
    view = replica.peer(peer)
    if not covers(view.known, replica.history.floor):
        # It is missing operations that this site has forgotten: they exist only as their effect, in a snapshot.
        snapshot.send_next(replica, peer, out, now_ms)
        return
    ops = [op for op in replica.history.ops.values() if not contains(view.known, op.id)]
    # By stamp, so that causes come before their effects: a batch that ends in the middle leaves nothing waiting.
    ops, more_ops = dispatch.first_batch(sorted(ops, key=lambda op: op.stamp), replica.limits)
    lacking = dispatch.replies_beyond(replica, peer, view.known_replies)
    replies, more_replies = dispatch.first_batch(lacking, replica.limits)
    _send_batch(replica, peer, [*ops, *_listing_for(replica, peer, ops)], replies, up, out, now_ms)
    view.note_batch(_last(ops), _last_replies(replies), now_ms, unfinished=more_ops or more_replies)


def _listing_for(replica: Replica, peer: str, ops: list[Operation]) -> list[Operation]:
    """The operation by which a peer that knows nothing yet can see that the resource concerns it. With a policy it
    takes nothing without that (`admission._absence`), and in the order of stamps it may come many batches later."""
    if replica.peer(peer).known or any(peer in (op.sites or ()) for op in ops):
        return []
    listings = [op for op in replica.history.ops.values() if peer in (op.sites or ())]
    return [max(listings, key=lambda op: op.stamp)] if listings else []


def _repeat(replica: Replica, peer: str, up: Container[str], out: Effects, now_ms: int) -> bool:
    """Send again what this site made and pushed, and the peer has not acknowledged. False if there is nothing of that,
    or more than a batch, or the peer was not on the list then: it chooses a source."""
    view, own = replica.peer(peer), replica.origin
    if not covers(view.known, replica.history.floor) or replica.was_absent(peer):
        return False
    known, owed = view.known.get(own, 0), replica.owed_to(peer)
    ops = [op for op in replica.history.ops.values() if op.origin == own and op.seq > known]
    replies = [one for one in replica.replies.beyond(view.known_replies) if one.n <= owed.get(one.origin, 0)]
    if not ops and not replies:
        return False
    pushed, pushed_replies = view.take_pushed(replica.history.known, replica.replies.known)
    # What was pushed just now may be on its way.
    ops = [op for op in ops if contains(pushed, op.id)]
    replies = [reply for reply in replies if reply.n <= pushed_replies.get(reply.origin, 0)]
    if not ops and not replies:
        view.resend.wait_first(now_ms)
        return True
    ops, more_ops = dispatch.first_batch(sorted(ops, key=lambda op: op.stamp), replica.limits)
    replies, more_replies = dispatch.first_batch(replies, replica.limits)
    if more_ops or more_replies:
        return False
    view.forget_told()
    _send_batch(replica, peer, ops, replies, up, out, now_ms)
    view.note_repeat(now_ms)
    return True


def _send_batch(  # noqa: PLR0913, PLR0917 - what goes into the message
    replica: Replica,
    peer: str,
    ops: list[Operation],
    replies: list[Reply],
    up: Container[str],
    out: Effects,
    now_ms: int,
) -> None:
    introduced = {op.matrix.hash for op in ops if op.matrix.introduced == op.stamp}
    matrices = tuple(map(replica.history.find_matrix, sorted(introduced)))
    known = replica.peer(peer).known_replies
    after = {reply.origin: known.get(reply.origin, 0) for reply in replies}
    dispatch.send(
        replica,
        peer,
        out,
        ops=tuple(ops),
        replies=tuple(replies),
        matrices=matrices,
        replies_after=after,
        ask=True,
        passed=hub.reports_for(replica, peer, now_ms),
        for_others=hub.relies_on(replica, peer, up),
    )


def _last(ops: list[Operation]) -> Vector:
    last: dict[Origin, int] = {}
    for op in ops:
        last[op.origin] = max(op.seq, last.get(op.origin, 0))
    return last


def _last_replies(replies: list[Reply]) -> Vector:
    last: dict[Origin, int] = {}
    for reply in replies:
        last[reply.origin] = max(reply.n, last.get(reply.origin, 0))
    return last


def send_all_again(replica: Replica, peer: str, out: Effects, now_ms: int) -> None:
    """Send operations that a peer knows by their ids, because its contents differ: the next batch of all of them."""
    view = replica.peer(peer)
    view.recheck.back_off(now_ms)
    ops = sorted(replica.history.ops.values(), key=lambda op: op.stamp)
    wanted = [op for op in ops if view.rechecked is None or op.stamp > view.rechecked]
    batch, more = dispatch.first_batch(wanted, replica.limits)
    view.note_rechecked(batch[-1].stamp if more else None)
    dispatch.send(replica, peer, out, ops=tuple(batch), ask=True)


# -- where this site lacks something -----------------------------------------------------------------------


def consider(replica: Replica, peer: str, message: Message, up: Container[str], now_ms: int) -> None:
    """A peer asks what this site has. If it has more itself, it may become the source of what is missing here.

    Only questions count: what a site has just pushed may have overtaken what it pushed before.
    """
    source = replica.source
    brings_something = source.site == peer and (message.piece or message.snapshot or message.ops or message.replies)
    if source.is_fruitless(now_ms) and not brings_something:  # it may wait for longer between two attempts
        replica.peer(source.site).as_source.back_off(now_ms)
        source.clear()
    if not message.ask or not peer or not _lacks(replica, message.known, message.known_replies):
        return
    view = replica.peer(peer)
    if replica.history.ops and not view.must_ask and not _lacks(replica, view.known, view.known_replies):
        return  # what is missing is so new that it may be on its way from the site that made it
    is_free = source.site in ("", peer) or (peer in up and (source.site not in up or source.is_old(now_ms)))
    if is_free and view.as_source.is_due(now_ms):
        source.choose(peer, now_ms)


def give_up(replica: Replica, peer: str, now_ms: int) -> None:
    """A peer sends what this site does not take: it is not asked again soon."""
    replica.peer(peer).as_source.back_off(now_ms)
    if replica.source.site == peer:
        replica.source.clear()


def note_taken(replica: Replica, peer: str, message: Message, up: Container[str], now_ms: int) -> None:
    """A message was taken. When the source has nothing more, choose another site that has; if there is none, tell the
    others that they may send by themselves again."""
    source = replica.source
    if source.site != peer:
        return
    if message.snapshot and not covers(replica.history.known, message.snapshot.floor):
        replica.peer(peer).as_source.back_off(now_ms)  # it was refused: another site may have one that is not
    elif _has_more(replica, peer, message, now_ms):
        return
    else:
        replica.peer(peer).as_source.reset_delay()
    source.clear()
    others = [site for site in sorted(replica.peers) if site in up and _is_possible(replica, site, now_ms)]
    if others:
        source.choose(others[0], now_ms)
        replica.outbox.acknowledge(others[0])
        return
    for other in replica.targets():
        replica.outbox.acknowledge_later(other)


def _has_more(replica: Replica, peer: str, message: Message, now_ms: int) -> bool:
    """Whether the source, which sent this, has more; notes how far this site is."""
    held = replica.assemblies.held(replica.resource, peer)
    replica.source.note_progress((dict(replica.history.known), dict(replica.replies.known), held), now_ms)
    return _lacks(replica, message.known, message.known_replies)


def _is_possible(replica: Replica, site: str, now_ms: int) -> bool:
    view = replica.peer(site)
    return _lacks(replica, view.known, view.known_replies) and view.as_source.is_due(now_ms)


def _lacks(replica: Replica, known: Vector, known_replies: Vector) -> bool:
    """Whether another site, which knows this, has something that this one lacks. What others replied is not sent to a
    site that left."""
    if replica.has_left:
        known_replies = {one: n for one, n in known_replies.items() if one.site == replica.site}
    return not covers(replica.history.known, known) or not covers(replica.replies.known, known_replies)
