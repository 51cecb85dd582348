"""What a site runs next. One run at a time per resource; outcome.py says what follows from how it ended.

First what is missing of the effective list, then the site's own drafts in their order, then, when nothing is left to
run, a checkpoint. `Started` is saved before a run, so that a crash during the run is noticed: a replace operation runs
again, a replay starts again, and anything else is UNKNOWN until the operator resolves it or something wipes it.
"""

from collections.abc import Sequence
from itertools import pairwise

from msgspec.structs import replace

from cheops.engine import ledger, retention
from cheops.engine.documents import Started, key_of
from cheops.engine.events import Effects, Notify, Run, Step
from cheops.engine.outcome import decide, fail, finish_replay, may_have_run
from cheops.engine.replica import Replica
from cheops.engine.runs import Purpose, Running
from cheops.log.operation import Kind, Operation, Status, Verdict
from cheops.log.plan import Plan, from_base, plan
from cheops.log.rules import superseding_rule
from cheops.log.seals import excluding_seal


def advance(replica: Replica, out: Effects, now_ms: int) -> None:
    """Start the next run, if there is one and nothing prevents it."""
    if not replica.slot.is_free(now_ms):
        return
    if replica.site not in replica.history.site_list and replica.history.site_list:
        _leave(replica, out, now_ms)
        return
    if has_run_all(replica):
        _rest(replica, out, now_ms)
        return
    _supersede_drafts(replica, out)
    applied = replica.applied
    if applied.failed or applied.troubled:
        applied.drop_stale_failures()
    if applied.troubled:
        _handle_failure(replica, replica.history.ops[applied.next_troubled()], out)
        return
    wanted = _next_plan(replica, out)
    if wanted:
        if _may_run(replica, wanted):
            _start_plan(replica, wanted, out, now_ms)
    elif replica.drafts and replica.drafts[0].is_silent:
        decide(replica, Verdict.OK, "", out)  # there is nothing to run
        advance(replica, out, now_ms)
    elif draft := _next_draft(replica):
        step = _step(draft, again=may_have_run(replica, draft.id))
        _start(replica, Running(replica.next_reply, Purpose.DRAFT, draft), (step,), out)
    else:
        _settle(replica, out, now_ms)


def has_run_all(replica: Replica) -> bool:
    """Whether there is no draft, and the application holds just what is effective: the usual case, without a plan."""
    applied = replica.applied
    if replica.drafts or applied.agreed != len(applied.entries) or applied.agreed != len(replica.history.effective):
        return False
    if applied.failed or applied.troubled or applied.dirty or replica.type.logic:
        return False
    return not applied.needs_start and (applied.base is None or applied.base_applied)


def _next_plan(replica: Replica, out: Effects) -> Plan:
    wanted = _wipe_dirty_first(replica, _logic_plan(replica) or _plan(replica))
    if wanted.replay and tuple(op.id for op in wanted.run) == replica.applied.last_replay:
        wanted = Plan(order_not_enforced=True)  # it did not help: report that, instead of repeating it forever
    if replica.applied.note_order(not_enforced=wanted.order_not_enforced):
        out.others.append(Notify(replica.resource, "order-not-enforced"))
    return wanted


def _rest(replica: Replica, out: Effects, now_ms: int) -> None:
    """All has run, in its order."""
    if replica.applied.order_not_enforced:
        replica.applied.note_order(not_enforced=False)
    _settle(replica, out, now_ms)


def _settle(replica: Replica, out: Effects, now_ms: int) -> None:
    applied = replica.applied
    if applied.unknown or replica.site not in replica.history.site_list:
        return
    applied.settle()
    if replica.history.is_deleted and retention.is_deleted(replica):
        if retention.all_settled(replica) and not retention.is_sealed(replica):
            applied.request_seal()  # without it, the resource could not be dropped
        return
    checkpoint = replica.type.checkpoint
    if checkpoint is None or len(replica.history.effective) < checkpoint.after:
        return
    # A checkpoint replaces the history, so the state must be the same at all sites and follow from the history alone.
    in_doubt = applied.failed or applied.order_not_enforced or replica.drafts
    if in_doubt or not replica.slot.may_read(now_ms) or not retention.all_settled(replica):
        return
    if not retention.is_sealed(replica):
        applied.request_seal()
    else:
        step = Step(None, checkpoint.read, of_type=True, reads=True)
        _start(replica, Running(replica.next_reply, Purpose.READ), (step,), out)


