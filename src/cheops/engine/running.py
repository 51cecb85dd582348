"""What a site runs, and what follows from how that ended. One run at a time per resource.

First what the effective list still asks for, then the site's own drafts in their order, then, when all is
quiet, a checkpoint. Before a run its start is saved, so that a crash in between is seen: what replaces is
simply run again, a replay begins anew, anything else is UNKNOWN and waits for the operator, or for
something that wipes it.
"""

from dataclasses import replace

from cheops.engine import exchange
from cheops.engine.documents import Started, key_of
from cheops.engine.events import Answer, Effects, Notify, Outcome, Result, Run, Stage, Step
from cheops.engine.replica import Purpose, Replica, Running, Unknown
from cheops.log.matrix import key
from cheops.log.operation import Command, Operation, OpId, Reply, Status, Verdict
from cheops.log.plan import Plan, plan
from cheops.log.rules import superseding_rule

_FINISHED = (Result.OK, Result.KO)


def advance(replica: Replica, out: Effects, now_ms: int) -> None:
    """Start the next run, if there is one and nothing stands in its way."""
    if replica.running or now_ms < replica.retry_at_ms:
        return
    if not replica.is_involved and replica.history.roster:
        _leave(replica, out)
        return
    _drop_beaten_drafts(replica, out)
    if replica.failed or replica.troubled:
        replica.drop_stale_failures()
    if replica.troubled:
        _see_to(replica, replica.history.ops[replica.troubled.pop(0)], out)
        return
    wanted = _plan(replica)
    if wanted.replay and tuple(op.id for op in wanted.run) == replica.last_replay:
        wanted = Plan(order_not_enforced=True)  # it did not help: say so, rather than try for ever
    replica.order_not_enforced = wanted.order_not_enforced
    if wanted and _may_run(replica, wanted):
        _start_plan(replica, wanted, out)
    elif not wanted and (draft := _next_draft(replica)):
        _start(replica, Running(replica.next_reply, Purpose.DRAFT, draft), (_step(draft),), out)
    elif not wanted:
        _settle(replica, out)


def _settle(replica: Replica, out: Effects) -> None:
    if replica.unknown or not replica.is_involved:
        return
    replica.settled = dict(replica.history.known)
    checkpoint = replica.type.checkpoint
    if checkpoint is None or len(replica.history.effective) < checkpoint.after:
        return
    in_doubt = replica.failed or replica.order_not_enforced or replica.drafts
    if not in_doubt and exchange.all_settled(replica):
        _start(replica, Running(replica.next_reply, Purpose.READ), (Step(None, checkpoint.read),), out)


# -- what to run -----------------------------------------------------------------------------------------


def _plan(replica: Replica) -> Plan:
    effective, applied = replica.history.effective, replica.applied
    has_base = replica.base is not None and not replica.base_applied
    if replica.needs_start or has_base:
        return Plan(tuple(effective), replay=True, from_start=True)
    if replica.agreed == len(applied) and not replica.failed:
        return Plan(tuple(effective[replica.agreed :]))
    place = replica.agreed
    found = plan(
        applied[place:],
        effective[place:],
        replica.matrix,
        is_failed=replica.failed.__contains__,
        has_start=False,
    )
    if found.order_not_enforced and place:
        found = plan(applied, effective, replica.matrix, is_failed=replica.failed.__contains__)
    if found.order_not_enforced and (replica.type.reset or replica.base):
        found = Plan(tuple(effective), replay=True, from_start=True)
    return found


def _may_run(replica: Replica, wanted: Plan) -> bool:
    """Where something is UNKNOWN, only what wipes it may run."""
    if replica.unknown is None or wanted.from_start:
        return True
    return replica.matrix.replaces(key(wanted.run[0]), replica.unknown.key)


def _next_draft(replica: Replica) -> Operation | None:
    """The first draft; where that one is UNKNOWN, the first later one that replaces all before it."""
    if not replica.drafts:
        return None
    if replica.unknown is None:
        return replica.drafts[0]
    for place, draft in enumerate(replica.drafts):
        before = [key(d) for d in replica.drafts[:place]]
        rules = replica.rules_for(draft)
        if all(rules.replaces(key(draft), name) for name in (*before, replica.unknown.key)):
            return draft
    return None


def _drop_beaten_drafts(replica: Replica, out: Effects) -> None:
    """A draft that would be superseded as soon as it ran need not run at all."""
    while replica.drafts:
        draft = replica.drafts[0]
        heads = replica.history.heads()
        if not (beaten := next((y for y in heads if superseding_rule(y, draft, replica.matrix)), None)):
            return
        if replica.unknown and replica.unknown.id == draft.id:
            replica.unknown = None
        decide(replica, Verdict.SUPERSEDED, f"by {beaten.id}", out)


