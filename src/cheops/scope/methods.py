"""What reading, creating, updating and deleting would do along a route, in words and in milliseconds.

Latencies are network round trips from the site that answers the client, as far as they are known;
what the application takes comes on top.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from cheops.scope.names import write_name
from cheops.scope.reach import in_order, works_now
from cheops.scope.route import Cross, Direct, Fallback, One, Replicas, Route
from cheops.scope.snapshot import Snapshot
from cheops.scope.tree import Consistency
from cheops.text import in_words, is_or_are

_SHOWN = 3  # alternatives that are named in a sentence


class Method(StrEnum):
    READ = "read"
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"


_DONE = {Method.CREATE: "is created", Method.UPDATE: "is updated", Method.DELETE: "is deleted"}


@dataclass(frozen=True, slots=True)
class Effect:
    """What a method would do: the sites it would reach now, when it would be answered, and a sentence."""

    method: Method
    sites: tuple[str, ...]
    latency_ms: float | None
    does: str


def effect(route: Route, method: Method, snapshot: Snapshot) -> Effect:
    """What a method would do if it came now."""
    match route:
        case One(site):
            return _one(site, method, snapshot)
        case Replicas() if method is Method.READ:
            return _read_replica(route, snapshot)
        case Replicas():
            return _write_replicas(route, method, snapshot)
        case Cross():
            return _cross(route, method, snapshot)
        case Fallback():
            return _fallback(route, method, snapshot)


def _one(site: str, method: Method, snapshot: Snapshot) -> Effect:
    if not snapshot.is_up(site):
        return Effect(method, (), None, f"fails: {site} is down")
    does = "is served here" if site == snapshot.here else f"is sent to {site}"
    return Effect(method, (site,), snapshot.rtt_ms(snapshot.here, site), does)


def _read_replica(route: Replicas, snapshot: Snapshot) -> Effect:
    up, _ = _by_distance(route, snapshot)
    if not up:
        return Effect(Method.READ, (), None, "fails: no replica is up")
    does = f"reads the replica {_at(up[0], snapshot)}"
    needed = up[:1]
    if route.consistency is Consistency.STRONG and len(up) >= route.majority:
        needed = up[: route.majority]
        does += f", after {_majority(route)} said that it is current"
    elif route.consistency is Consistency.STRONG:
        does += f", marked stale: {_majority(route)} would have to be up"
    return Effect(Method.READ, needed, _slowest(needed, snapshot), does)


def _write_replicas(route: Replicas, method: Method, snapshot: Snapshot) -> Effect:
    up, down = _by_distance(route, snapshot)
    if not works_now(route, snapshot, reading=False):
        return Effect(method, (), None, _refusal(route, up, down))
    done = _DONE[method]
    first, others = up[0], up[1:]
    match route.consistency:
        case Consistency.NONE:
            missed = f"; {in_words(down)} will never get it" if down else ""
            return Effect(method, up, _slowest(up[:1], snapshot), f"is sent once to {in_words(up)}{missed}")
        case Consistency.EVENTUAL:
            then = f", then at {in_words(others)}" if others else ""
            later = f"; at {in_words(down)} when {_pronoun(down)} back" if down else ""
            does = f"{done} {_at(first, snapshot)} first{then}{later}"
            return Effect(method, up, _slowest(up[:1], snapshot), does)
        case Consistency.ATOMIC:
            return Effect(method, up, _slowest(up, snapshot), f"{done} at all of {in_words(up)}, or at none")
        case Consistency.STRONG:
            quorum = up[: route.majority]
            later = f"; at {in_words(down)} when {_pronoun(down)} back" if down else ""
            does = f"is put in order by {_majority(route)}, and {done} at {in_words(up)}{later}"
            return Effect(method, up, _slowest(quorum, snapshot), does)


def _refusal(route: Replicas, up: tuple[str, ...], down: tuple[str, ...]) -> str:
    if route.consistency is Consistency.ATOMIC:
        return f"is refused: it needs every site, and {in_words(down)} {is_or_are(down)} down"
    if route.consistency is Consistency.STRONG:
        return f"is refused: it needs {_majority(route)}, and {len(up)} {is_or_are(up)} up"
    return "fails: no site is up"


def _cross(route: Cross, method: Method, snapshot: Snapshot) -> Effect:
    if not works_now(route, snapshot, reading=method is Method.READ):
        down = [site for site in route.sites if not snapshot.is_up(site)]
        does = f"fails: {in_words(down)} {is_or_are(down)} down, and every part is needed"
        return Effect(method, (), None, does)
    parts = [effect(part, method, snapshot) for part in route.parts]
    sites = tuple(dict.fromkeys(site for part in parts for site in part.sites))
    texts = [_text(part) if isinstance(part, One) else f"({_text(part)})" for part in route.parts]
    does = {
        Method.READ: f"reads the parts at {in_words(texts)} and puts them together",
        Method.CREATE: f"is created at {texts[0]}, then extended to {in_words(texts[1:])}",
        Method.UPDATE: f"is updated at those of {in_words(texts)} that it concerns",
        Method.DELETE: f"is deleted at {in_words(texts)}",
    }[method]
    first, *rest = (part.latency_ms for part in parts)
    latency_ms = _added(first, _greatest(rest)) if method is Method.CREATE else _greatest([first, *rest])
    return Effect(method, sites, latency_ms, does)


def _greatest(latencies_ms: list[float | None]) -> float | None:
    known = [ms for ms in latencies_ms if ms is not None]
    return max(known) if len(known) == len(latencies_ms) else None


def _added(one_ms: float | None, other_ms: float | None) -> float | None:
    return None if one_ms is None or other_ms is None else one_ms + other_ms


def _fallback(route: Fallback, method: Method, snapshot: Snapshot) -> Effect:
    first, *rest = in_order(route, snapshot, reading=method is Method.READ)
    now = effect(first, method, snapshot)
    if not now.sites:
        return Effect(
            method, (), None, f"fails: none of its {len(route.alternatives)} alternatives works now"
        )
    named = ", else ".join(_text(one) for one in rest[:_SHOWN])
    more = f", else {len(rest) - _SHOWN} more" if len(rest) > _SHOWN else ""
    # What may have had an effect is not sent a second time, unless sending it twice does no harm.
    when = "if it is not reached" if method is Method.CREATE else "if that fails"
    return Effect(method, now.sites, now.latency_ms, f"{now.does}; {when}: {named}{more}")


def _majority(route: Replicas) -> str:
    return f"a majority ({route.majority} of {len(route.sites)})"


def _by_distance(route: Replicas, snapshot: Snapshot) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sites that are up, nearest first, and those that are down."""

    def distance(site: str) -> float:
        rtt_ms = snapshot.rtt_ms(snapshot.here, site)
        return float("inf") if rtt_ms is None else rtt_ms

    up = tuple(sorted(filter(snapshot.is_up, route.sites), key=distance))
    return up, tuple(site for site in route.sites if site not in up)


def _slowest(sites: Iterable[str], snapshot: Snapshot) -> float | None:
    slowest = 0.0
    for site in sites:
        rtt_ms = snapshot.rtt_ms(snapshot.here, site)
        if rtt_ms is None:
            return None
        slowest = max(slowest, rtt_ms)
    return slowest


def _text(direct: Direct) -> str:
    """A route as the scope that would give it."""
    match direct:
        case One(site):
            return write_name(site)
        case Replicas(sites, consistency):
            text = " & ".join(map(write_name, sites))
            return text if consistency is Consistency.EVENTUAL else f"{consistency}({text})"
        case Cross(parts):
            return " % ".join(_text(part) for part in parts)


def _at(site: str, snapshot: Snapshot) -> str:
    return "here" if site == snapshot.here else f"at {site}"


def _pronoun(names: tuple[str, ...]) -> str:
    return "it is" if len(names) == 1 else "they are"