# -- what to run -----------------------------------------------------------------------------------------


def _plan(replica: Replica) -> Plan:
    applied, effective = replica.applied, replica.history.effective
    if applied.starts_over:
        return Plan(tuple(effective), replay=True, from_start=True)
    if applied.agreed == len(applied.entries) and not applied.failed:
        return Plan(tuple(effective[applied.agreed :]))  # only the tail is missing: the usual case
    # Leave out the part at the front that agrees: a plan for the rest is cheap, and usually enough. Only if it is not,
    # plan over everything: a base further back may help.
    place, is_failed = applied.agreed, applied.failed.__contains__
    candidate = plan(applied.entries[place:], effective[place:], replica.matrix, is_failed=is_failed)
    if candidate.order_not_enforced and place:
        candidate = plan(applied.entries, effective, replica.matrix, is_failed=is_failed)
    if candidate.order_not_enforced and (replica.type.reset or applied.base):
        candidate = Plan(tuple(effective), replay=True, from_start=True)
    if not candidate and not candidate.order_not_enforced and not applied.failed:
        applied.accept_order()
    return candidate


def _wipe_dirty_first(replica: Replica, wanted: Plan) -> Plan:
    """After an interrupted replay, only what wipes its remains may run."""
    dirty = replica.applied.dirty
    if not dirty or wanted.from_start:
        return wanted
    effective = replica.history.effective
    # The latest: a logic plugin must rewrite what comes after it, as at the other sites, and nothing more.
    for place, base in reversed(list(enumerate(effective))):
        if all(replica.matrix.replaces(base.key, name) for name in dirty):
            return Plan(from_base(effective, place, replica.matrix), replay=True)
    if replica.type.reset or replica.applied.base:
        return Plan(tuple(effective), replay=True, from_start=True)
    # No base wipes all of it. Several may, one after the other: each with what it wipes.
    replaces = replica.matrix.replaces
    if all(any(replaces(base.key, name) for base in effective) for name in dirty):
        place = next(n for n, base in enumerate(effective) if any(replaces(base.key, name) for name in dirty))
        return Plan(from_base(effective, place, replica.matrix), replay=True)
    return replace(wanted, order_not_enforced=True)


def _may_run(replica: Replica, wanted: Plan) -> bool:
    """While something is UNKNOWN, only what wipes it may run: anything else would build on an unknown state."""
    if wanted.from_start:
        return True
    return all(replica.matrix.replaces(wanted.run[0].key, unknown.key) for unknown in replica.applied.all_unknown)


def _next_draft(replica: Replica) -> Operation | None:
    """The first draft; while something is UNKNOWN, the first draft that replaces it and all drafts before itself."""
    if not replica.drafts:
        return None
    if replica.applied.unknown is None:
        return replica.drafts[0]
    in_doubt = [unknown.key for unknown in replica.applied.all_unknown]
    for place, draft in enumerate(replica.drafts):
        if replica.applied.is_unknown(draft.id) or not replica.drafts.may_run_early(draft):
            continue
        before = [d.key for d in replica.drafts[:place]]
        matrix = replica.matrix_for(draft)
        if all(matrix.replaces(draft.key, name) for name in (*before, *in_doubt)):
            return draft
    return None