def _leave(replica: Replica, out: Effects) -> None:
    """The resource is no longer at this site: what never ran here never will."""
    while replica.drafts:
        decide(replica, Verdict.VOID, "the resource left this site before this could run", out)
    replica.settled = dict(replica.history.known)


# -- starting --------------------------------------------------------------------------------------------


def _start_plan(replica: Replica, wanted: Plan, out: Effects) -> None:
    if wanted.run and _ran_before(replica, wanted.run[0]):
        wanted = replace(wanted, replay=True)
    commands = _rewritten(replica, wanted)
    if commands is not None:
        _start_replay(replica, wanted, commands, out)
    elif wanted.replay:
        _start_replay(replica, wanted, None, out)
    else:
        op = wanted.run[0]
        _start(replica, Running(replica.next_reply, Purpose.OPERATION, op), (_step(op),), out)


def _ran_before(replica: Replica, base: Operation) -> bool:
    """Whether a replay was cut short: its base is to be run a second time."""
    reply = replica.by_op.get((base.id, replica.site))
    again = reply is not None and reply.status is Status.OK
    return again and replica.matrix.is_replace_type(key(base))


def _start_replay(replica: Replica, wanted: Plan, commands: tuple[Command, ...] | None, out: Effects) -> None:
    start = replica.base.write if replica.base else replica.type.reset
    steps = [Step(None, start)] if wanted.from_start and start else []
    if commands is None:
        steps += [_step(op) for op in wanted.run]
    else:
        if not wanted.from_start:
            steps.append(_step(wanted.run[0]))
        steps += [Step(None, command) for command in commands]
    running = Running(replica.next_reply, Purpose.REPLAY, plan=wanted, rewritten=commands is not None)
    _start(replica, running, tuple(steps), out)


def _rewritten(replica: Replica, wanted: Plan) -> tuple[Command, ...] | None:
    """What a logic plugin makes of concurrent operations that do not commute, after a base."""
    logic = replica.type.logic
    if logic is None or not wanted.replay:
        return None
    ops = wanted.run if wanted.from_start else wanted.run[1:]
    clash = any(
        a.is_concurrent(b) and replica.matrix.class_of_pair(key(a), key(b)) == 3
        for place, a in enumerate(ops)
        for b in ops[place + 1 :]
    )
    return logic(ops) if clash else None


def _start(replica: Replica, running: Running, steps: tuple[Step, ...], out: Effects) -> None:
    replica.running = running
    started = Started(
        replica.resource,
        running.n,
        running.op.id if running.op else running.plan.run[0].id if running.plan.run else None,
        replay=running.purpose is Purpose.REPLAY,
        from_start=running.plan.from_start,
        hook=running.purpose is Purpose.HOOK,
        units=running.purpose is Purpose.UNITS,
    )
    if running.purpose is not Purpose.READ:
        out.documents[key_of(started)] = started
    replay = running.purpose is Purpose.REPLAY
    in_place = replica.type.decompose is not None or replica.type.on_error is not None
    until_failure = running.purpose is Purpose.UNITS or (replay and in_place)
    out.others.append(Run(replica.resource, running.n, steps, replay=replay, until_failure=until_failure))


def _step(op: Operation) -> Step:
    return Step(op.id, op.payload)


# -- after a run -----------------------------------------------------------------------------------------


def finish(replica: Replica, n: int, outcomes: tuple[Outcome, ...], out: Effects, now_ms: int) -> None:
    """A run has ended."""
    running = replica.running
    if running is None or running.n != n:
        return  # the answer to a run that we gave up with a crash
    replica.running = None
    out.forget.append(("started", replica.resource))
    if outcomes[-1].result not in _FINISHED:
        _interrupted(replica, running, outcomes, out)
        replica.retry_ms = min(
            max(replica.limits.retry_ms, replica.retry_ms * 2), replica.limits.retry_most_ms
        )
        replica.retry_at_ms = now_ms + replica.retry_ms
        return
    replica.retry_ms = 0
    match running.purpose:
        case Purpose.DRAFT:
            _draft_ran(replica, running, outcomes[0], out)
        case Purpose.OPERATION:
            _operation_ran(replica, running, outcomes[0], out)
        case Purpose.REPLAY:
            _replayed(replica, running, outcomes, out)
        case Purpose.UNITS:
            _units_ran(replica, running, outcomes, out)
        case Purpose.HOOK:
            _hook_ran(replica, running, outcomes[0], out)
        case Purpose.READ:
            _fold(replica, outcomes[0], out)


