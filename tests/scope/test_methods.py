"""What explain says must agree with what R decides, for every route and every state of the sites."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.scope import BUILTIN, Cross, Fallback, One, Replicas, Route, Scope, ScopeError, Snapshot, parse
from cheops.scope.data import explanation_data
from cheops.scope.explain import explain
from cheops.scope.methods import Method, effect
from cheops.scope.resolve import resolve, works_now
from tests.scope.strategies import scopes
from tests.scope.world import routed, world

NAMES = ("site1", "site2", "site3", "site4")
TEXTS = (
    "site1", "site2 & site3", "site4 & site1 & site2", "none(site2 & site3)", "atomic(site1 & site3)",
    "strong(site1 & site2 & site3)", "site1 % site2", "site1 & site2 % site3", "site2 ; site1 & site3 ; site4",
    "around(site2, 4ms)", "strong(site1 & site2) ; site3",
)  # fmt: skip
texts = st.sampled_from(TEXTS)
worlds = st.tuples(st.sets(st.sampled_from(NAMES)), st.sampled_from(NAMES)).map(
    lambda drawn: world(down=tuple(drawn[0]), here=drawn[1])
)
WRITES = (Method.CREATE, Method.UPDATE, Method.DELETE)


def first(route: Route) -> One | Replicas | Cross:
    return route.alternatives[0] if isinstance(route, Fallback) else route


@given(texts, worlds, st.sampled_from(WRITES))
def test_a_write_reaches_sites_exactly_when_its_route_works(
    text: str, snapshot: Snapshot, method: Method
) -> None:
    route = routed(text, "image", snapshot)
    assert bool(effect(route, method, snapshot).sites) == works_now(first(route), snapshot)


@given(texts, worlds, st.sampled_from(Method))
def test_only_sites_that_are_up_are_reached(text: str, snapshot: Snapshot, method: Method) -> None:
    said = effect(routed(text, "image", snapshot), method, snapshot)
    assert all(map(snapshot.is_up, said.sites))


@given(texts, worlds, st.sampled_from(Method))
def test_an_answer_takes_no_longer_than_the_farthest_site_reached(
    text: str, snapshot: Snapshot, method: Method
) -> None:
    said = effect(routed(text, "image", snapshot), method, snapshot)
    if said.sites:
        assert said.latency_ms is not None
        assert said.latency_ms <= max(snapshot.rtt_ms(snapshot.here, site) or 0 for site in said.sites)


def test_a_read_takes_the_nearest_replica_that_is_up() -> None:
    for here, down, nearest in [
        ("site3", (), "site3"),
        ("site4", (), "site3"),
        ("site4", ("site3",), "site2"),
    ]:
        said = effect(Replicas(("site1", "site2", "site3")), Method.READ, world(here=here, down=down))
        assert said.sites == (nearest,)


@pytest.mark.parametrize(
    ("text", "ms"),
    [("site2 & site3", 4), ("atomic(site2 & site4)", 12), ("strong(site2 & site3 & site4)", 8)],
)
def test_when_a_write_is_answered_depends_on_the_level(text: str, ms: float) -> None:
    assert effect(routed(text), Method.CREATE, world()).latency_ms == ms


@given(scopes)
def test_whatever_can_be_parsed_is_explained_or_refused(scope: Scope) -> None:
    snapshot = world()
    try:
        explanation = explain(scope, snapshot)
    except ScopeError:
        return
    assert explanation_data(explanation)["scope"] == str(scope)


@pytest.mark.parametrize("text", TEXTS)
def test_explain_and_resolve_agree(text: str) -> None:
    scope, snapshot = parse(text), world()
    (explained,) = explain(scope, snapshot, "image", BUILTIN).services
    route = resolve(scope, "image", snapshot)
    assert explained.route == route
    assert {site.site for site in explained.sites} == set(route.sites)
