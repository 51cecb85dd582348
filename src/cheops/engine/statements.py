"""How a seal comes about: one site asks all others for signed statements, and submits the seal when it has them.

A seal says something about every site of the resource, so it must carry the word of each (cheops.log.seals). The first
site by name does this, so that not all of them do it at the same time. When a seal is due (`retention.seal_due`), it
sends the vector and the list of sites, with the store of each, to the others. Each answers with a statement if that is
true there. The next operation of a client carries the seal; if none comes, the site submits one of its own. All of this
is lost in a crash, and asked again.

A site that asks may be a stolen one. So a site states only what keeps everything that it knows in effect:

- the resource is at these sites by its own list, it is one of them, and it knows these stores as their current ones: a
  site that has lost its disk does not speak for the store before;
- it has settled all of the vector, so all that it will ever make depends on it;
- the vector includes all that is known here of origins that cannot speak for themselves any more: sites that are not on
  the list, and stores that were replaced. The author of a seal must know what it seals, so it cannot leave them out;
- no other site is known to have another content of an operation.

It also signs the root of the resource, which it does not take from the question: a statement that is kept and used
later must not make another resource of this one (cheops.log.seals).
"""

from collections.abc import Container

from cheops.engine import exchange, retention
from cheops.engine.documents import Message, key_of
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.causality import covers
from cheops.log.operation import Origin, Seal, Stamp, Statement, seal_hash


def ask(replica: Replica, up: Container[str], out: Effects, now_ms: int) -> None:
    """If a seal is due, ask the sites whose statements are missing."""
    request = replica.seal_request
    due = retention.seal_due(replica)
    if due is None:
        if request.stable:
            request.drop()
        return
    is_due = request.timer.is_due(now_ms)
    root = _root(replica)
    if root is None:
        return
    if not _is_current(replica) or (is_due and request.stable != due and unanswered(replica)):
        request.begin(due, _origins(replica), root)
    if is_due and (missing := unanswered(replica)):
        request.timer.back_off(now_ms)
        for peer in sorted(missing):
            if peer in up:
                exchange.ask_for_statement(replica, peer, request.stable, request.origins, out)


def _origins(replica: Replica) -> tuple[Origin, ...]:
    """The sites of the resource, each with the store that it has now; none if one of them has not been heard of yet."""
    views = {site: replica.peers.get(site) for site in replica.sites if site != replica.site}
    origins = [Origin(site, view.incarnation) for site, view in views.items() if view is not None and view.incarnation]
    return tuple(sorted([replica.origin, *origins])) if len(origins) == len(views) else ()


def _root(replica: Replica) -> Stamp | None:
    """What distinguishes the resource from others of its name; None if nothing is known of it. Before the first seal it
    is the earliest stamp: every site can tell that by itself, and it can only become earlier. A seal that is on its way
    counts already, so that this site does not sign for an earlier root after it."""
    history = replica.history
    draft = next((draft.seal.root for draft in replica.drafts if draft.seal), None)
    sealed = next((op.seal.root for op in history.seals if op.seal), None)  # also by a site that was alone
    return sealed or draft or history.earliest


def _is_current(replica: Replica) -> bool:
    """Whether what this site asked for is still what it would seal."""
    request = replica.seal_request
    return bool(request.origins) and (request.origins, request.root) == (_origins(replica), _root(replica))


def unanswered(replica: Replica) -> set[str]:
    """The other sites whose statement is missing for the seal that this site wants to make."""
    return replica.seal_request.unanswered - {replica.site}


def is_ready(replica: Replica) -> bool:
    """Whether a seal can be made: all statements are here, and all operations that they count."""
    request, known = replica.seal_request, replica.history.known
    if not request.origins and not replica.inherited:  # the usual case: nothing was asked for, or withdrawn
        return False
    # A draft may change the list: then the seal would need the statements of other sites.
    if any(draft.sites is not None or draft.seal for draft in replica.drafts):
        return False
    if _must_repeat(replica):
        return True
    return (
        _is_current(replica)
        and not unanswered(replica)
        and all(one.made <= known.get(one.origin, 0) for one in request.statements.values())
    )


def _must_repeat(replica: Replica) -> bool:
    """Whether this site has sealed something alone, and must do so again: the seal was withdrawn. It may be made only
    while nobody else is on the list, except sites that were removed then."""
    if not replica.is_involved or not retention.lacks_seal(replica):  # the usual case
        return False
    return not set(replica.history.site_list).difference(replica.gone.ever, {replica.site})


def seal_for(replica: Replica) -> Seal | None:
    """The seal that the next operation carries, or None."""
    if not is_ready(replica):
        return None
    request, root = replica.seal_request, _root(replica)
    if root is None:
        return None
    if _must_repeat(replica):
        return Seal(dict(replica.history.floor), root, (replica.origin,), ())
    if request.root is None:
        return None
    statements = tuple(request.statements[origin] for origin in request.origins if origin != replica.origin)
    seal = Seal(request.stable, request.root, request.origins, statements)
    request.drop()
    request.timer.reset_delay()
    return seal


def take(replica: Replica, peer: str, message: Message) -> None:
    """Keep the statement in an answer of a peer."""
    for one in message.statements:
        if one.origin == Origin(peer, message.incarnation) and one.resource == replica.resource:
            replica.seal_request.keep(one)


def answer(replica: Replica, peer: str, message: Message, out: Effects) -> None:
    """State what a site asks for, if it is true. Otherwise it asks again."""
    root = _root(replica) if message.seal_wanted else None
    if root is None or peer not in replica.sites or not _is_true(replica, message):
        return
    said = seal_hash(message.seal_wanted, message.seal_origins, root)
    made = max([replica.history.known.get(replica.origin, 0), *(draft.seq for draft in replica.drafts)])
    last = replica.statement
    # The same question gets the same answer, which needs no other signature; what was true then is true now.
    if last is None or last.seal != said or not last.signature:
        last = replica.statement = Statement(replica.resource, replica.origin, said, made)
        out.documents[key_of(last)] = last  # signed when it is stored, which is before it is sent
    exchange.send_statement(replica, peer, last, out)


def _is_true(replica: Replica, message: Message) -> bool:
    origins = _origins(replica)
    if not replica.is_involved or not origins or message.seal_origins != origins:
        return False
    if not set(replica.targets()).issubset(replica.sites):
        return False  # a site that left may have made operations that are not known here
    differ = any(view.differs for site, view in replica.peers.items() if site in replica.sites)
    if differ or not covers(replica.applied.settled, message.seal_wanted):
        return False
    silent = {origin: n for origin, n in replica.history.known.items() if origin not in origins}
    return covers(message.seal_wanted, silent)