def _interrupted(replica: Replica, running: Running, outcomes: tuple[Outcome, ...], out: Effects) -> None:
    """It was not run, or may have been: try again later, but only what can be run twice."""
    op, last = running.op, outcomes[-1]
    maybe = last.result is Result.MAYBE
    match running.purpose:
        case Purpose.REPLAY:
            taint(replica, running.plan, out)
        case Purpose.UNITS if op and (maybe or len(outcomes) > 1):
            doubt(replica, op, f"some of its units ran, then: {last.output}", out)
        case Purpose.UNITS | Purpose.HOOK if op and not maybe:
            replica.troubled.insert(0, op.id)
        case Purpose.HOOK if op:
            _failed(replica, op, f"on_error may not have run: {last.output}", out)
        case Purpose.DRAFT | Purpose.OPERATION if op and maybe:
            doubt(replica, op, last.output, out)


def doubt(replica: Replica, op: Operation, why: str, out: Effects) -> None:
    """It may have had its effect, or part of it. What replaces is run again. What failed before and was being
    done in steps is replayed from a base. Of anything else the operator must say what became of it."""
    if replica.rules_for(op).is_replace_type(key(op)):
        return
    if op.id in replica.failed and _rebase(replica, key(op), out):
        del replica.failed[op.id]
    else:
        mark_unknown(replica, op, why, out)


def _rebase(replica: Replica, name: str, out: Effects) -> bool:
    """Have everything replayed from a base that wipes this key, if there is one."""
    for base in reversed(replica.history.effective):
        if replica.matrix.replaces(key(base), name):
            taint(replica, Plan((base,)), out)
            return True
    if replica.type.reset or replica.base:
        taint(replica, Plan(from_start=True), out)
        return True
    return False


def taint(replica: Replica, wanted: Plan, out: Effects) -> None:
    """A replay was cut short: what its base wipes counts as not applied, so it is run again."""
    base = None
    if wanted.from_start:
        replica.needs_start = True
        replica.applied, replica.agreed = [], 0
    elif wanted.run:
        base = wanted.run[0].id
        replica.note_run(None, "", replica.matrix.wiped_by(key(wanted.run[0])))
    started = Started(replica.resource, 0, base, replay=True, from_start=wanted.from_start)
    out.documents[key_of(started)] = started  # until the replay is done, also over a crash


def mark_unknown(replica: Replica, op: Operation, why: str, out: Effects) -> None:
    replica.unknown = Unknown(op.id, key(op))
    _reply(replica, op.id, key(op), Status.UNKNOWN, out, detail=why)
    out.others.append(Notify(replica.resource, "unknown", op.id, why))


