"""What follows from the outcome of a run: verdicts, replies, and operations in doubt.

A definite failure at the origin makes an operation void; elsewhere it means that replicas differ, which the type's
`on_error` or the operator must fix. What was definitely not run is tried again later. What may have had an effect is
never guessed: see `doubt`.
"""

from cheops.engine import drift, incarnation, ledger, retention
from cheops.engine.documents import Started, key_of
from cheops.engine.events import Effects, Notify, Outcome, Resolved, Result, Retried, Verified
from cheops.engine.replica import Replica
from cheops.engine.runs import Purpose, Running
from cheops.log.operation import (
    NO_TIME,
    Applied,
    Kind,
    Operation,
    OpId,
    Reply,
    Status,
    Timing,
    Verdict,
    hash_of_output,
)
from cheops.log.plan import Plan

_FINISHED = (Result.OK, Result.KO)


def finish(replica: Replica, n: int, outcomes: tuple[Outcome, ...], out: Effects, now_ms: int) -> None:
    """A run has ended."""
    running = replica.slot.end(n)
    if running is None:
        return
    # In the same `Save` as what follows from the outcome, so that a crash cannot separate the two.
    out.forget.append(("started", replica.resource))
    if running.purpose is Purpose.READ:
        _fold(replica, outcomes[0], out)
        replica.slot.note_read(now_ms)
        return
    if outcomes[-1].result not in _FINISHED:
        _handle_interruption(replica, running, outcomes, out)
        replica.slot.retry_later(now_ms, outcomes[-1].output)
        return
    replica.slot.note_success()
    match running.purpose:
        case Purpose.DRAFT:
            _finish_draft(replica, running, outcomes[0], out)
        case Purpose.OPERATION:
            _finish_operation(replica, running, outcomes[0], out)
        case Purpose.REPLAY:
            finish_replay(replica, running, outcomes, out, now_ms)
        case Purpose.UNITS:
            _finish_units(replica, running, outcomes, out)
        case Purpose.HOOK:
            _finish_hook(replica, running, outcomes[0], out)
        case Purpose.LEAVE:
            _finish_deletion(replica, running, outcomes[0], out)


def _handle_interruption(replica: Replica, running: Running, outcomes: tuple[Outcome, ...], out: Effects) -> None:
    """A run ended without a result: try again later, but only what can be run twice."""
    op, last = running.op, outcomes[-1]
    maybe = last.result is Result.MAYBE
    match running.purpose:
        case Purpose.REPLAY:
            invalidate_replay(replica, running.plan, out)
        case Purpose.UNITS if op and (maybe or len(outcomes) > 1):
            doubt(replica, op, f"some of its units ran, then: {last.output}", out)
        case Purpose.UNITS | Purpose.HOOK if op and not maybe:
            replica.applied.return_troubled(op.id)
        case Purpose.HOOK if op:
            fail(replica, op, f"on_error may not have run: {last.output}", out)
        case Purpose.DRAFT | Purpose.OPERATION if op and maybe:
            doubt(replica, op, last.output, out, once=last.once)
        case Purpose.DRAFT if op and last.in_doubt:
            replica.drafts.doubt(op.id)
        case Purpose.LEAVE if maybe:
            ledger.mark_dirty(replica, ("*",), out)
    if op and replica.drafts.is_in_doubt(op.id):
        out.forget.remove(("started", replica.resource))  # a crash must not make the doubt forgotten


def doubt(replica: Replica, op: Operation, why: str, out: Effects, *, once: bool = False) -> None:
    """An operation may have had its effect, or part of it. A replace operation runs again, unless it can run only
    `once`. One that had failed and ran in units is replayed from a base. For anything else the operator must decide
    what happened."""
    if replica.matrix_for(op).is_replace_type(op.key) and not once:
        if any(draft.id == op.id for draft in replica.drafts):
            replica.drafts.doubt(op.id)
        return
    if op.id in replica.applied.failed and _rebase(replica, op.key, out):
        replica.applied.clear_failure(op.id)
    else:
        mark_unknown(replica, op, why, out)


