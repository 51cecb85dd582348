"""Why the state of a resource is what it is, step by step.

First the sites of the resource and its matrix; then each operation, and what superseded it; then what all sites must
have applied; then the progress of each site. The conclusion says what to do.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from operator import attrgetter

from cheops.api.models.operations import Effect, Explanation, ExplanationStep
from cheops.api.views.operations import (
    by_stamp,
    command_text,
    detail_text,
    effect_of,
    fate_of,
    gone_from,
    names,
    sites_of,
    stamp_text,
    vector_text,
)
from cheops.api.views.status import resource_verdict, sentence, word
from cheops.engine import health, incarnation, tombstones
from cheops.engine.evidence import Presence, evidence_of
from cheops.engine.replica import Replica
from cheops.engine.status import Overall, ResourceStatus, SiteStatus
from cheops.log.causality import contains
from cheops.log.matrix import is_wiped
from cheops.log.operation import Kind, Operation, OpId, Reply, Status
from cheops.log.rules import Fate, rule_text
from cheops.text import in_words, printable, shortened

_MAX_DETAIL = 200
_UNITS = re.compile(r"applied \d+ units; ")  # how the engine begins its report on unit steps
MAX_OPERATIONS = 50  # the newest ones; the log has all
_MAX_NAMED = 5
_KINDS = {
    Kind.FORCE: "forced by an operator, which becomes the new base",
    Kind.DELETE: "a deletion, which supersedes everything",
    Kind.SITES: "a change of the site list",
    Kind.SEAL: "a seal, which records what all sites have settled for good",
}


def explanation(replica: Replica, up: set[str], now_ms: int) -> Explanation:
    verdict = resource_verdict(replica, up)
    steps = [*_setting(replica), *_operations(replica), *_outcome(replica)]
    for site in verdict.sites:
        steps += _site_steps(replica, site, now_ms)
    return Explanation(
        resource=replica.resource,
        overall=word(verdict.overall),
        steps=tuple(steps),
        conclusion=_conclusion(replica, verdict, now_ms),
    )


def _step(text: str, op: Operation | None = None) -> ExplanationStep:
    return ExplanationStep(text=text, operation=str(op.id) if op else None)


# -- the setting -----------------------------------------------------------------------------------------


def _setting(replica: Replica) -> Iterator[ExplanationStep]:
    history, sites = replica.history, sites_of(replica)
    by = f", set by {history.site_list_op.id}" if history.site_list_op else ""
    at = in_words(sites) if sites else f"no site of the mesh: {in_words(gone_from(replica))} was removed from it"
    yield _step(f"'{printable(replica.resource)}' is at {at}{by}", history.site_list_op)
    if replica.matrix.entries:
        yield _step(f"its operations combine according to matrix {replica.matrix.hash[:12]}")
    else:
        yield _step("it has no matrix: every operation takes effect, in one order, and none replaces another")
    if replica.applied.base:
        yield _step(
            f"a checkpoint contains the state up to {_places(vector_text(replica.applied.base.vector))}; "
            "earlier operations are folded into it"
        )
    elif history.floor:
        floor = _places(vector_text(history.floor))
        yield _step(f"operations without effect up to {floor} are settled at every site and deleted from the log")


def _places(vector: dict[str, int]) -> str:
    return ", ".join(f"{site}:{number}" for site, number in vector.items())


# -- operations ------------------------------------------------------------------------------------------


def _operations(replica: Replica) -> Iterator[ExplanationStep]:
    ops = by_stamp(replica)
    if len(ops) > MAX_OPERATIONS:
        yield _step(f"{len(ops) - MAX_OPERATIONS} older operations are omitted; the log has them")
    for op in ops[-MAX_OPERATIONS:]:
        effect = _effect_text(replica, op, fate_of(replica, op))
        yield _step(f"{_description(replica, op)}{_concurrent_text(replica, op)}: {effect}", op)


def _description(replica: Replica, op: Operation) -> str:
    what = _KINDS.get(op.kind) or f"'{printable(shortened(command_text(replica, op)))}'"
    return f"{op.id} ({printable(op.type)}), {what}, made at {op.origin.site} at {stamp_text(op.stamp)}"


def _concurrent_text(replica: Replica, op: Operation) -> str:
    concurrent = [] if op.is_silent else [o for o in _concurrent(replica, op) if not o.is_silent]
    others = [o.id for o in sorted(concurrent, key=attrgetter("stamp"))]
    if not others:
        return ""
    shown = [*names(others[:_MAX_NAMED]), *(["others"] if len(others) > _MAX_NAMED else [])]
    return f", concurrent with {in_words(shown)}"


def _concurrent(replica: Replica, op: Operation) -> Iterator[Operation]:
    """The operations that are concurrent to one; without a look at all others."""
    history = replica.history
    for origin, last in history.known.items():
        # Of one origin: those after the ones that this operation knows, up to the first that knows it. All later ones
        # know it too.
        for seq in range(op.deps.get(origin, 0) + 1, last + 1) if origin != op.origin else ():
            other = history.ops.get(OpId(origin, seq))
            if other is not None and op.is_before(other):
                break
            if other is not None:
                yield other
    yield from (draft for draft in replica.drafts if draft.is_concurrent(op))


def _effect_text(replica: Replica, op: Operation, fate: Fate | None) -> str:
    effect = effect_of(op, fate)
    if effect is Effect.DRAFT:
        return _draft(replica, op)
    if fate is None:
        succeeded = f"succeeded at {op.origin.site}; in effect"
        return succeeded if effect is Effect.EFFECTIVE else "does not touch the application"
    by = f" by {fate.by}" if fate.by else ""
    why = f": {shortened(detail_text(replica, op.why), 200)}" if op.why else ""
    return f"{effect.value}{by}: {rule_text(fate.rule, fate.rule.sentence)}{why}"


def _draft(replica: Replica, op: Operation) -> str:
    if replica.applied.is_unknown(op.id):
        return "it is unknown whether it ran, so it was not sent to other sites"
    if replica.slot.running and replica.slot.running.op == op:
        return "running at its origin; the other sites receive it with the outcome"
    waits = f"behind {replica.applied.unknown.id}" if replica.applied.unknown else "for its turn"
    return f"waiting {waits} at its origin; the other sites receive it with the outcome"


def _outcome(replica: Replica) -> Iterator[ExplanationStep]:
    effective = replica.history.effective
    if not effective:
        held = "what the checkpoint holds" if replica.applied.base else "nothing"
        yield _step(f"every site must therefore have applied {held}")
        return
    shown = names(op.id for op in effective[-MAX_OPERATIONS:])
    more = "" if len(shown) == len(effective) else f"{len(effective) - len(shown)} older ones, then "
    after = "the checkpoint, then " if replica.applied.base else ""
    order = ", in this order" if len(effective) > 1 else ""
    yield _step(f"every site must therefore have applied{order}: {after}{more}{', '.join(shown)}")


# -- the progress of each site --------------------------------------------------------------------------


def _site_steps(replica: Replica, status: SiteStatus, now_ms: int) -> Iterator[ExplanationStep]:
    site = status.site
    if replay := _last_replay(replica, site):
        yield ExplanationStep(text=_replay_text(replica, replay), site=site)
    for reply in _applied_differently(replica, site):
        yield ExplanationStep(text=_difference(reply), operation=str(reply.op), site=site)
    for id_ in status.failed:
        why = shortened(detail_text(replica, replica.replies[id_, site].detail), _MAX_DETAIL)
        text = f"{id_} succeeded at {id_.origin.site} but failed at {site}: {why}"
        yield ExplanationStep(text=text, operation=str(id_), site=site)
    for id_ in status.unknown:
        why = shortened(detail_text(replica, replica.replies[id_, site].detail), _MAX_DETAIL)
        text = (
            f"it is unknown whether {id_} ran at {site}: {why}. Nothing more runs there until an operator "
            "resolves it, or an operation replaces it"
        )
        yield ExplanationStep(text=text, operation=str(id_), site=site)
    if site == replica.site and replica.applied.order_not_enforced:
        yield _unenforced(replica, site)
    yield ExplanationStep(text=_progress_text(replica, status, now_ms), site=site)


# -- replays ---------------------------------------------------------------------------------------------


def _last_replay(replica: Replica, site: str) -> Reply | None:
    """The newest is enough: a replay starts from a base, so its reply lists everything that an earlier one does."""
    replays = [reply for reply in replica.replies.replays() if reply.origin.site == site]
    return max(replays, key=lambda reply: reply.timing.at_ms, default=None)


def _replay_text(replica: Replica, reply: Reply) -> str:
    ran = _run_by(reply)
    lost = [id_ for id_ in ran if _has_lost_its_effect(replica, id_)]
    older = (
        f"{len(ran) - _MAX_NAMED} older {'one' if len(ran) == _MAX_NAMED + 1 else 'ones'}, "
        if len(ran) > _MAX_NAMED
        else ""
    )
    shown = f"{older}{in_words(names(ran[-_MAX_NAMED:]))}" if ran else "nothing more"
    order = ", in this order" if len(ran) > 1 else ""
    if replica.type.logic and _has_concurrent(replica, ran):
        return (
            f"{reply.origin.site} replayed to merge concurrent operations: it started again from a base, and what the "
            f"type's 'logic' made of {shown} ran in their place{_since(ran, lost)}"
        )
    return (
        f"{reply.origin.site} replayed to restore the order: it started again from a base and ran "
        f"{shown}{order}{_since(ran, lost)}"
    )


def _has_concurrent(replica: Replica, ids: list[OpId]) -> bool:
    ops = [op for id_ in ids if (op := replica.history.ops.get(id_))]
    return not all(a.is_before(b) for a, b in pairwise(ops))  # in their order, so causes come first


def _has_lost_its_effect(replica: Replica, id_: OpId) -> bool:
    """Whether the operation was replaced since. One that is only folded into a checkpoint keeps its effect."""
    history = replica.history
    return (id_ in history.fates or id_ not in history.ops) and not contains(history.folded, id_)


def _run_by(reply: Reply) -> list[OpId]:
    """The operations that a replay ran: those that it wiped first. Others were applied before, and stayed."""
    wiped = reply.wiped or ("*",)
    return [applied.id for applied in reply.applied if is_wiped(wiped, applied.key)]


def _since(ran: list[OpId], lost: list[OpId]) -> str:
    if not lost:
        return ""
    if len(lost) == len(ran):
        return "; since then other operations have replaced all of these"
    shown = names(lost[:_MAX_NAMED])
    more = ["others"] if len(lost) > _MAX_NAMED else []
    have, their = ("has", "its") if len(lost) == 1 else ("have", "their")
    return f"; since then {in_words([*shown, *more])} {have} lost {their} effect"


# -- applied in another way -------------------------------------------------------------------------------


def _applied_differently(replica: Replica, site: str) -> Iterator[Reply]:
    """Operations in effect that a site applied differently from their origin: in unit steps, by the type's `on_error`,
    or because an operator resolved them so. Those that a later replay ran again are left out."""
    replay = _last_replay(replica, site)
    again = set(_run_by(replay)) if replay else set()
    for op in replica.history.effective:
        reply = replica.replies.get(op.id, site)
        if reply is None or reply.op != op.id or reply.status is not Status.OK or not reply.detail:
            continue
        if not (replay and reply.origin == replay.origin and reply.n < replay.n and op.id in again):
            yield reply


def _difference(reply: Reply) -> str:
    at, detail = f"at {reply.origin.site}", shortened(reply.detail, _MAX_DETAIL)
    if _UNITS.match(reply.detail):
        return f"{reply.op} failed {at} as a whole, and was applied there in unit steps: {detail}"
    return f"{reply.op} {at}: {detail}"


def _refused_units(replica: Replica, site: str) -> list[OpId]:
    """Operations that a site applied only in part, because a unit was refused."""
    return [reply.op for reply in _applied_differently(replica, site) if reply.op and _UNITS.match(reply.detail)]


# -- how far ---------------------------------------------------------------------------------------------


def _unenforced(replica: Replica, site: str) -> ExplanationStep:
    ran = names(applied.id for applied in replica.applied.entries[-_MAX_NAMED:])
    text = (
        f"{site} ran {in_words(ran) if ran else 'nothing'} in this order, which is not the agreed one; it cannot "
        "replay, because no replacing operation precedes them and the type has no 'reset' to replay from"
    )
    return ExplanationStep(text=text, site=site)


def _progress_text(replica: Replica, status: SiteStatus, now_ms: int) -> str:
    site, is_here = status.site, status.site == replica.site
    if status.relayed:
        return f"{site} {_relayed_progress(status, now_ms)}"
    if status.last_contact_ms is None and not is_here:
        silent = f"has not reported on this resource{'' if status.pending else ', so what it has is not known'}"
        return f"{site} {silent}" if status.reachable else f"{site} is unreachable and {silent}"
    age_s = 0 if is_here else max(now_ms - (status.last_contact_ms or 0), 0) / 1000
    as_of = "" if is_here else f" (as of {age_s:.0f} s ago)"
    if status.reachable:
        return f"{site} {_progress(replica, status, 'is', 'has')}{as_of}"
    return f"{site} is unreachable; by its last report it {_progress(replica, status, 'was', 'had')}{as_of}"


def _relayed_progress(status: SiteStatus, now_ms: int) -> str:
    """Of a site that has gone on since its last report, by what other sites passed on."""
    since = "" if status.last_contact_ms is None else f" for {max(now_ms - status.last_contact_ms, 0) / 1000:.0f} s"
    ran = "it has run everything" if status.pending == 0 else "what it still has to process is not known"
    return f"has not reported here{since}; by its replies that other sites passed on, {ran}"


def _progress(replica: Replica, status: SiteStatus, is_: str, has: str) -> str:
    """`is_`, `has`: in the tense of what is known of the site."""
    if not status.pending:
        failed = " except for what failed" if status.failed else ""
        return f"{is_} up to date{failed}"
    evidence = evidence_of(replica, status.site)
    open_ = [op.id for op in replica.history.ops.values() if evidence.has_settled(op) is not Presence.HAS]
    if status.site == replica.site:
        open_ += [draft.id for draft in replica.drafts]
    shown = [*names(open_[:_MAX_NAMED]), *(["others"] if len(open_) > _MAX_NAMED else [])]
    return f"still {has} to process {in_words(shown)}" if shown else f"{is_} still working"


# -- the conclusion --------------------------------------------------------------------------------------


def _conclusion(replica: Replica, verdict: ResourceStatus, now_ms: int) -> str:
    partial, advice = _partly_applied(replica, verdict), _advice(replica, verdict)
    return f"{verdict.overall.value}: {sentence(replica, verdict, now_ms)}{partial}{advice}"


def _partly_applied(replica: Replica, verdict: ResourceStatus) -> str:
    """Sites can be in sync although an operation did not have its full effect anywhere."""
    parts = [
        f"{in_words(names(refused))} at {site.site}"
        for site in verdict.sites
        if (refused := _refused_units(replica, site.site))
    ]
    return f"; only partly applied, because a unit was refused: {in_words(parts)}" if parts else ""


def _advice(replica: Replica, verdict: ResourceStatus) -> str:
    match verdict.overall:
        case Overall.CONVERGED:
            return ""
        case Overall.CONVERGING:
            # An attempt that could not start, such as one without credentials, may need the operator.
            return "" if any(site.retry_reason for site in verdict.sites) else ". No action is needed"
        case Overall.UNREACHABLE:
            return ". Unreachable sites catch up automatically"
        case Overall.DIVERGED:
            return _remedy(replica, verdict)


def _remedy(replica: Replica, verdict: ResourceStatus) -> str:
    id_ = printable(replica.resource)
    unknown = next(((site.site, site.unknown[0]) for site in verdict.sites if site.unknown), None)
    if unknown:
        site, op = unknown
        return (
            f". Check the application at {site}, then report whether {op} took effect: "
            f"cheops resolve {id_} --site {site} --op {op} --happened yes|no"
        )
    if incarnation.doubt(replica) or tombstones.doubt(replica) or health.refusal(replica):
        return ""  # the sentence says what to do
    return f". To make the sites equal again: cheops repair {id_}"
