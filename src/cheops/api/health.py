"""The health of all resources of a site: the store counts them by state, and the worst are said in words.

For `cheops status` without an id, `cheops check`, `/metrics` and the start page of the UI. The states are those of
cheops.engine.health.
"""

import asyncio
from collections.abc import Iterable, Sequence

from cheops.api.disk_usage import disk_usage, space_use
from cheops.api.models.resources import ResourceStatus, SiteHealth, StateCounts, WorstResource, cure_of
from cheops.api.models.resources import State as StateName
from cheops.api.models.site import Check, make_check
from cheops.api.views.status import is_here, resource_status
from cheops.engine.health import TROUBLED, State
from cheops.engine.replica import Replica
from cheops.node.damaged_documents import named
from cheops.node.node import Node
from cheops.text import printable, shortened

MOST_WORST = 10
_WORST_FIRST = (*TROUBLED, State.UNKNOWN, State.CONVERGING)
_MOST_EXAMINED = 200  # some have recovered since their state was saved
_GROUP = "resources"
_NAMES: dict[State, StateName] = {
    State.DIVERGED: "diverged",
    State.ORDER_NOT_ENFORCED: "order-not-enforced",
    State.UNKNOWN: "unknown",
    State.CONVERGING: "converging",
}


async def state_counts(node: Node) -> dict[State, int]:
    """How many resources are in each state, 0 included; without deleted ones."""
    stored = await asyncio.to_thread(node.store.states)
    return {state: stored.get(state, 0) for state in State if state is not State.DELETED}


async def site_health(node: Node) -> SiteHealth:
    worst = await worst_resources(node)
    counts = await state_counts(node)  # afterwards: looking at a resource may correct its state
    return SiteHealth(
        site=node.name,
        resources=sum(counts.values()),
        states=StateCounts(**{state.value.replace("-", "_"): n for state, n in counts.items()}),
        unreachable=tuple(sorted(set(node.snapshot().sites) - set(node.mesh.up) - {node.name})),
        worst=worst,
        space=space_use(await disk_usage(node)),
    )


async def worst_resources(node: Node, states: Sequence[State] = _WORST_FIRST) -> tuple[WorstResource, ...]:
    """At most ten that are in one of these states, in the order of the states."""
    worst: list[WorstResource] = []
    examined = 0
    for state in states:
        after = ""
        while len(worst) < MOST_WORST and examined < _MOST_EXAMINED:
            ids = await asyncio.to_thread(node.store.in_states, (state,), "", None, after, MOST_WORST)
            if not ids:
                break
            examined, after = examined + len(ids), ids[-1]
            worst += [_damaged(id_, node.store.damaged[id_]) for id_ in ids if id_ in node.store.damaged]
            replicas = await node.pump.readable(ids)
            worst += [found for one in replicas if is_here(one) and (found := _worst(node, one, state))]
    return tuple(worst[:MOST_WORST])


def _worst(node: Node, replica: Replica, state: State) -> WorstResource | None:
    """None if it has recovered since its state was saved."""
    status = resource_status(replica, set(node.mesh.up), node.now_ms())
    if status.overall == "CONVERGED" or (state in TROUBLED and status.overall != "DIVERGED"):
        return None
    return WorstResource(
        id=status.id, state=_NAMES[state], overall=status.overall, sentence=status.sentence, hint=_hint(status)
    )


def _damaged(id_: str, ids: Iterable[str]) -> WorstResource:
    sentence = f"stored documents are damaged ({named(ids)}), so its state is not known here"
    return WorstResource(id=id_, state="unknown", overall="UNREACHABLE", sentence=sentence, hint="cheops check")


def _hint(status: ResourceStatus) -> str:
    return cure_of(status) if status.overall == "DIVERGED" else ""


# -- cheops check ----------------------------------------------------------------------------------------


async def resource_checks(node: Node) -> list[Check]:
    # Damaged ones have a check of their own.
    worst = [one for one in await worst_resources(node, TROUBLED) if one.overall == "DIVERGED"]
    counts = await state_counts(node)
    left = sum(counts[state] for state in TROUBLED) - len(worst)
    if not worst and left <= 0:
        return [make_check(_GROUP, "no resource is diverged", counts_in_words(counts))]
    checks = [
        make_check(
            _GROUP,
            f"'{printable(shortened(one.id))}' is {one.overall}",
            one.sentence,
            f"'{one.hint}' says how to fix it",
        )
        for one in worst
    ]
    if left > 0:
        hint = "list them with 'cheops get resources --overall DIVERGED'"
        checks.append(make_check(_GROUP, f"{left:,} more resources are DIVERGED", counts_in_words(counts), hint))
    return checks


def counts_in_words(counts: dict[State, int]) -> str:
    total = sum(counts.values())
    if not total:
        return "there are no resources"
    parts = ", ".join(f"{n:,} {state.value}" for state, n in counts.items() if n)
    return f"{total:,} resource{'' if total == 1 else 's'}: {parts}"
