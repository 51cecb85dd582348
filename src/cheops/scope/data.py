"""Scopes, routes and explanations as plain data (dicts, lists, strings), for JSON and YAML."""

from typing import Any, assert_never

from cheops.scope.explain import Explanation, ServiceExplanation
from cheops.scope.route import Cross, Fallback, One, Replicas, Route
from cheops.scope.tree import Across, And, Argument, At, Call, Duration, Leveled, Nowhere, Otherwise, Scope

Data = dict[str, Any]

_KINDS = {And: "replication", Across: "cross", Otherwise: "otherwise"}


def scope_data(scope: Scope) -> Data:
    return {
        "canonical": str(scope),
        "bindings": [{"service": b.service, "location": node_data(b.location)} for b in scope.bindings],
    }


def node_data(node: Argument) -> Data:
    match node:
        case At(site):
            return {"kind": "site", "site": site}
        case And(parts) | Across(parts) | Otherwise(parts):
            return {"kind": _KINDS[type(node)], "parts": [node_data(part) for part in parts]}
        case Call(function, arguments):
            return {"kind": "call", "function": function, "arguments": [node_data(a) for a in arguments]}
        case Leveled(level, location):
            return {"kind": "level", "level": level.value, "location": node_data(location)}
        case Duration():
            return {"kind": "duration", "ms": node.ms}
        case Nowhere(why):
            return {"kind": "nowhere", "why": why}
        case _:
            assert_never(node)


def route_data(route: Route) -> Data:
    match route:
        case One(site):
            return {"kind": "one", "site": site}
        case Replicas(sites, consistency):
            return {"kind": "replicas", "sites": list(sites), "consistency": consistency.value}
        case Cross(parts):
            return {"kind": "cross", "parts": [route_data(part) for part in parts]}
        case Fallback(alternatives):
            return {"kind": "fallback", "alternatives": [route_data(one) for one in alternatives]}
        case _:
            assert_never(route)


def explanation_data(explanation: Explanation) -> Data:
    return {
        "scope": explanation.scope,
        "here": explanation.here,
        "services": [_service_data(service) for service in explanation.services],
    }


def _service_data(service: ServiceExplanation) -> Data:
    return {
        "service": service.service,
        "location": service.location,
        "tree": node_data(service.tree),
        "means": service.means,
        "route": route_data(service.route),
        "sites": [{"site": s.site, "role": s.role, "up": s.up, "rtt_ms": s.rtt_ms} for s in service.sites],
        "methods": [
            {"method": e.method.value, "sites": list(e.sites), "latency_ms": e.latency_ms, "does": e.does}
            for e in service.effects
        ],
        "notes": list(service.notes),
    }
