"""Tombstones: how a deleted resource leaves.

A deleted resource must be remembered for a while: a site that has not heard of the deletion would bring it back. When
every site of the list has settled the deletion, and a seal says so, no site lacks anything any more. What is left then
is a *tombstone*: the deletion, the list of sites and the seal. It is not listed.

After `Limits.tombstone_ms` it is dropped, with everything that is known of the resource:

    ready    A site whose time is over asks the others whether theirs is, too (`is_due`, `Message.ready`). This binds
             nobody: a client's operation comes after the deletion in the same log.
    close    When all sites of the list are ready and up, a site promises to add nothing to the log (`may_close`). The
             promise is durable. The others then promise the same (`Message.closed`). From then on a client's operation
             is refused: for as long as a question and an answer take.
    drop     When all have promised, or dropped it already, each of them forgets the resource (`may_drop`).

A promise is about the log as it is: both flags count only together with the vector of the message. A site that has not
promised may still add an operation. Where that arrives, the promise ends, and clients are served again
(`Replica.is_closed`). This is safe: that site never promises anything about the log without its operation, so no site
has all promises about that log, and none has dropped it. A site must not take a promise back by itself, however long it
waits: another one may have dropped the log because of it, and be down since. So the refusal names who is waited for.

A tombstone whose list names a site that was removed from the mesh stays: that site may be admitted again, and has not
settled the deletion. But if a site has promised before the removal, it had settled it, and the others go on without it.

A site that begins the resource again afterwards would give numbers a second time. So dropping counts *generations*
(`Drops`), and what a site begins or joins from then on, it does as another origin (cheops.log.operation.Origin). The
operations of a name therefore fall into *lives* that share no origin:

    a later life    begins without knowledge of the one before. A log that is closed, or of a site that has left, gives
                    way to it once there is proof that another site has dropped it (`gives_way`): sites need not drop
                    theirs at the same moment. Until there is, the later one waits (`is_undecided`).
    an earlier one  is what a site with a tombstone still reports, or one that had left (`Message.over`). For a site in
                    a later life this means that the other one has nothing of it (`without_earlier_life`).

**A site that still has what others have dropped** did not settle the deletion: its store is from an old backup. It is
not believed. A site recognises the log by its own documents, of a generation that it has dropped (`is_dropped_here`),
takes nothing of it, and says so (`Message.dropped`). The other site then is DIVERGED until somebody deletes its copy;
then its log needs no seal to be dropped.
"""

from collections.abc import Container, Iterable, Iterator

from msgspec.structs import replace

from cheops.engine import ledger, retention
from cheops.engine.documents import (
    Document,
    Drops,
    Inherited,
    Key,
    Ledger,
    Message,
    Started,
    key_of,
    op_key,
    reply_key,
)
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.causality import common
from cheops.log.operation import Origin, Reply, Stamp, Statement
from cheops.text import in_words

# A site promises to close a log when another one asks, even if by its own clock it is too early by this part of the
# time. Any site may ask; but none should make others forget at once what is deleted.
_EARLIEST_PART = 2
_FRESH_MS = 5_000  # what a site said within this time is what it has now

# -- what a tombstone is ---------------------------------------------------------------------------------


def is_tombstone(replica: Replica) -> bool:
    """Whether nothing is left of a resource but its deletion, at all its sites."""
    if not replica.history.is_deleted or not retention.is_deleted(replica) or replica.inbox.waiting:
        return False
    if replica.proofs or replica.withdrawn:
        return False  # an operator may need them
    if any(replica.peer(site).busy for site in replica.targets()):
        return False  # it may be about to add something
    return retention.all_settled(replica) and (retention.is_sealed(replica) or _is_dropped_elsewhere(replica))


def _is_dropped_elsewhere(replica: Replica) -> bool:
    """Whether every other site has dropped the resource: then nobody is left to sign a seal."""
    others = [replica.peers.get(site) for site in replica.sites if site != replica.site]
    return bool(others) and all(view is not None and view.dropped for view in others)


