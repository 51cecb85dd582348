"""The output of scenarios: runs, messages, answers, and the log at each site, one line each."""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import TypeVar

from cheops.engine.documents import Message
from cheops.engine.events import Answer, Notify, Outcome, Result, Run, Stage
from cheops.engine.replica import Replica
from cheops.log.causality import covers
from cheops.log.operation import Kind, Operation, OpId
from cheops.log.rules import Rule, rule_number
from cheops.sim.apps import State

T = TypeVar("T")


def group_sites(by_site: dict[str, T]) -> Iterator[tuple[T, str]]:
    """Group the sites with equal values, so that agreement is visible at a glance."""
    for what in dict.fromkeys(by_site.values()):
        yield what, ", ".join(site for site, other in by_site.items() if other == what)


def describe_id(id_: OpId | None) -> str:
    """The id as in all output; with the incarnation once the site has lost its disk."""
    if id_ is None:
        return "start"
    incarnation = "" if id_.origin.incarnation == "1" else f"({id_.origin.incarnation})"
    return f"{id_.origin.site}{incarnation}:{id_.seq}"


# -- what happens ----------------------------------------------------------------------------------------


def describe_answer(site: str, answer: Answer) -> str:
    detail = f" ({answer.detail})" if answer.detail else ""
    match answer.stage:
        case Stage.REFUSED:
            return f"{site} refuses: {answer.detail}"
        case Stage.ACCEPTED:
            return f"{site} accepts {describe_id(answer.op)}"
        case Stage.DECIDED:
            return f"{site} answers: {describe_id(answer.op)} is {answer.status}{detail}"
        case Stage.SITE:
            return f"{site} answers: {describe_id(answer.op)} is {answer.status} at {answer.site}{detail}"


def describe_notice(site: str, notice: Notify) -> str:
    about = f" {describe_id(notice.op)}" if notice.op else ""
    return f"{site} notifies the operator: {notice.what}{about} ({notice.detail})"


def describe_message(message: Message) -> str:
    replies = ", ".join(f"{describe_id(reply.op)} {reply.status}" for reply in message.replies)
    parts = (
        "a snapshot:" if message.snapshot else "",
        " ".join(describe_id(op.id) for op in message.ops),
        "and the matrix" if message.matrices else "",
        f"[{replies}]" if replies else "",
        "wants the matrix" if message.wanted else "",
        "asks" if message.ask and not message.ops else "",
    )
    return " ".join(filter(None, parts)) or "acknowledges"


def describe_steps(run: Run, outcomes: tuple[Outcome, ...]) -> str:
    """Equal steps, such as units of one operation, are counted; an outcome is shown unless it is OK."""
    pairs = zip(run.steps, outcomes or (Outcome(Result.OK),) * len(run.steps), strict=False)
    parts = []
    for step, group in groupby(pairs, key=lambda pair: pair[0]):
        seen = [outcome for _, outcome in group]
        done = sum(outcome.result is Result.OK for outcome in seen)
        times = f" {done} times" if len(seen) > 1 else ""
        last = seen[-1]
        failure = "" if last.result is Result.OK else f"{', then' if times else ':'} {_failure(last)}"
        parts.append(f'{describe_id(step.op)} "{step.payload.line}"{times}{failure}')
    return ", ".join(parts)


def _failure(outcome: Outcome) -> str:
    return f"{outcome.result} ({outcome.output})"


# -- what there is ---------------------------------------------------------------------------------------


def describe_state(state: State) -> str:
    match state:
        case frozenset():
            words: Iterable[str] = sorted(state)
        case tuple():
            words = (word if isinstance(word, str) else "=".join(word) for word in state)
        case _:
            words = [str(state)]
    return " ".join(words) or "(empty)"


def describe_log(replica: Replica) -> Iterator[str]:
    """The operations that one site knows: the effective ones, then those without effect."""
    if replica.applied.base:
        yield f'checkpoint "{replica.applied.base.write.line}"'
    yield from (f"{_describe(op)}{_here(replica, op)}" for op in replica.history.effective)
    if replica.applied.order_not_enforced:
        yield "(order not enforced)"
    for op in _by_stamp(replica.history.ops.values()):
        yield from _without_effect(replica, op)
    yield from (f"draft {_describe(op)}{_here(replica, op)}" for op in replica.drafts)
    for op in _by_stamp(replica.inbox.waiting.values()):
        lacks = "its matrix" if covers(replica.history.known, op.deps) else "what it depends on"
        yield f"waiting for {lacks}: {_describe(op)}"


def _by_stamp(ops: Iterable[Operation]) -> list[Operation]:
    return sorted(ops, key=lambda op: op.stamp)


def _without_effect(replica: Replica, op: Operation) -> Iterator[str]:
    fate = replica.history.reason(op.id)
    if op.kind is Kind.SITES:
        yield f"sites {describe_id(op.id)} {' '.join(op.sites or ())}"
    elif op.kind is Kind.SEAL:
        yield f"seal {describe_id(op.id)}"
    elif fate and fate.rule is Rule.VOID:
        yield f"void {_describe(op)} ({_sentence(fate.rule)}: {op.why})"
    elif fate and fate.rule is Rule.BEATEN_AT_ORIGIN:
        yield f"superseded {_describe(op)} {op.why} ({fate.rule.sentence})"
    elif fate and fate.by:
        yield f"superseded {_describe(op)} by {describe_id(fate.by)} ({_sentence(fate.rule)})"


def _sentence(rule: Rule) -> str:
    number = rule_number(rule)
    return rule.sentence if number is None else f"rule {number}: {rule.sentence}"


def _describe(op: Operation) -> str:
    kind = "" if op.kind in (Kind.NORMAL, op.type) else f" {op.kind}"
    return f'{describe_id(op.id)}{kind} {op.type} "{op.payload.line}"'


def _here(replica: Replica, op: Operation) -> str:
    """A remark about an operation at this very site, or an empty text."""
    reply = replica.replies.get(op.id, replica.site)
    if replica.applied.is_unknown(op.id):
        return " (UNKNOWN here)"
    if op.id in replica.applied.failed:
        return f" (failed here: {replica.applied.failed[op.id]})"
    if op.id in {applied.id for applied in replica.applied.entries}:
        return f" ({reply.detail})" if reply and reply.detail else ""
    return " (not run here yet)"
