"""Contents: whether sites that know the same ids also know the same operations.

A correct site gives an id once. A site whose key is stolen may sign two operations under one id, and send each to other
sites; or it may make a site believe that an operation was forgotten. So sites that know the same ids compare sums of
the contents (`History.summary`). If these differ, they send each other their operations again, at growing intervals,
and until they agree nothing is sealed, folded or forgotten, and the status is DIVERGED.

Two contents of one id are proof that their origin, or somebody with its key, misbehaves. The content with the earlier
stamp stands at every site, or with the smaller hash if the stamps are equal (`precedence`), so the sites end equal. A
site that has run the other one runs this one from a base. Both are sent to all sites involved, the loser is kept as a
`Proof`, and an operator is alarmed (`EQUIVOCATION`).

The author of a later operation may have known the loser, so a policy judges by both. It looks at few fields: id, stamp,
list of sites, matrix and type. So a site keeps the whole loser only up to a bound per site that signed it, and beyond
that these fields (`Proof.cut`), which are small: several thousand fit into the second bound. Further ones are dropped
and counted, and reported once.

A site may refuse what another one accepted, because the two hold different contents of something before it. So to a
peer whose operation was refused, a site sends its own operations again too (`PeerProgress.refused`).

An operation that this site knows by its id only, and has not forgotten by its own decision, is taken when a site that
disagrees sends it.
"""

from collections.abc import Mapping
from itertools import islice

from msgspec.structs import replace

from cheops.engine import admission, incarnation, ledger
from cheops.engine.documents import MAX_LOST, LostContent, Message, Proof, Report, key_of
from cheops.engine.events import Effects, Notify
from cheops.engine.intake import BAD_NUMBER
from cheops.engine.progress import PeerProgress
from cheops.engine.replica import Replica
from cheops.log.causality import contains, covers
from cheops.log.contents import differ
from cheops.log.matrix import Matrix
from cheops.log.operation import Command, Operation, OpId, content_hash, content_of, precedence
from cheops.log.rules import Rule
from cheops.log.seals import broke_statement

EQUIVOCATION, BROKEN_STATEMENT = "equivocation", "broken-statement"
_MOST_ALARMS = 100  # of one resource: the next thousand say nothing new
# Of the proofs against one site, in one resource.
_MAX_WHOLE_BYTES = 1_000_000  # of one operation
_MAX_CUT_BYTES = 7_000_000  # of one that is cut: with the rest of its proof it must fit into a document
_WHOLE_BYTES = 4_000_000  # until then, operations are kept as a whole
_MOST_BYTES = 12_000_000  # until then, without what no policy looks at


def note_summary(replica: Replica, view: PeerProgress, message: Message | Report) -> None:
    """Compare the contents, if the sender of a message knows the same ids."""
    if message.summary and dict(message.known) == replica.history.known:
        view.note_difference(differs=differ(replica.history.summary(), message.summary))


def compare(
    replica: Replica, peer: str, op: Operation, matrices: Mapping[str, Matrix], out: Effects
) -> tuple[Operation, ...]:
    """Compare an operation that a peer sent with the one of that id that is known here. Returns the contents of that id
    which the peer may not know."""
    held = replica.history.ops.get(op.id)
    if held is None:
        view = replica.peers.get(peer)
        if view is not None and view.differs:
            _recover(replica, op, matrices, out)
    elif content_hash(held) != content_hash(op):
        _report(replica, held, op, out)
        if _may_take(replica, op, matrices, out):
            if precedence(op) < precedence(held):
                _replace(replica, held, op, out)
            if _is_proof(replica, op):
                # The sites that the loser names may have taken it, and must learn that it does not stand.
                replica.history.ever_listed.update(op.sites or ())
    proof = replica.proofs.get(op.id)
    if proof is None:
        return ()
    known = (replica.history.ops.get(op.id), *(one.op for one in proof.lost if not one.cut))
    return tuple(one for one in known if one is not None and content_hash(one) != content_hash(op))


def _is_proof(replica: Replica, op: Operation) -> bool:
    """Whether this content is kept as a proof."""
    proof = replica.proofs.get(op.id)
    return proof is not None and any(one.content == _hexadecimal(op) for one in proof.lost)


def refuse_own(replica: Replica, peer: str, op: Operation, out: Effects) -> None:
    """No other site makes operations of this one."""
    what = (
        "it claims to be of this site, which has not made it; if the store here is an old copy, start with an empty one"
    )
    if replica.inbox.refuse(op, what):
        out.others.append(Notify(replica.resource, admission.REFUSED, op.id, what, BAD_NUMBER, peer))


