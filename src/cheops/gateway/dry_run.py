"""What a request would do, as an answer to it: `Cheops-Dry-Run: 1`. Nothing is sent anywhere."""

from typing import Any

import msgspec

from cheops.gateway.headers import SITE, site_name
from cheops.gateway.routing import Decision, Forward, InTurn, Local, Replicate, kind_of, method_of
from cheops.gateway.seam import Foretold, Head, Outgoing
from cheops.scope.data import explanation_data, route_data
from cheops.scope.explain import explain
from cheops.scope.functions import Functions
from cheops.scope.methods import effect
from cheops.scope.route import One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Scope


def foretold(  # noqa: PLR0913, PLR0917 - all that was decided
    service: str,
    head: Head,
    scope: Scope | None,
    route: Route | None,
    decision: Decision,
    snapshot: Snapshot,
    functions: Functions,
    replicant: Foretold | None = None,
) -> Outgoing:
    """The sites, the route, and what the method would do, in the words of `cheops scope explain`. What is
    done to something replicated is done where it is, whatever the scope says."""
    here = snapshot.here or ""
    if replicant and (replicant.goes_everywhere or isinstance(decision, Local)):
        route = Replicas(replicant.sites)
        decision = Replicate(route)
    does = effect(route or One(here), method_of(head.method), snapshot)
    told: dict[str, Any] = {
        "dry_run": True,
        "site": here,
        "service": service,
        "method": head.method,
        "target": head.target,
        "scope": None if scope is None else str(scope),
        "replicant": replicant.meta_id if replicant else None,
        "decision": kind_of(decision),
        "tried": [_words(one, here) for one in _choices(decision)],
        "route": route_data(route or One(here)),
        "effect": {
            "method": does.method.value,
            "sites": list(does.sites),
            "latency_ms": does.latency_ms,
            "does": does.does,
        },
    }
    if scope is not None:
        explained = explanation_data(explain(scope, snapshot, service, functions))["services"][0]
        told |= {"sites": explained["sites"], "means": explained["means"], "notes": explained["notes"]}
    headers = (("Content-Type", "application/json"), ("Cache-Control", "no-store"), (SITE, site_name(here)))
    return Outgoing(200, headers, msgspec.json.encode(told))


def _choices(decision: Decision) -> tuple[Local | Forward | Replicate, ...]:
    return decision.choices if isinstance(decision, InTurn) else (decision,)


def _words(choice: Local | Forward | Replicate, here: str) -> dict[str, Any]:
    match choice:
        case Local():
            return {"kind": "local", "sites": [here]}
        case Forward(site):
            return {"kind": "forward", "sites": [site]}
        case Replicate(route):
            return {"kind": "replicate", "sites": list(route.sites)}
