"""scope-lang: the cost of a scope that is cached, of parsing and resolving a new one, and of refusing a bad one."""

import itertools
import json
from collections.abc import Callable
from contextlib import suppress

from bench.measure import compare, human, median_of_single_calls
from bench.report import Section
from cheops.scope import ScopeError, SiteInfo, Snapshot, parse, resolve

TYPICAL = "{compute: site1, image: site2 & site3 ; around(site1, 10ms)}"
BAD = {
    "empty": "",
    "unbalanced": "{image: (site1 & site2}",
    "a missing operand": "{image: site1 & }",
    "two bindings of one service": "{image: site1, image: site2}",
    "an unknown function": "{image: arround(site1, 10ms)}",
    "a duration without a unit": "{image: around(site1, 10)}",
    "control characters": "{image: site1 & \x07site2}",
    "1 MB": "site1 & " * 131_072,
    "10,000 parentheses": "(" * 10_000 + "a" + ")" * 10_000,
    "as many names as the parser ever sees, wrong at the end": "& ".join(["a"] * 2_048) + " b c |",
    "as many brackets as it ever sees, wrong at the end": "&".join(["((((((a))))))"] * 157) + " |",
    "as many functions as it ever sees, the last unknown": "&".join(["none(a)"] * 682) + "&f(a)",
}


def _world() -> Snapshot:
    services = frozenset({"compute", "image"})
    names = [f"site{number}" for number in range(1, 101)]
    rtts_ms = {frozenset(("site1", name)): float(i) for i, name in enumerate(names) if i}
    return Snapshot("site1", {name: SiteInfo(name, services) for name in names}, rtts_ms)


def _fresh(text: str) -> Callable[[], str]:
    """Equal texts in new objects, as they come from the network: Python has not cached their hash yet."""
    return text.encode().decode


def _refused(text: str) -> None:
    with suppress(ScopeError):
        parse(text)
        raise AssertionError(f"accepted: {text[:40]}")


def run() -> list[Section]:
    return [_costs(), _refusals()]


def _costs() -> Section:
    fresh = _fresh(TYPICAL)
    table = {TYPICAL: object()}
    parse(TYPICAL)
    known, lookup = compare(lambda: parse(fresh()), lambda: table.get(fresh()), calls=20_000)

    numbers = itertools.count()
    document = json.dumps({"compute": "site1", "image": [["site2", "site3"], {"around": ["site1", 10]}]})
    new, decode = compare(
        lambda: parse(f"{{compute: site1, image: s{next(numbers)} & site3 ; around(site1, 10ms)}}"),
        lambda: json.loads(document),
        calls=300,
    )
    world, scope = _world(), parse(TYPICAL)
    resolved, _ = compare(lambda: resolve(scope, "image", world), lambda: None, calls=300)
    rows = (
        ("look up a scope seen before", known, f"dict lookup, {human(lookup)}", known / lookup, "< 1 µs"),
        ("parse a new scope", new, f"json.loads of as much, {human(decode)}", new / decode, "< 1 ms"),
        ("resolve it, 100 sites known", resolved, f"parse it, {human(new)}", resolved / new, ""),
    )
    return Section(
        "scope",
        ("what", "median", "reference in the same run", "ratio", "target"),
        tuple((what, human(took), reference, f"{x:.3g} x", target) for what, took, reference, x, target in rows),
    )


def _refusals() -> Section:
    rows = tuple((name, human(_refusal_s(text)), "< 50 ms") for name, text in BAD.items())
    return Section("scope-refusals", ("bad scope", "median until it is refused", "target"), rows)


def _refusal_s(text: str) -> float:
    return median_of_single_calls(lambda: _refused(text))