def bury(replica: Replica, out: Effects) -> None:
    """Keep of a tombstone only what it needs: the replies to what was deleted go."""
    history = replica.history
    views = [replica.peer(peer) for peer in replica.targets()]
    everywhere = common([replica.replies.known, *(view.known_replies for view in views)])

    def is_pointless(reply: Reply) -> bool:
        is_over = reply.op is not None and reply.op in history.fates
        return is_over and reply.n <= everywhere.get(reply.origin, 0)

    pointless = replica.replies.drop(is_pointless)
    if pointless:
        replica.replies.forget_operations({reply.op for reply in pointless if reply.op})
        out.drop(reply_key(replica.resource, reply.origin, reply.n) for reply in pointless)


def due_ms(replica: Replica) -> int | None:
    """When a tombstone may be dropped; None if nothing is known of the resource."""
    latest = replica.history.latest
    return latest.time_ms + replica.limits.tombstone_ms if latest else None


def doubt(replica: Replica) -> str:
    """Why the resource here should not be there; empty if no other site says so."""
    if replica.history.is_deleted or not any(view.dropped for view in replica.peers.values()):
        return ""
    dropped = [site for site in replica.sites if (view := replica.peers.get(site)) and view.dropped]
    if not dropped:
        return ""
    report = "reports" if len(dropped) == 1 else "report"
    return (
        f"{in_words(dropped)} {report} that all sites had deleted it, and that it is forgotten there; the store of "
        f"{replica.site} may be from before that. Delete it here, or create it under another id"
    )


# -- dropping it -----------------------------------------------------------------------------------------


def close_if_due(replica: Replica, up: Container[str], out: Effects, now_ms: int) -> None:
    """Say that the resource may be forgotten, and promise to add nothing to it, when it is time for each."""
    if not replica.is_ready and is_due(replica, now_ms):
        replica.note_ready()
    if may_close(replica, up):
        ledger.close(replica, out)


def is_due(replica: Replica, now_ms: int) -> bool:
    """Whether this site has nothing against forgetting the resource."""
    due = due_ms(replica)
    if due is None or not is_tombstone(replica):
        return False
    closed = _closed_at(replica)
    if not closed and not replica.gone.isdisjoint(replica.history.ever_listed):
        return False
    early_ms = replica.limits.tombstone_ms // _EARLIEST_PART if closed or _ready_at(replica) else 0
    return now_ms >= due - early_ms


def may_close(replica: Replica, up: Container[str]) -> bool:
    """Whether it is time to promise that nothing is added to the log. All sites must be up and ready: otherwise clients
    would be refused for long."""
    if replica.is_closed or not replica.is_ready:  # the usual case
        return False
    others = set(replica.targets())
    if not all(site in up for site in others) or not is_tombstone(replica):  # there may be a draft by now
        return False
    return bool(_closed_at(replica)) or _ready_at(replica) == others


def _ready_at(replica: Replica) -> set[str]:
    """The other sites that have nothing against forgetting the log as it is here."""
    return {site for site in replica.targets() if replica.peer(site).ready == replica.history.known}


def _closed_at(replica: Replica) -> set[str]:
    """The other sites that have promised to add nothing to the log as it is here."""
    return {site for site in replica.targets() if replica.peer(site).closed == replica.history.known}


def unconfirmed(replica: Replica) -> set[str]:
    """The sites that have not promised the same as this one."""
    return set(replica.targets()) - _closed_at(replica) if replica.is_closed else set()


def to_ask(replica: Replica) -> set[str]:
    """The sites that have not said what this one must hear before the resource can be forgotten."""
    if replica.is_closed or not replica.is_ready:
        return unconfirmed(replica)
    return set(replica.targets()) - _ready_at(replica) - _closed_at(replica)


def may_drop(replica: Replica) -> bool:
    """Whether everything that is known of a resource may go."""
    # A client may still wait for a site whose reply nobody has: it waits no longer than it wants to.
    return replica.is_closed and not replica.slot.running and not unconfirmed(replica) and is_tombstone(replica)


