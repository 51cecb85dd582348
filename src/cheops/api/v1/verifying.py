"""The real state of the application at each site, and how it differs."""

import asyncio
from difflib import unified_diff

from cheops.api.forms import show_at
from cheops.api.models import StateAt, Verification
from cheops.api.views.operations import sites_of
from cheops.engine.replica import Replica
from cheops.node.node import Node


async def verification(node: Node, replica: Replica, command: str) -> Verification:
    sites = sites_of(replica)
    shown = await asyncio.gather(*(show_at(node, site, replica.resource, command) for site in sites))
    states = tuple(
        StateAt(site=site, status=one["Status"], output=one["Output"]) for site, one in zip(sites, shown, strict=True)
    )
    good = [state for state in states if state.status == "OK"]
    same = len(good) == len(states) and len({state.output for state in states}) == 1
    return Verification(
        resource=replica.resource,
        same=same,
        states=states,
        diff={state.site: _diff(good[0], state) for state in good[1:] if state.output != good[0].output},
    )


def _diff(one: StateAt, other: StateAt) -> tuple[str, ...]:
    before, after = one.output.splitlines(), other.output.splitlines()
    return tuple(unified_diff(before, after, one.site, other.site, lineterm=""))
