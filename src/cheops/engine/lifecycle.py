"""The life of an operation at one site, from a client's request until it is forgotten.

Phases, in their order. An operation goes back in two cases only: a replay that is cut short has what its base wipes
DELIVERED again, and a restart forgets what was SETTLED until that is seen again.

    phase      entered when                                done by             durable from then on
    ---------  ------------------------------------------  ------------------  ----------------------------------
    DRAFT      a client submits it, at its origin          Site._submit        the operation without a verdict
    DECIDED    its first run ended, so it has a verdict    outcome.decide      the operation, immutable from now on
    DELIVERED  all that it depends on is at this site      exchange.deliver    the operation, at this site too
    APPLIED    its run succeeded at this site              outcome.finish      the reply, which other sites get
    SETTLED    nothing before it is left to run here       scheduler._settle   nothing: it follows from the rest
    SEALED     a seal says that all sites have settled it  Site._seal_if_due   the seal, an operation like others
    FOLDED     all sites know the seal                     retention           the ledger; the operation is deleted

At its origin an operation is DELIVERED in the step in which it is DECIDED; with `parallel` it is both at once, without
a first run. On its way to another site, and while it waits there for its past, it is DECIDED. FOLDED is what has no
effect any more as soon as it is sealed (`prune`), and everything else once a checkpoint holds its effect (`fold`).

An operation may skip APPLIED, at one site or at all of them:

    void        its first run failed definitely: Verdict.VOID. Rule 1: no effect anywhere; other sites only keep it.
    superseded  rules 3 to 5 of cheops.log.rules, before it ran here. At its origin it may be superseded while it is a
                draft: Verdict.SUPERSEDED. What is superseded after it was APPLIED is wiped by its superseder's run.
    orphaned    it was made without knowing what a seal covers (cheops.log.seals): no effect anywhere.
    silent      it changes the list of sites, or is a seal: there is nothing to run.
    failed      it succeeded at its origin and failed here: Status.KO. The replicas differ (DIVERGED) until `decompose`,
                `on_error`, or an operation that replaces it puts that right. It is SETTLED nevertheless.

And three things stop it on its way:

    refused     by the origin's checks: it never becomes a draft. By the policy of a type, at another site: it stays
                DECIDED there, and so does everything that depends on it (admission.py).
    not run     the application was not there (Result.RETRY): it is run again later.
    unknown     it may or may not have run: a timeout (Result.MAYBE), or a crash between Run and Ran. A replace
                operation is run again. Anything else is Status.UNKNOWN, until the operator says what happened
                (`Resolved`) or something runs that wipes it. As a draft it has no verdict until then.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

from cheops.log.causality import contains
from cheops.log.operation import OpId

if TYPE_CHECKING:
    from cheops.engine.replica import Replica


class Phase(IntEnum):
    """How far an operation has come at one site."""

    DRAFT = 1
    DECIDED = 2
    DELIVERED = 3
    APPLIED = 4
    SETTLED = 5
    SEALED = 6
    FOLDED = 7


def phase_at(replica: "Replica", id_: OpId) -> Phase | None:
    """The phase of an operation at the replica's site; None if that knows nothing of it."""
    history, applied = replica.history, replica.applied
    if any(draft.id == id_ for draft in replica.drafts):
        return Phase.DRAFT
    if not contains(history.known, id_):
        return Phase.DECIDED if id_ in replica.inbox.waiting else None
    if id_ not in history.ops or contains(history.folded, id_):
        return Phase.FOLDED
    if contains(applied.settled, id_):
        is_sealed = any(contains(op.seal.stable, id_) for op in history.seals if op.seal)
        return Phase.SEALED if is_sealed else Phase.SETTLED
    return Phase.APPLIED if any(entry.id == id_ for entry in applied.entries) else Phase.DELIVERED