def refusal(replica: Replica, up: Container[str]) -> str | None:
    """Why a client's operation on a deleted resource is refused, or None."""
    if not replica.is_closed:
        return None
    down = sorted(site for site in unconfirmed(replica) if site not in up)
    if not down:
        return "the resource was deleted, and its sites are about to forget it: try again in a moment"
    are = "is" if len(down) == 1 else "are"
    return (
        f"the resource was deleted, and its sites are about to forget it, but {in_words(down)} {are} not up, and may "
        f"have forgotten it already: try again when {'it is' if len(down) == 1 else 'they are'} up, use another id, or "
        f"remove {'it' if len(down) == 1 else 'them'} for good with 'cheops site forget'"
    )


def drop(replica: Replica, drops: Drops, out: Effects) -> Drops:
    """Forget all documents of a resource; return what the site remembers of that."""
    keys = set(_keys(replica))
    out.drop((*keys, *(key for key in out.documents if key[1:2] == (replica.resource,) and key not in keys)))
    latest = replica.history.latest
    drops = Drops(drops.generation + 1, max(drops.until_ms, latest.time_ms if latest else 0))
    out.documents[key_of(drops)] = drops
    return drops


def _keys(replica: Replica) -> Iterator[Key]:
    """The keys of everything that the store may have of a resource."""
    resource = replica.resource
    ids = (*replica.history.ops, *(draft.id for draft in replica.drafts))
    yield from (op_key(resource, id_) for id_ in ids)
    yield from (reply_key(resource, reply.origin, reply.n) for reply in replica.replies)
    yield from (key_of(proof) for proof in replica.proofs.values())
    yield from (key_of(one) for one in replica.withdrawn.values())
    yield key_of(Ledger(resource))
    yield key_of(Started(resource, 0, None))
    yield key_of(Inherited(resource, ()))
    yield key_of(Statement(resource, replica.origin, "", 0))


# -- lives -----------------------------------------------------------------------------------------------


def origin_in(own: Origin, documents: Iterable[Document], drops: Drops) -> Origin:
    """The origin of a site in a resource: of its ledger's generation, or of the present one if it begins here now."""
    documents = tuple(documents)
    saved = next((one.generation for one in documents if isinstance(one, Ledger)), 0)
    generation = saved if documents else drops.generation
    return Origin(own.site, f"{own.store}.{generation}") if generation else Origin(own.site, own.store)


def gives_way(replica: Replica, message: Message) -> bool:
    """Whether a message is about a later life than that of the log here, and this one is over: this site has promised
    to add nothing to it, or has left it, and there is proof that a site of its list has dropped it."""
    if not _is_later(replica, message) or not _is_over(replica) or replica.slot.running:
        return False
    return _is_known_to_be_dropped(replica, message)


def is_undecided(replica: Replica, message: Message, now_ms: int) -> bool:
    """Whether a message must wait, at a site that has left the resource, until a site of the list has been heard. If
    that still has what is known here, another site has begun the resource without knowledge of it, and the two are
    merged; if it has dropped that, this is a later life. To merge two lives would bring back what was deleted. But if
    all sites of the list were removed from the mesh, nobody can be heard: the two are merged. What is here may be all
    that is left of the resource, and the removed sites may be back.

    At a site that has promised to add nothing it waits, too, until another one has added something, or dropped it: the
    new life may be of a site that has lost its store. And at one that still has what others have dropped, until
    somebody deletes that."""
    if not _is_later(replica, message) or gives_way(replica, message):
        return False
    if replica.is_closed or not replica.has_left:
        return replica.is_closed or _is_known_to_be_dropped(replica, message)
    heard = (view.same_life_ms for site in replica.sites if (view := replica.peers.get(site)))
    return bool(replica.sites) and not any(_is_fresh(heard_ms, now_ms) for heard_ms in heard)


def _is_over(replica: Replica) -> bool:
    """Whether this site does not go on with the log."""
    return replica.is_closed or replica.has_left or (is_tombstone(replica) and _is_dropped_elsewhere(replica))


def _is_fresh(heard_ms: int | None, now_ms: int) -> bool:
    return heard_ms is not None and 0 <= now_ms - heard_ms < _FRESH_MS