def _rebase(replica: Replica, name: str, out: Effects) -> bool:
    """Request a replay from a base that wipes this key; False if there is none."""
    for base in reversed(replica.history.effective):  # the latest base repeats the least
        if replica.matrix.replaces(base.key, name):
            invalidate_replay(replica, Plan((base,)), out)
            return True
    if replica.type.reset or replica.applied.base:
        invalidate_replay(replica, Plan(from_start=True), out)
        return True
    return False


def invalidate_replay(replica: Replica, wanted: Plan, out: Effects) -> None:
    """A replay was interrupted: it is run again, even after a crash."""
    dirty = replica.applied.invalidate_replay(wanted)
    ledger.save_unfinished_replay(replica, out, dirty, from_start=wanted.from_start)


def mark_unknown(replica: Replica, op: Operation, why: str, out: Effects) -> None:
    replica.applied.mark_unknown(op)
    _reply(replica, op.id, op.key, Status.UNKNOWN, out, detail=why)
    out.others.append(Notify(replica.resource, "unknown", op.id, why))


def _finish_draft(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    draft = running.op
    assert draft is not None  # noqa: S101 - a draft's run has its draft
    if outcome.result is Result.OK:
        _accept_draft(replica, draft.id, outcome.output, out, outcome.timing)
    elif may_have_run(replica, draft.id):
        # It failed now, and an attempt before may have had its effect: void it must not be, nor run for ever.
        replica.drafts.postpone_verdict(draft)
        mark_unknown(replica, draft, f"an attempt before may have had an effect, and then: {outcome.output}", out)
    elif replica.drafts[0].id == draft.id:
        decide(replica, Verdict.VOID, outcome.output, out, outcome.timing)
    else:
        replica.drafts.postpone_verdict(draft)


def _accept_draft(replica: Replica, id_: OpId, output: str, out: Effects, timing: Timing = NO_TIME) -> None:
    """A draft has run. Those before it were UNKNOWN or waited behind one, and are wiped now."""
    while replica.drafts[0].id != id_:
        replica.applied.clear_unknown(replica.drafts[0].id)
        decide(replica, Verdict.SUPERSEDED, f"by {id_}", out)
    decide(replica, Verdict.OK, output, out, timing)


def may_have_run(replica: Replica, draft: OpId) -> bool:
    """Whether an attempt to run a draft may have had an effect."""
    return replica.drafts.is_in_doubt(draft) or replica.applied.is_unknown(draft)


def decide(replica: Replica, verdict: Verdict, why: str, out: Effects, timing: Timing = NO_TIME) -> None:
    """Give the first draft its verdict: it becomes an operation, and goes to the other sites."""
    draft = replica.drafts.pop_first()
    ok = verdict is Verdict.OK
    op = draft.decided(verdict, "" if ok else why)
    out.documents[key_of(op)] = op
    replica.add(op)
    status = {Verdict.OK: Status.OK, Verdict.VOID: Status.KO, Verdict.SUPERSEDED: Status.SUPERSEDED}[verdict]
    if ok and not op.is_silent:
        reply = _apply(replica, op, out, output=why, timing=timing)
    else:
        reply = _reply(replica, op.id, op.key, status, out, detail=why, timing=timing, push=False)
    # Together, so that the other sites get the operation and its first reply in one message.
    replica.outbox.push((op,), (reply,))
    replica.clients.report_verdict(op, reply, out)


def _apply(  # noqa: PLR0913 - a document's fields
    replica: Replica,
    op: Operation,
    out: Effects,
    *,
    output: str = "",
    detail: str = "",
    timing: Timing = NO_TIME,
) -> Reply:
    name = op.key
    wiped = replica.matrix.wiped_by(name)
    replica.applied.record_run(op.id, name, wiped)
    replica.drafts.end_wiped_doubts(wiped)
    return _reply(
        replica,
        op.id,
        name,
        Status.OK,
        out,
        wiped=wiped,
        detail=detail,
        output=output,
        timing=timing,
        push=False,
    )


def _reply(  # noqa: PLR0913 - a document's fields
    replica: Replica,
    id_: OpId | None,
    name: str,
    status: Status,
    out: Effects,
    *,
    wiped: tuple[str, ...] = (),
    detail: str = "",
    output: str = "",
    replay: bool = False,
    timing: Timing = NO_TIME,
    applied: tuple[Applied, ...] = (),
    push: bool = True,
) -> Reply:
    reply = Reply(
        replica.resource,
        replica.origin,
        replica.next_reply,
        id_,
        name,
        status,
        wiped,
        replay,
        detail,
        output,
        timing,
        applied,
        "" if replica.type.shares_outputs else hash_of_output(output),
    )
    replica.take_reply(reply, out)
    if push:
        replica.outbox.push(replies=(reply,))
    return reply


def _finish_operation(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    if outcome.result is Result.OK:
        reply = _apply(replica, op, out, output=outcome.output, timing=outcome.timing)
        replica.outbox.push(replies=(reply,))
        return
    _handle_failure(replica, op, outcome, out)


def _handle_failure(replica: Replica, op: Operation, outcome: Outcome, out: Effects) -> None:
    """An operation succeeded at its origin and failed here: the type may define a remedy, otherwise replicas differ."""
    if (replica.type.decompose or replica.type.on_error) and not outcome.refused:
        replica.applied.defer_failure(op.id, outcome.output)
    else:
        fail(replica, op, outcome.output, out)


def fail(replica: Replica, op: Operation, why: str, out: Effects) -> None:
    replica.applied.record_failure(op.id, why)
    _reply(replica, op.id, op.key, Status.KO, out, detail=why)
    out.others.append(Notify(replica.resource, "diverged", op.id, why))


def _finish_units(replica: Replica, running: Running, outcomes: tuple[Outcome, ...], out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    done = sum(o.result is Result.OK for o in outcomes)
    refused = next((o.output for o in outcomes if o.result is Result.KO), "")
    detail = f"applied {done} units; unit {done + 1} was refused: {refused}" if refused or done < len(outcomes) else ""
    replica.outbox.push(replies=(_apply(replica, op, out, detail=detail),))
    if detail:
        out.others.append(Notify(replica.resource, "unit-refused", op.id, detail))


def _finish_hook(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    if outcome.result is Result.OK:
        replica.outbox.push(replies=(_apply(replica, op, out, detail="handled by on_error"),))
    else:
        fail(replica, op, f"on_error failed too: {outcome.output}", out)


def _finish_deletion(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    if outcome.result is Result.OK:
        replica.applied.record_copy_deleted()
        ledger.save(replica, out)
        wiped, output = ("*",), outcome.output
        _reply(replica, op.id, op.key, Status.OK, out, wiped=wiped, output=output, timing=outcome.timing)
        return
    _reply(replica, op.id, op.key, Status.KO, out, detail=outcome.output, timing=outcome.timing)
    out.others.append(Notify(replica.resource, "copy-not-deleted", op.id, outcome.output))


def finish_replay(replica: Replica, running: Running, outcomes: tuple[Outcome, ...], out: Effects, now_ms: int) -> None:
    """A replay has ended. Its one reply lists everything that is applied after it."""
    wanted, results = running.plan, list(outcomes)
    if wanted.from_start:
        start = results.pop(0) if running.has_start else Outcome(Result.OK)
        if start.result is not Result.OK:
            invalidate_replay(replica, wanted, out)
            out.others.append(Notify(replica.resource, "reset-failed", None, start.output))
            replica.slot.retry_much_later(now_ms)
            return
        replica.applied.record_start()
        ledger.save(replica, out)
    if running.rewritten is not None:
        # The commands of a logic plugin belong to no single operation: if one failed, all that it rewrote failed. What
        # ran by itself, up to the last base, keeps its own outcome.
        replica.applied.record_rewrite(running.rewritten)
        results = [*results[: running.as_is], *[_worst(results)] * len(wanted.run)]
    ran = list(zip(wanted.run, results, strict=False))
    for op, outcome in ran:
        if outcome.result is Result.OK:
            replica.applied.record_run(op.id, op.key, replica.matrix.wiped_by(op.key))
            replica.drafts.end_wiped_doubts(replica.matrix.wiped_by(op.key))
    wiped = ("*",) if wanted.from_start else replica.matrix.wiped_by(wanted.run[0].key)
    at_ms = outcomes[0].timing.at_ms if outcomes else now_ms
    timing = Timing(at_ms, sum(outcome.timing.took_ms for outcome in outcomes))
    applied = tuple(replica.applied.entries)
    _reply(replica, None, "", Status.OK, out, wiped=wiped, replay=True, timing=timing, applied=applied)
    for op, outcome in ran:
        if outcome.result is not Result.OK:
            _handle_failure(replica, op, outcome, out)
    replica.applied.record_replay(wanted.run)


def _worst(outcomes: list[Outcome]) -> Outcome:
    return next((o for o in outcomes if o.result is Result.KO), Outcome(Result.OK))


def _fold(replica: Replica, outcome: Outcome, out: Effects) -> None:
    """Make a checkpoint of the state that was read, unless something has changed since the read began."""
    checkpoint = replica.type.checkpoint
    has_changed = not replica.applied.is_settled
    if outcome.cut:
        why = "its state is larger than what is kept of a command's output, or is no text"
        out.others.append(Notify(replica.resource, "no-checkpoint", None, why))
        return
    if outcome.result is not Result.OK or checkpoint is None or has_changed:
        return
    write = checkpoint.write(outcome.output)
    if write is None:
        why = "no command can write so large a state"
        out.others.append(Notify(replica.resource, "no-checkpoint", None, why))
        return
    retention.fold(replica, write, out)


def take_finding(replica: Replica, finding: Resolved | Retried | Verified, out: Effects) -> None:
    """Take what the operator decided, or what a comparison of the applications has found."""
    match finding:
        case Resolved():
            _settle_unknown(replica, finding.op, happened=finding.happened, out=out)
        case Retried():
            _retry(replica, out)
        case Verified():
            drift.record(replica, finding, out)
            if finding.by == replica.site and not finding.differs:
                incarnation.trust(replica, out)


def _settle_unknown(replica: Replica, id_: OpId, *, happened: bool, out: Effects) -> None:
    """The operator says whether an UNKNOWN operation took effect here."""
    unknown = next((one for one in replica.applied.all_unknown if one.id == id_), None)
    if unknown is None:
        return
    replica.applied.clear_unknown(id_)
    replica.drafts.end_doubt(id_)
    if not happened:
        _reply(replica, id_, unknown.key, Status.PENDING, out, detail="the operator says that it did not run")
    elif any(draft.id == id_ for draft in replica.drafts):
        _accept_draft(replica, id_, "the operator says that it ran", out)
    elif id_ in replica.history.ops:
        op = replica.history.ops[id_]
        replica.outbox.push(replies=(_apply(replica, op, out, detail="the operator says that it ran"),))


def _retry(replica: Replica, out: Effects) -> None:
    """Have everything run again that failed here and not at its origin, each in its place in the order. Other sites
    learn at once that it is pending. What the type's remedy is about to handle is left to it."""
    applied = replica.applied
    for op in replica.history.effective:
        if op.id in applied.failed and op.id not in applied.troubled:
            applied.retry_failure(op.id)
            _reply(replica, op.id, op.key, Status.PENDING, out, detail="the operator has it run again")
    replica.slot.retry_now()


def after_crash(replica: Replica, started: Started, out: Effects) -> None:
    """A run was under way when the site stopped: it may have had no effect, all of it, or a part."""
    out.forget.append(("started", replica.resource))
    op = replica.history.ops.get(started.op) if started.op else None
    op = op or next((draft for draft in replica.drafts if draft.id == started.op), None)
    if started.replay and started.from_start:
        invalidate_replay(replica, Plan(from_start=True), out)
    elif started.replay:
        ledger.mark_dirty(replica, started.dirty, out)
    elif op is not None and op.kind is Kind.SITES:
        ledger.mark_dirty(replica, started.dirty, out)  # the copy may be half deleted
    elif op is not None and started.hook:
        fail(replica, op, "the site stopped while on_error was running", out)
    elif op is not None:
        if started.units:
            replica.applied.record_failure(op.id, "it failed, and the site stopped while its units were running")
        doubt(replica, op, "the site stopped while this was running", out)