def _draft_ran(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    draft = running.op
    assert draft is not None  # noqa: S101 - a draft's run has its draft
    if outcome.result is Result.OK:
        while replica.drafts[0].id != draft.id:  # those that were UNKNOWN or waited behind one: wiped now
            decide(replica, Verdict.SUPERSEDED, f"by {draft.id}", out)
        replica.unknown = None
        decide(replica, Verdict.OK, outcome.output, out)
    elif replica.drafts[0].id == draft.id:
        decide(replica, Verdict.VOID, outcome.output, out)


def decide(replica: Replica, verdict: Verdict, why: str, out: Effects) -> None:
    """The first draft gets its verdict, and with it becomes an operation that others hear of."""
    draft = replica.drafts.pop(0)
    ok = verdict is Verdict.OK
    op = replace(draft, verdict=verdict, why="" if ok else why)
    out.documents[key_of(op)] = op
    replica.add(op)
    status = {Verdict.OK: Status.OK, Verdict.VOID: Status.KO, Verdict.SUPERSEDED: Status.SUPERSEDED}[verdict]
    if ok:
        reply = _apply(replica, op, out, output=why)
    else:
        reply = _reply(replica, op.id, key(op), status, out, detail=why, push=False)
    exchange.push(replica, (op,), (reply,), out)
    if request := replica.requests.get(op.id):
        out.others.append(Answer(request, Stage.DECIDED, op.id, replica.site, status, why))


def _apply(  # noqa: PLR0913 - a document's fields
    replica: Replica, op: Operation, out: Effects, *, output: str = "", detail: str = "", replay: bool = False
) -> Reply:
    name = key(op)
    wiped = replica.matrix.wiped_by(name)
    replica.note_run(op.id, name, wiped)
    return _reply(
        replica,
        op.id,
        name,
        Status.OK,
        out,
        wiped=wiped,
        detail=detail,
        output=output,
        replay=replay,
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
    push: bool = True,
) -> Reply:
    reply = Reply(
        replica.resource, replica.origin, replica.next_reply, id_, name, status, wiped, replay, detail, output
    )
    replica.note_reply(reply)
    out.documents[key_of(reply)] = reply
    if push:
        exchange.push(replica, (), (reply,), out)
    return reply


def _operation_ran(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    if outcome.result is Result.OK:
        exchange.push(replica, (), (_apply(replica, op, out, output=outcome.output),), out)
        return
    _trouble(replica, op, outcome.output, out)


def _trouble(replica: Replica, op: Operation, why: str, out: Effects) -> None:
    """It succeeded at its origin and failed here."""
    if replica.type.decompose or replica.type.on_error:
        replica.troubled.append(op.id)
        replica.failed[op.id] = why
    else:
        _failed(replica, op, why, out)


def _see_to(replica: Replica, op: Operation, out: Effects) -> None:
    """What the type asks for when an operation failed: unit steps, or a command."""
    units = replica.type.decompose(op.payload) if replica.type.decompose else ()
    if units:
        steps = tuple(Step(op.id, unit) for unit in units)
        _start(replica, Running(replica.next_reply, Purpose.UNITS, op), steps, out)
    elif replica.type.on_error:
        step = Step(op.id, replica.type.on_error)
        _start(replica, Running(replica.next_reply, Purpose.HOOK, op), (step,), out)
    else:
        _failed(replica, op, replica.failed.get(op.id, ""), out)


def _failed(replica: Replica, op: Operation, why: str, out: Effects) -> None:
    replica.failed[op.id] = why
    _reply(replica, op.id, key(op), Status.KO, out, detail=why)
    out.others.append(Notify(replica.resource, "diverged", op.id, why))


def _units_ran(replica: Replica, running: Running, outcomes: tuple[Outcome, ...], out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    done = sum(o.result is Result.OK for o in outcomes)
    refused = next((o.output for o in outcomes if o.result is Result.KO), "")
    detail = (
        f"applied {done} units; unit {done + 1} was refused: {refused}"
        if refused or done < len(outcomes)
        else ""
    )
    exchange.push(replica, (), (_apply(replica, op, out, detail=detail),), out)
    if detail:
        out.others.append(Notify(replica.resource, "unit-refused", op.id, detail))


def _hook_ran(replica: Replica, running: Running, outcome: Outcome, out: Effects) -> None:
    op = running.op
    assert op is not None  # noqa: S101
    if outcome.result is Result.OK:
        exchange.push(replica, (), (_apply(replica, op, out, detail="handled by on_error"),), out)
    else:
        _failed(replica, op, f"on_error failed too: {outcome.output}", out)


def _replayed(replica: Replica, running: Running, outcomes: tuple[Outcome, ...], out: Effects) -> None:
    wanted, results = running.plan, list(outcomes)
    replies = []
    if wanted.from_start:
        start = results.pop(0)
        if start.result is not Result.OK:
            taint(replica, wanted, out)
            out.others.append(Notify(replica.resource, "reset-failed", None, start.output))
            replica.retry_at_ms = replica.retry_at_ms + replica.limits.retry_most_ms
            return
        replica.needs_start = False
        replica.base_applied = replica.base is not None
        replica.note_run(None, "", ("*",))
        replies.append(_reply(replica, None, "", Status.OK, out, wiped=("*",), replay=True, push=False))
        ledger = replica.ledger()
        out.documents[key_of(ledger)] = ledger
    if running.rewritten:
        results = [*results[: 0 if wanted.from_start else 1], *[_worst(results)] * len(wanted.run)]
    for op, outcome in zip(wanted.run, results, strict=False):
        if outcome.result is Result.OK:
            replies.append(_apply(replica, op, out, output=outcome.output, replay=True))
        else:
            _trouble(replica, op, outcome.output, out)
    replica.last_replay = tuple(op.id for op in wanted.run)
    exchange.push(replica, (), tuple(replies), out)


def _worst(outcomes: list[Outcome]) -> Outcome:
    return next((o for o in outcomes if o.result is Result.KO), Outcome(Result.OK))


def _fold(replica: Replica, outcome: Outcome, out: Effects) -> None:
    checkpoint = replica.type.checkpoint
    something_new = replica.settled != replica.history.known
    if outcome.result is not Result.OK or checkpoint is None or something_new:
        return
    exchange.fold(replica, checkpoint.write(outcome.output), out)


def resolve(replica: Replica, id_: OpId, *, happened: bool, out: Effects) -> None:
    """The operator has looked, and says whether an UNKNOWN operation took effect here."""
    unknown = replica.unknown
    if unknown is None or unknown.id != id_:
        return
    replica.unknown = None
    if not happened:
        _reply(replica, id_, unknown.key, Status.PENDING, out, detail="the operator says that it did not run")
    elif replica.drafts and replica.drafts[0].id == id_:
        decide(replica, Verdict.OK, "the operator says that it ran", out)
    elif id_ in replica.history.ops:
        op = replica.history.ops[id_]
        exchange.push(replica, (), (_apply(replica, op, out, detail="the operator says that it ran"),), out)