def _is_later(replica: Replica, message: Message) -> bool:
    """Whether a message may be about a later life: it begins without knowledge of anything here, after all of that."""
    history = replica.history
    if message.over is not None or message.dropped or not message.ops or history.latest is None:
        return False
    if _shares_origin(replica, message):
        return False
    # Somebody may have gone on with an old copy after the next life began.
    if any(op.stamp <= history.latest for op in message.ops) and not _is_of_later_generation(replica, message):
        return False
    begins = any(not op.deps or replica.site in (op.sites or ()) for op in message.ops)
    return begins or message.snapshot is not None


def _is_known_to_be_dropped(replica: Replica, message: Message) -> bool:
    """Whether a site of the list has said so, or has made something with the same store in a later generation."""
    if any(view.dropped for site, view in replica.peers.items() if site in replica.sites):
        return True
    return _is_of_later_generation(replica, message)


def _is_of_later_generation(replica: Replica, message: Message) -> bool:
    known = [origin for origin in replica.history.known if origin.site in replica.sites]
    new = [op.origin for op in message.ops]
    return any(two.shares_store(one) and two.generation > one.generation for one in known for two in new)


def without_earlier_life(message: Message) -> Message:
    """A message of a site that still has the log of an earlier life, which this site has dropped: the other one has
    nothing of the present one."""
    return replace(
        message,
        ops=(),
        replies=(),
        matrices=(),
        known={},
        known_replies={},
        replies_after={},
        settled={},
        digest="",
        summary="",
        snapshot=None,
        piece=None,
        seal_wanted={},
        seal_origins=(),
        statements=(),
        over=None,
        reports=(),
        ages=(),
        pull=False,
    )


def may_be_same_life(replica: Replica, message: Message) -> bool:
    """Whether the replies and reports in a message may be about the log here, as far as its sender's vector tells."""
    return not replica.history.known or not message.known or _shares_origin(replica, message)


def _shares_origin(replica: Replica, message: Message) -> bool:
    return not replica.history.known.keys().isdisjoint(message.known)


def is_dropped_here(replica: Replica, message: Message, drops: Drops) -> bool:
    """Whether a message brings documents of what this site has dropped: it counts what this very store made, in a
    generation of which nothing is here. But if this site had left the resource, it may be on a later list.

    A log without documents of this site may be of that kind, too: see `_is_old`."""
    brings = bool(message.ops or message.replies or message.snapshot)
    if not drops.generation or not (brings or message.over):  # otherwise nothing says which life it is about
        return False
    own, counted = replica.origin, (*message.known, *message.known_replies)
    ours = {origin for origin in counted if origin.shares_store(own) and origin != own}
    if not ours.difference(replica.history.known, replica.replies.known) and not _is_old(replica, message, drops):
        return False
    known = (*message.ops, *replica.inbox.waiting.values())
    is_back = any(replica.site in (op.sites or ()) and op.stamp.time_ms > drops.until_ms for op in known)
    return bool(replica.history.known) or not is_back


def _is_old(replica: Replica, message: Message, drops: Drops) -> bool:
    """Whether a log has nothing to do with the one here, if there is one, and is older than something that this site
    has dropped; and either it is over for its sender, which has left it, or has a tombstone; or it begins with what a
    store made that its site does not have any more: it is from a backup. Otherwise it would have come long ago."""
    if _shares_origin(replica, message):
        return False
    if message.over is not None:
        return message.over.time_ms <= drops.until_ms
    first = min(message.ops, key=lambda op: op.stamp, default=None)
    if first is None or first.stamp.time_ms > drops.until_ms:
        return False
    store = Origin(first.origin.site, replica.met.get(first.origin.site, first.origin.store))
    return not first.origin.shares_store(store)


def note_dropped(replica: Replica, peer: str, message: Message, now_ms: int) -> None:
    """A peer reports that it has dropped a log; it may be that of an earlier life."""
    if not replica.history.known.keys().isdisjoint(message.dropped):
        view = replica.peer(peer)
        view.incarnation = view.incarnation or message.incarnation  # so that it is saved
        view.note_dropped(now_ms)


def last_stamp(replica: Replica) -> Stamp | None:
    """The last stamp in a log that is over for this site: a tombstone, or of a resource that it has left; else None."""
    if not replica.has_left and not is_tombstone(replica):
        return None
    return replica.history.latest
