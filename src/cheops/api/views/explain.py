"""Why the state of a resource is what it is, step by step, in the words of the rules.

First where it is and by which matrix; then each operation, what it knew, and what took its effect if
something did; then what all sites must have applied; then how far each site is. The conclusion says what
to do.
"""

from collections.abc import Iterator, Sequence

from cheops.api.models import Effect, Explanation, ExplanationStep
from cheops.api.views.naming import by_stamp, names, stamp_text, vector_text
from cheops.api.views.operations import effect_of, fate_of, sites_of
from cheops.api.views.site_story import refused_units, site_steps
from cheops.api.views.status import judged, sentence, word
from cheops.engine.replica import Replica
from cheops.engine.status import Overall, ResourceStatus
from cheops.log.operation import Kind, Operation
from cheops.log.rules import Fate
from cheops.text import in_words, printable, shortened

MOST_OPERATIONS = 50
_MOST_NAMED = 5
_KINDS = {
    Kind.FORCE: "the operator's word, which becomes the new base",
    Kind.DELETE: "a deletion, which beats everything",
    Kind.SITES: "a change of the list of sites",
    Kind.SEAL: "a seal: it only says what all sites have settled for good",
}


def explanation(replica: Replica, up: set[str], now_ms: int) -> Explanation:
    found = judged(replica, up)
    steps = [*_setting(replica), *_operations(replica), *_outcome(replica)]
    for site in found.sites:
        steps += site_steps(replica, site, now_ms)
    return Explanation(
        resource=replica.resource,
        overall=word(found.overall),
        steps=tuple(steps),
        conclusion=_conclusion(replica, found),
    )


def _step(text: str, op: Operation | None = None) -> ExplanationStep:
    return ExplanationStep(text=text, operation=str(op.id) if op else None)


# -- the setting -----------------------------------------------------------------------------------------


def _setting(replica: Replica) -> Iterator[ExplanationStep]:
    history, sites = replica.history, sites_of(replica)
    by = f", as {history.roster_by.id} says" if history.roster_by else ""
    yield _step(f"'{printable(replica.resource)}' is at {in_words(sites)}{by}", history.roster_by)
    if replica.matrix.entries:
        yield _step(f"its operations combine by the matrix {replica.matrix.hash[:12]}")
    else:
        yield _step("it has no matrix: all operations count, in one order, and none replaces another")
    if replica.base:
        yield _step(
            f"a checkpoint holds the state up to {_places(vector_text(replica.base.vector))}; "
            "the operations before it are folded into it"
        )
    elif history.floor:
        floor = _places(vector_text(history.floor))
        yield _step(f"operations without effect up to {floor} are settled everywhere, and forgotten")


def _places(vector: dict[str, int]) -> str:
    return ", ".join(f"{site}:{number}" for site, number in vector.items())


# -- operations ------------------------------------------------------------------------------------------


def _operations(replica: Replica) -> Iterator[ExplanationStep]:
    ops = by_stamp(replica)
    if len(ops) > MOST_OPERATIONS:
        yield _step(f"{len(ops) - MOST_OPERATIONS} older operations are not told here; the log has them")
    for op in ops[-MOST_OPERATIONS:]:
        fate = fate_of(replica, op)
        yield _step(f"{_made(op)}{_at_the_same_time(op, ops)}: {_became(replica, op, fate)}", op)


def _made(op: Operation) -> str:
    what = _KINDS.get(op.kind) or f"'{printable(shortened(op.payload.line))}'"
    return f"{op.id} ({printable(op.type)}), {what}, was made at {op.origin.site} at {stamp_text(op.stamp)}"


def _at_the_same_time(op: Operation, ops: Sequence[Operation]) -> str:
    others = [o.id for o in ops if o.is_concurrent(op) and not (o.is_silent or op.is_silent)]
    if not others:
        return ""
    shown = [*names(others[:_MOST_NAMED]), *(["others"] if len(others) > _MOST_NAMED else [])]
    return f", without knowing of {in_words(shown)}"


def _became(replica: Replica, op: Operation, fate: Fate | None) -> str:
    effect = effect_of(op, fate)
    if effect is Effect.DRAFT:
        return _draft(replica, op)
    if fate is None:
        went_well = f"it went well at {op.origin.site}, and it is effective"
        return went_well if effect is Effect.EFFECTIVE else "it touches no application"
    by = f" by {fate.by}" if fate.by else ""
    why = f": {shortened(op.why, 200)}" if op.why else ""
    return f"{effect.value}{by}: {fate.rule.sentence} (rule {fate.rule.value}){why}"


def _draft(replica: Replica, op: Operation) -> str:
    if replica.unknown and replica.unknown.id == op.id:
        return "whether it ran is not known, so no other site has heard of it"
    if replica.running and replica.running.op == op:
        return "it is being run at its origin; the other sites hear of it with the outcome"
    waits = f"behind {replica.unknown.id}" if replica.unknown else "for its turn"
    return f"it waits {waits} at its origin; the other sites hear of it with the outcome"


def _outcome(replica: Replica) -> Iterator[ExplanationStep]:
    effective = replica.history.effective
    if not effective:
        held = "what the checkpoint holds" if replica.base else "nothing"
        yield _step(f"so every site must have applied {held}")
        return
    shown = names(op.id for op in effective[-MOST_OPERATIONS:])
    more = "" if len(shown) == len(effective) else f"{len(effective) - len(shown)} older ones, then "
    after = "the checkpoint, then " if replica.base else ""
    order = ", in this order" if len(effective) > 1 else ""
    yield _step(f"so every site must have applied{order}: {after}{more}{', '.join(shown)}")


# -- the conclusion --------------------------------------------------------------------------------------


def _conclusion(replica: Replica, found: ResourceStatus) -> str:
    return f"{found.overall.value}: {sentence(found)}{_done_in_part(replica, found)}{_advice(replica, found)}"


def _done_in_part(replica: Replica, found: ResourceStatus) -> str:
    """Sites can agree, and an operation still not have had the effect that somebody counts on."""
    parts = [
        f"{in_words(names(refused))} at {site.site}"
        for site in found.sites
        if (refused := refused_units(replica, site.site))
    ]
    return f"; done only in part, because a unit was refused: {in_words(parts)}" if parts else ""


def _advice(replica: Replica, found: ResourceStatus) -> str:
    match found.overall:
        case Overall.CONVERGED:
            return ""
        case Overall.CONVERGING:
            return ". Nothing needs to be done"
        case Overall.UNREACHABLE:
            return ". They catch up by themselves when they are back"
        case Overall.DIVERGED:
            return _cure(replica, found)


def _cure(replica: Replica, found: ResourceStatus) -> str:
    id_ = printable(replica.resource)
    unknown = next(((site.site, site.unknown[0]) for site in found.sites if site.unknown), None)
    if unknown:
        site, op = unknown
        return (
            f". Look at the application at {site}, and say whether {op} took effect: "
            f"cheops resolve {id_} --site {site} --op {op} --happened yes|no"
        )
    return (
        ". An operation that replaces everything makes the sites equal again: "
        f"cheops exec --force --id {id_} …"
    )