def _supersede_drafts(replica: Replica, out: Effects) -> None:
    """Decide drafts that would be superseded as soon as they ran: they need not run at all."""
    while replica.drafts:
        draft = replica.drafts[0]
        sealing = excluding_seal(draft, replica.history.seals)
        heads = replica.history.heads()
        superseder = sealing or next((y for y in heads if superseding_rule(y, draft, replica.matrix)), None)
        if not superseder:
            return
        if sealing and may_have_run(replica, draft.id):
            ledger.mark_dirty(replica, (draft.key,), out)  # what replaces it wipes its effect; a seal does not
        replica.applied.clear_unknown(draft.id)
        decide(replica, Verdict.SUPERSEDED, f"by {superseder.id}", out)


def _leave(replica: Replica, out: Effects, now_ms: int) -> None:
    """The resource is no longer at this site: what has not run here will never run here.

    The application may hold the effect of an UNKNOWN operation: if the resource comes back, that is wiped first.
    """
    for unknown in replica.applied.all_unknown:
        replica.applied.clear_unknown(unknown.id)
        ledger.mark_dirty(replica, (unknown.key,), out)
    while replica.drafts and not replica.is_involved:
        decide(replica, Verdict.VOID, "the resource left this site before this could run", out)
    if replica.is_involved:  # one of them had a list of sites, which counts although it did not run
        advance(replica, out, now_ms)
        return
    replica.applied.settle()
    replica.slot.note_success()
    by = replica.history.site_list_op
    if by and by.kind is Kind.SITES and by.payload.line and not has_deleted_copy(replica, by):
        _start(replica, Running(replica.next_reply, Purpose.LEAVE, by), (_step(by),), out)


def has_deleted_copy(replica: Replica, by: Operation) -> bool:
    """Whether this site has run, or tried to run, the command by which a site that leaves deletes its copy.

    It may have got another copy since: a site that knew nothing of the resource began it anew with other sites, this
    one among them, and that has lost its effect.
    """
    reply = replica.replies.get(by.id, replica.site)
    if reply is None or reply.origin != replica.origin:
        return False  # or an earlier store of this site did; something may have run since
    return reply.status is Status.KO or (bool(reply.wiped) and not replica.applied.entries)


# -- starting --------------------------------------------------------------------------------------------


def _start_plan(replica: Replica, wanted: Plan, out: Effects, now_ms: int) -> None:
    # A base that runs again wipes what came after it, so all of that must run again with it.
    if wanted.run and not wanted.replay and _has_run_before(replica, wanted.run[0]):
        wanted = Plan(from_base(wanted.run, 0, replica.matrix), replay=True)
    if wanted.replay:
        _start_replay(replica, wanted, out, now_ms)
    else:
        op = wanted.run[0]
        _start(replica, Running(replica.next_reply, Purpose.OPERATION, op), (_step(op),), out)


def _has_run_before(replica: Replica, base: Operation) -> bool:
    """Whether a replay was interrupted, so that its base is to be run a second time."""
    reply = replica.replies.get(base.id, replica.site)
    again = reply is not None and reply.status is Status.OK and reply.origin == replica.origin
    return again and replica.matrix.is_replace_type(base.key)


def _start_replay(replica: Replica, wanted: Plan, out: Effects, now_ms: int) -> None:
    base = replica.applied.base
    start = base.write if base else replica.type.reset
    is_base = base is not None
    steps = [Step(None, start, of_type=not is_base, of_base=is_base)] if wanted.from_start and start else []
    # A logic plugin rewrites what comes after the last base, wherever the replay begins.
    as_is = _place_of_last_base(replica, wanted.run) + 1
    logic, after = replica.type.logic, wanted.run[as_is:]
    rewritten = [op.id for op in replica.history.effective] if logic and _has_clash(replica, after) else None
    if logic and rewritten is not None:
        steps += [_step(op) for op in wanted.run[:as_is]]
        # Not `of_type`: what it makes of operations of other sites may run only if the type allows it here.
        steps += [Step(None, command) for command in logic(after)]
    else:
        steps += [_step(op) for op in wanted.run]
    has_start = wanted.from_start and start is not None
    running = Running(
        replica.next_reply, Purpose.REPLAY, plan=wanted, rewritten=rewritten, as_is=as_is, has_start=has_start
    )
    if steps:
        _start(replica, running, tuple(steps), out)
    else:
        finish_replay(replica, running, (), out, now_ms)  # nothing is effective, and nothing can be reset
        advance(replica, out, now_ms)


