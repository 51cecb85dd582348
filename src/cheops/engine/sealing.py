"""How a seal comes about: one site asks all others for signed statements, and submits the seal when it has them.

A seal says something about every site of the resource, so it must carry the word of each (cheops.log.seals). The first
site by name does this, so that not all of them do it at the same time. When a seal is due (`retention.seal_due`), it
sends the vector to the other sites. Each answers with a statement if that is true there. The next operation of a client
carries the seal; if none comes, the site submits one of its own. All of this is lost in a crash, and asked again.

A site that asks may be a stolen one. So a site states only what keeps everything that it knows in effect:

- it has settled all of the vector, so all that it will ever make depends on it;
- the vector includes all that is known here of origins that cannot speak for themselves any more: sites that are not on
  the list, and stores that were replaced. The author of a seal must know what it seals, so it cannot leave them out.
"""

from collections.abc import Container

from cheops.engine import exchange, retention
from cheops.engine.documents import Message, key_of
from cheops.engine.events import Effects
from cheops.engine.replica import Replica
from cheops.log.causality import Vector, covers
from cheops.log.operation import Origin, Seal, Stamp, Statement, vector_hash


def ask(replica: Replica, up: Container[str], out: Effects, now_ms: int) -> None:
    """If a seal is due, ask the sites whose statements are missing."""
    request = replica.seal_request
    due = retention.seal_due(replica)
    if due is None:
        request.drop()
        return
    is_due = request.timer.is_due(now_ms)
    if not request.vector or (is_due and request.vector != due and unanswered(replica)):
        request.begin(due)
    if is_due and (missing := unanswered(replica)):
        request.timer.back_off(now_ms)
        for peer in sorted(missing):
            if peer in up:
                exchange.ask_for_statement(replica, peer, request.vector, out)


def unanswered(replica: Replica) -> set[str]:
    """The sites whose statement is missing for the seal that this site wants to make."""
    request = replica.seal_request
    return set(replica.sites) - {replica.site, *request.statements} if request.vector else set()


def is_ready(replica: Replica) -> bool:
    """Whether a seal can be made: all statements are here, and all operations that they count."""
    request, known = replica.seal_request, replica.history.known
    return (
        bool(request.vector)
        and not unanswered(replica)
        and all(one.made <= known.get(one.origin, 0) for one in request.statements.values())
        # A draft may change the list: then the seal would need the statements of other sites.
        and not any(draft.sites is not None or draft.seal for draft in replica.drafts)
    )


def seal_for(replica: Replica, stamp: Stamp) -> Seal | None:
    """The seal that an operation with this stamp carries, or None."""
    if not is_ready(replica):
        return None
    request = replica.seal_request
    statements = request.statements
    proofs = tuple(statements[site] for site in sorted(statements) if site in replica.sites)
    seal = Seal(request.vector, replica.history.root or stamp, proofs)
    request.drop()
    request.timer.reset_delay()
    return seal


def take(replica: Replica, peer: str, message: Message) -> None:
    """Keep the statement in an answer of a peer."""
    request = replica.seal_request
    for one in message.statements:
        if one.origin == Origin(peer, message.incarnation) and one.resource == replica.resource:
            request.keep(one)


def answer(replica: Replica, peer: str, vector: Vector, out: Effects) -> None:
    """State what a site asks for, if it is true. Otherwise it asks again."""
    if peer not in replica.sites or not _may_state(replica, vector):
        return
    stable = vector_hash(vector)
    made = max([replica.history.known.get(replica.origin, 0), *(draft.seq for draft in replica.drafts)])
    last = replica.statement
    # The same question gets the same answer, which needs no other signature; what was true then is true now.
    if last is None or last.stable != stable or not last.signature:
        last = replica.statement = Statement(replica.resource, replica.origin, stable, made)
        out.documents[key_of(last)] = last  # signed when it is stored, which is before it is sent
    exchange.send_statement(replica, peer, last, out)


def _may_state(replica: Replica, vector: Vector) -> bool:
    if not replica.is_involved or not covers(replica.applied.settled, vector):
        return False
    views = {site: replica.peers[site] for site in replica.sites if site in replica.peers}
    speaking = {replica.origin, *(Origin(site, view.incarnation) for site, view in views.items())}
    silent = {origin: n for origin, n in replica.history.known.items() if origin not in speaking}
    return covers(vector, silent)
