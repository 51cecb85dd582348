"""Checks of what went wrong for good: bugs of this agent, sites in the wrong hands, a store that was an old copy."""

import time
from collections.abc import Iterator

from cheops.api.models.site import Check, Level
from cheops.api.models.site import make_check as _check
from cheops.engine import incarnation
from cheops.node.node import Node
from cheops.text import listed, printable, shortened

_MAX_HELD = 20
_SHOWN_MS = 7 * 24 * 3_600_000  # a new incarnation is shown for so long


def fault_checks(node: Node) -> Iterator[Check]:
    """Bugs of this agent, and proof that a site is in the wrong hands."""
    if node.faults.count:
        hint = "this is a bug in Cheops: report it with the agent's log"
        name = f"{node.faults.count} events failed because of a fault in this agent"
        yield _check("store", name, node.faults.last, hint)
    for one in node.alarms.open(node.mesh.member_of)[:_MAX_HELD]:
        name = f"{printable(one.by)} misbehaves ({one.what}) on '{printable(shortened(one.resource))}'"
        hint = (
            f"if its keys are in the wrong hands: 'cheops site forget {one.by} --force', or new keys with "
            f"'cheops site invite {one.by} --again'. Either ends this alarm"
        )
        yield _check("security", name, one.detail, hint)


def incarnation_checks(node: Node) -> Iterator[Check]:
    """That the store was an old copy, or its stamps were wrong; and what still waits to be issued again."""
    now_ms = time.time() * 1000
    # Of several that were closed at once, one line: the reason is the same.
    for closed in {one.at_ms: one for one in node.pump.site.incarnations.closed}.values():
        if now_ms - closed.at_ms < _SHOWN_MS:
            name = "this site has begun a new incarnation of its store"
            hint = "'cheops log ID' shows what was issued again; docs/production.md#backup explains it"
            yield _check("store", name, printable(closed.why), hint, Level.WARNING)
    replicas = [replica for replica in node.pump.site.replicas.values() if incarnation.waiting(replica)]
    for replica in replicas[:_MAX_HELD]:
        sites = listed(map(printable, incarnation.unheard(replica)))
        name = f"operations on '{printable(shortened(replica.resource))}' wait to be issued again"
        detail = f"{len(incarnation.waiting(replica))} that this site has acknowledged"
        hint = f"they are as soon as all its sites have answered; not yet: {sites or 'none is missing'}"
        yield _check("store", name, detail, hint)
