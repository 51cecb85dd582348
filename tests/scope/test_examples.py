"""Every scope that DESIGN section 2 and the papers show, and the route they say it has."""

import pytest

from cheops.scope import Consistency, Cross, Fallback, One, Replicas, Route, Snapshot
from tests.scope.world import routed, world

ONE, TWO, THREE = One("site1"), One("site2"), One("site3")

DESIGN = [
    ("{image: site1}", "image", ONE),
    ("{compute: site1, image: site2}", "compute", ONE),
    ("{compute: site1, image: site2}", "image", TWO),
    ("{image: site1 & site2}", "image", Replicas(("site1", "site2"), Consistency.EVENTUAL)),
    ("{network: site1 % site2}", "network", Cross((ONE, TWO))),
    ("{network: site1 + site2}", "network", Cross((ONE, TWO))),
    ("{compute: site1 ; site2}", "compute", Fallback((ONE, TWO))),
    ("{compute: around(site1, 10ms)}", "compute", Fallback((ONE, TWO, THREE))),
    (
        "{image: strong(site1 & site2 & site3)}",
        "image",
        Replicas(("site1", "site2", "site3"), Consistency.STRONG),
    ),
    ("site1 & site2", None, Replicas(("site1", "site2"))),
    ("site1 & site2", "image", Replicas(("site1", "site2"))),
]

APPS = world("App1", "App2", "Appi")
DCS = world("DC 1", "DC 2")
SITES = world("Site1", "Site2", "Site3")
PAPERS = [
    # 000: section 2.2 and 3.3
    ("s : App1 , t : App2", "s", One("App1"), APPS),
    ("s : App1 , t : App2", "t", One("App2"), APPS),
    ("t : App1&App2", "t", Replicas(("App1", "App2")), APPS),
    ("t : App1 &App2", "t", Replicas(("App1", "App2")), APPS),
    # 002: sections 3.2 to 3.5 and 4
    ("s:Appi, t:Appi", "t", One("Appi"), APPS),
    ("App1;App2;Appi", "s", Fallback((One("App1"), One("App2"), One("Appi"))), APPS),
    ("around(App1, 10ms)", "s", Fallback((One("App1"), One("App2"), One("Appi"))), APPS),
    ("{ compute: DC 1, image: DC 1 }", "image", One("DC 1"), DCS),
    ("{ compute: DC 1, image: DC 2 }", "compute", One("DC 1"), DCS),
    ("{ compute: DC 1, image: DC 2 }", "image", One("DC 2"), DCS),
    ("{ image: DC 1 & DC 2 }", "image", Replicas(("DC 1", "DC 2")), DCS),
    # 003: sections 2.1.3 to 2.1.5 and 4
    ("{A: Site1, B: Site2}", "B", One("Site2"), SITES),
    ("{A: Site1 & Site2}", "A", Replicas(("Site1", "Site2")), SITES),
    ("{A: Site1 % Site2}", "A", Cross((One("Site1"), One("Site2"))), SITES),
    ("site1&site2&site3", None, Replicas(("site1", "site2", "site3")), world()),
    # 004
    ("{ serviceA: Site1 & Site2 }", "serviceA", Replicas(("Site1", "Site2")), SITES),
    ("{ Nova: Site1, Glance: Site1 }", "Glance", One("Site1"), SITES),
    ("{ Nova: Site1, Glance: Site2 }", "Glance", One("Site2"), SITES),
    ("{Nova: Site1 & Site2}", "Nova", Replicas(("Site1", "Site2")), SITES),
    ("{ Nova: Site1 ; Site2 }", "Nova", Fallback((One("Site1"), One("Site2"))), SITES),
    (
        "{ Nova: around(Site1, 10ms) }",
        "Nova",
        Fallback((One("Site1"), One("Site2"), One("Site3"))),
        SITES,
    ),
]

NESTED = [
    ("((site1))", ONE),
    ("(site1 ; site2) & site3", Fallback((Replicas(("site1", "site3")), Replicas(("site2", "site3"))))),
    ("site1 & site2 ; site3", Fallback((Replicas(("site1", "site2")), THREE))),
    ("site1 & site2 % site3", Cross((Replicas(("site1", "site2")), THREE))),
    ("site1 & (site2 & (site3))", Replicas(("site1", "site2", "site3"))),
    ("(site1 % site2) ; ((site3))", Fallback((Cross((ONE, TWO)), THREE))),
    ("(site1 ; site2) % site3", Fallback((Cross((ONE, THREE)), Cross((TWO, THREE))))),
    (
        "atomic((site1 & site2) ; (site2 & site3))",
        Fallback(
            (
                Replicas(("site1", "site2"), Consistency.ATOMIC),
                Replicas(("site2", "site3"), Consistency.ATOMIC),
            )
        ),
    ),
    ("around(site1, 4ms) & site4", Fallback((Replicas(("site1", "site4")), Replicas(("site2", "site4"))))),
    (
        "strong(around(site1, 4ms) & site4)",
        Fallback(
            (
                Replicas(("site1", "site4"), Consistency.STRONG),
                Replicas(("site2", "site4"), Consistency.STRONG),
            )
        ),
    ),
]


@pytest.mark.parametrize(("text", "service", "expected"), DESIGN)
def test_examples_of_the_design(text: str, service: str | None, expected: Route) -> None:
    assert routed(text, service) == expected


@pytest.mark.parametrize(("text", "service", "expected", "snapshot"), PAPERS)
def test_examples_of_the_papers(text: str, service: str | None, expected: Route, snapshot: Snapshot) -> None:
    assert routed(text, service, snapshot) == expected


@pytest.mark.parametrize(("text", "expected"), NESTED)
def test_nested_parentheses(text: str, expected: Route) -> None:
    assert routed(text, "image") == expected