def _logic_plan(replica: Replica) -> Plan | None:
    """With a logic plugin, operations that clash are replayed from a base, as the plugin rewrites them."""
    effective = replica.history.effective
    if replica.type.logic is None or [op.id for op in effective] == replica.applied.rewritten:
        return None
    place = _place_of_last_base(replica, effective)
    if place >= 0:
        redone = from_base(effective, place, replica.matrix)
        return Plan(redone, replay=True) if _has_clash(replica, redone[1:]) else None
    has_start = replica.type.reset or replica.applied.base
    return (
        Plan(tuple(effective), replay=True, from_start=True) if has_start and _has_clash(replica, effective) else None
    )


def _place_of_last_base(replica: Replica, ops: Sequence[Operation]) -> int:
    """-1 if there is none."""
    is_base = replica.matrix.is_replace_type
    return next((place for place in range(len(ops) - 1, -1, -1) if is_base(ops[place].key)), -1)


def _has_clash(replica: Replica, ops: Sequence[Operation]) -> bool:
    """Whether there are concurrent operations of class 3 among these."""
    if all(a.is_before(b) for a, b in pairwise(ops)):
        return False  # each knew all before it: the usual case
    return any(
        a.is_concurrent(b) and replica.matrix.class_of_pair(a.key, b.key) == 3
        for place, a in enumerate(ops)
        for b in ops[place + 1 :]
    )


def _start(replica: Replica, running: Running, steps: tuple[Step, ...], out: Effects) -> None:
    replica.slot.begin(running)
    started = Started(
        replica.resource,
        running.n,
        running.op.id if running.op else running.plan.run[0].id if running.plan.run else None,
        replay=running.purpose is Purpose.REPLAY,
        from_start=running.plan.from_start,
        hook=running.purpose is Purpose.HOOK,
        units=running.purpose is Purpose.UNITS,
        dirty=_dirty_after_crash(replica, running),
    )
    if running.purpose is not Purpose.READ:  # a read changes nothing, so a crash during it leaves nothing open
        out.documents[key_of(started)] = started
    # Where the type has a remedy for failures, a replay stops at the first one: the remedy must run before the rest.
    replay = running.purpose is Purpose.REPLAY
    in_place = replica.type.decompose is not None or replica.type.on_error is not None
    until_failure = running.purpose is Purpose.UNITS or (replay and in_place)
    out.others.append(
        Run(replica.resource, running.n, steps, replay, until_failure=until_failure, rtype=replica.type.name)
    )


def _dirty_after_crash(replica: Replica, running: Running) -> tuple[str, ...]:
    """The keys that a crash during this run would leave in an unknown state."""
    if running.purpose is Purpose.LEAVE:
        return ("*",)
    if running.purpose is not Purpose.REPLAY or running.plan.from_start or not running.plan.run:
        return replica.applied.dirty
    return replica.matrix.wiped_by(running.plan.run[0].key)


def _step(op: Operation, *, again: bool = False) -> Step:
    return Step(op.id, op.payload, of_base=op.kind is Kind.FORCE, again=again)


def _handle_failure(replica: Replica, op: Operation, out: Effects) -> None:
    """Run the type's remedy for an operation that failed: its units, or the `on_error` command."""
    units = replica.type.decompose(op.payload) if replica.type.decompose else ()
    if units:
        steps = tuple(Step(op.id, unit, of_type=True) for unit in units)
        _start(replica, Running(replica.next_reply, Purpose.UNITS, op), steps, out)
    elif replica.type.on_error:
        step = Step(op.id, replica.type.on_error, of_type=True)
        _start(replica, Running(replica.next_reply, Purpose.HOOK, op), (step,), out)
    else:
        fail(replica, op, replica.applied.failed.get(op.id, ""), out)
