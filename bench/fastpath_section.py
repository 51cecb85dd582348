"""What was measured of the fast path as a section of the page: a table, a picture of the same numbers, and in
words which targets they reach. Pure.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from bench.bars import Bars, Mark, Row
from bench.measure import human
from bench.report import Section

DIRECT, HAPROXY, ENVOY = "direct", "plain HAProxy", "plain Envoy"
TWO, TWO_TLS = "two plain HAProxies in a row", "two plain HAProxies in a row, TLS"
OF_HAPROXY, OF_ENVOY = 0.95, 2.0  # the targets


class Kind(IntEnum):
    """What a way to the service is; those of a kind stand together in the picture."""

    REFERENCE = 0
    LOCAL = 1
    SHARED = 2
    AGENT = 3  # it takes part in each request


@dataclass(frozen=True)
class Taken:
    """The medians of a way to the service."""

    name: str
    kind: Kind
    rate: float  # requests per second
    p50_s: float
    p99_s: float
    cpu_s: float | None  # of its proxies, per request; None where there are none


def section(ways: Sequence[Taken], connections: int, how: str, *, is_secure: bool) -> Section:
    """`how` it was taken. Ways begin with the direct one."""
    rates = {way.name: way.rate for way in ways}
    columns = (
        "way to the service",
        f"requests/s, {connections} connections",
        "beside plain HAProxy",
        "beside plain Envoy",
        "added, p50",
        "added, p99",
        "processor time of the proxies, per request",
    )
    return Section(
        "fastpath-tls" if is_secure else "fastpath",
        columns,
        tuple(_row(way, ways[0], rates) for way in ways),
        about=" ".join((_between(is_secure=is_secure), how, targets(ways))),
        picture=_picture(ways, rates, connections, is_secure=is_secure),
    )


def _row(way: Taken, direct: Taken, rates: dict[str, float]) -> tuple[str, ...]:
    beside = [
        f"{way.rate / rates[other]:.2f} x" if other in rates else "not installed"
        for other in (HAPROXY, ENVOY)
    ]
    added = ("", "")
    if way is not direct:
        added = (
            human(max(way.p50_s - direct.p50_s, 0.0)),
            human(max(way.p99_s - direct.p99_s, 0.0)),
        )
    cpu = "" if way.cpu_s is None else human(way.cpu_s)
    return way.name, f"{way.rate:,.0f}", *beside, *added, cpu


def _between(*, is_secure: bool) -> str:
    if is_secure:
        return (
            "**With mutual TLS 1.3 between the sites**, and in the same way between the two plain HAProxies "
            "in a row. Clients and services speak plain HTTP, so what stays at one site has no TLS."
        )
    return "**Without security**: all speak plain HTTP."


def _picture(ways: Sequence[Taken], rates: dict[str, float], connections: int, *, is_secure: bool) -> Bars:
    rows = (
        Row(
            way.name,
            ((way.rate, f"{way.rate:,.0f}"), None if way.cpu_s is None else (way.cpu_s, human(way.cpu_s))),
            way.kind,
        )
        for way in ways
    )
    return Bars(
        f"The fast path, {'with mutual TLS' if is_secure else 'without TLS'} between sites",
        (f"requests per second, {connections} connections", "processor time of the proxies, per request"),
        tuple(rows),
        tuple(
            Mark(0, rates[other] * share, f"target: {share:g} times {other}")
            for other, share in ((ENVOY, OF_ENVOY), (HAPROXY, OF_HAPROXY))
            if other in rates
        ),
    )


# -- targets ----------------------------------------------------------------------------------------------


def targets(ways: Sequence[Taken]) -> str:
    """What local and shared requests reach, in words."""
    rates = {way.name: way.rate for way in ways}
    two = next((name for name in (TWO, TWO_TLS) if name in rates), None)
    said = []
    for kind in (Kind.LOCAL, Kind.SHARED):
        found = [way.rate for way in ways if way.kind is kind]
        if not found:
            continue
        parts = [
            f"{_range(found, rates[other])} times {other} ({_reached(found, rates[other], target)})"
            for other, target in ((HAPROXY, OF_HAPROXY), (ENVOY, OF_ENVOY))
            if other in rates
        ]
        if kind is Kind.SHARED and two:
            parts.append(f"{_range(found, rates[two])} times two plain HAProxies in a row")
        said.append(f"{kind.name.capitalize()} requests per second: {', '.join(parts)}.")
    return " ".join(said)


def _range(rates: Sequence[float], reference: float) -> str:
    low, high = (f"{rate / reference:.2f}" for rate in (min(rates), max(rates)))
    return low if low == high else f"{low} to {high}"


def _reached(rates: Sequence[float], reference: float, target: float) -> str:
    least = reference * target
    said = "reached" if min(rates) >= least else "reached by some" if max(rates) >= least else "not reached"
    return f"target {target:g}: {said}"