def _may_take(replica: Replica, op: Operation, matrices: Mapping[str, Matrix], out: Effects) -> bool:
    """Whether an operation can be judged now, and would be accepted. Otherwise it is sent again later."""
    running = replica.slot.running
    under_way = running is not None and (running.op is None or running.op.id == op.id)
    can_judge = covers(replica.history.known, op.deps) and op.matrix.hash in matrices and not under_way
    return can_judge and admission.admits(replica, op, out)


def _recover(replica: Replica, op: Operation, matrices: Mapping[str, Matrix], out: Effects) -> None:
    """Take an operation that counts as forgotten here. Where that is right, it has no effect, and goes again."""
    if op.is_silent or contains(replica.history.folded, op.id) or not _may_take(replica, op, matrices, out):
        return
    replica.add(op)
    out.documents[key_of(op)] = op


def _replace(replica: Replica, held: Operation, op: Operation, out: Effects) -> None:
    # After a crash, what had run is not known until all is settled again.
    may_have_run = not held.is_silent and not contains(replica.applied.settled, held.id)
    replica.applied.history_changed(replica.history.replace(op))
    out.documents[key_of(op)] = op
    if replica.applied.content_replaced(op.id) or may_have_run:
        # The application holds the effect of the other one. Something that wipes it must run before anything else.
        ledger.mark_dirty(replica, (held.key,), out)


def _report(replica: Replica, held: Operation, op: Operation, out: Effects) -> None:
    loser, before = max(held, op, key=precedence), replica.proofs.get(op.id)
    if _is_proof(replica, loser):
        return
    lost = _lost_content(replica, loser)
    if lost is None or (before is not None and len(before.lost) >= MAX_LOST):
        _drop(replica, op, out)
        return
    site = op.origin.site
    signed = "signed" if held.signature and op.signature else "sent"
    what = (
        f"{site} {signed} two different operations as {op.id}: its store was an old copy, or somebody else has its "
        "keys; find out, and forget it if in doubt"
    )
    proof = Proof(replica.resource, loser.origin, loser.seq, what, (*(before.lost if before else ()), lost))
    replica.keep_proof(proof)
    out.documents[key_of(proof)] = proof
    incarnation.withdraw_loser(replica, loser, out)
    if before is not None:
        return  # the others get further contents when they compare theirs
    if len(replica.proofs) <= _MOST_ALARMS:
        out.others.append(_alarm(proof))
    replica.outbox.push((held, op))  # so that every site gets the proof


def _lost_content(replica: Replica, loser: Operation) -> LostContent | None:
    """As much of the operation as there is room for; None if there is none."""
    used = replica.proof_bytes[loser.origin.site]
    size = len(content_of(loser))
    if size <= _MAX_WHOLE_BYTES and used + size <= _WHOLE_BYTES:
        return LostContent(loser, _hexadecimal(loser))
    rest = replace(loser, payload=Command(""), deps={}, why="", seal=None, signature="")
    size = len(content_of(rest))
    if size > _MAX_CUT_BYTES or used + size > _MOST_BYTES:
        return None
    return LostContent(rest, _hexadecimal(loser), cut=True)


def _hexadecimal(op: Operation) -> str:
    return f"{content_hash(op):x}"


def _drop(replica: Replica, op: Operation, out: Effects) -> None:
    """There is no room for another proof against this site. What others made after this content may be refused."""
    site = op.origin.site
    replica.dropped_proofs[site] += 1
    if replica.dropped_proofs[site] == 1:
        what = (
            f"{site} signed so many operations twice that {op.id} and later ones are not kept as proof: forget {site}"
        )
        out.others.append(Notify(replica.resource, EQUIVOCATION, op.id, what, EQUIVOCATION, site))


def alarms(replica: Replica) -> list[Notify]:
    return [_alarm(proof) for proof in islice(replica.proofs.values(), _MOST_ALARMS)]


def _alarm(proof: Proof) -> Notify:
    id_ = OpId(proof.origin, proof.seq)
    return Notify(proof.resource, EQUIVOCATION, id_, proof.detail, EQUIVOCATION, proof.origin.site)


def report_orphans(replica: Replica, before: set[OpId], out: Effects) -> None:
    """Notify the operator of operations that are orphaned now: those that were acknowledged here, and those whose
    origin had signed that it would make no such operation."""
    for id_, fate in replica.history.orphans.items():
        if id_ in before or fate.rule is not Rule.ORPHANED or fate.by is None:
            continue
        if id_.origin == replica.origin:
            out.others.append(Notify(replica.resource, "estranged", id_, fate.rule.sentence))
        elif broke_statement(replica.history.ops[id_], replica.history.ops[fate.by]):
            site = id_.origin.site
            what = f"{site} made {id_} against its statement in the seal {fate.by}: find out who has its keys"
            out.others.append(Notify(replica.resource, BROKEN_STATEMENT, id_, what, BROKEN_STATEMENT, site))
