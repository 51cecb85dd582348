"""Laws of R: what a scope means for a service, given what a site knows."""

from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.scope import (
    BUILTIN,
    Across,
    And,
    At,
    Binding,
    Consistency,
    Context,
    Fallback,
    Location,
    One,
    Otherwise,
    Replicas,
    Route,
    Scope,
    ScopeError,
    SiteInfo,
    Snapshot,
    parse,
    resolve,
)
from cheops.scope.functions import MAX_EXPANDED_SITES, expand
from cheops.scope.route import in_order, route, works_now
from cheops.scope.tree import sites_in
from tests.scope.world import routed, world

NAMES = ("site1", "site2", "site3", "site4")
_operators = st.sampled_from([And, Otherwise])
places = st.recursive(
    st.sampled_from(NAMES).map(At),
    lambda inner: st.tuples(_operators, st.lists(inner, min_size=2, max_size=3)).map(lambda x: x[0](tuple(x[1]))),
    max_leaves=6,
)
worlds = st.sets(st.sampled_from(NAMES)).map(lambda down: world(down=tuple(down)))


def meaning(location: Location, snapshot: Snapshot | None = None) -> Route:
    return route(location, Context(None, snapshot or world()))


@given(places, places, places)
def test_replication_distributes_over_otherwise(a: Location, b: Location, c: Location) -> None:
    assert meaning(And((Otherwise((a, b)), c))) == meaning(Otherwise((And((a, c)), And((b, c)))))


@given(places)
def test_a_location_joined_with_itself_means_itself(a: Location) -> None:
    assert meaning(Otherwise((a, a))) == meaning(a)


@given(places, worlds)
def test_a_route_goes_to_named_sites_only(a: Location, snapshot: Snapshot) -> None:
    assert set(meaning(a, snapshot).sites) <= set(sites_in(a))


@given(places, worlds)
def test_who_is_up_does_not_change_what_a_scope_means(a: Location, snapshot: Snapshot) -> None:
    assert meaning(a, snapshot) == meaning(a)


@given(places, worlds, st.booleans())
def test_what_works_now_is_tried_first_and_nothing_is_dropped(a: Location, snapshot: Snapshot, reading: bool) -> None:
    meant = meaning(a)
    ordered = in_order(meant, snapshot, reading=reading)
    working = [works_now(one, snapshot, reading=reading) for one in ordered]
    assert working == sorted(working, reverse=True)
    assert set(ordered) == set(meant.alternatives if isinstance(meant, Fallback) else (meant,))


@given(st.permutations(NAMES), st.integers(0, 20), st.sets(st.sampled_from(NAMES)))
def test_around_is_a_fallback_by_distance(row: list[str], radius_ms: int, down: set[str]) -> None:
    snapshot = world(*row, down=tuple(down))
    means = expand(parse(f"around(site1, {radius_ms}ms)").bindings[0].location, Context("image", snapshot), BUILTIN)
    found = [snapshot.rtt_ms("site1", site) for site in sites_in(means)]
    assert found == sorted(found)  # type: ignore[type-var]
    near = {site for site in NAMES if (snapshot.rtt_ms("site1", site) or 0) <= radius_ms}
    assert set(sites_in(means)) == near


def test_around_takes_only_sites_that_have_the_service() -> None:
    snapshot = world()
    sites = {**snapshot.sites, "site2": SiteInfo("site2", frozenset({"other"}))}
    assert routed("around(site1, 8ms)", "image", replace(snapshot, sites=sites)) == Fallback(
        (One("site1"), One("site3"))
    )


def test_around_leaves_out_sites_at_an_unknown_distance() -> None:
    assert routed("around(site1, 1s)", "image", replace(world(), rtts_ms={})) == One("site1")


def test_a_service_that_the_scope_does_not_name_stays_here() -> None:
    assert routed("{image: site2}", "compute", world(here="site3")) == One("site3")


def test_a_site_without_the_service_is_refused_with_those_that_have_it() -> None:
    snapshot = world()
    sites = {**snapshot.sites, "site2": SiteInfo("site2", frozenset({"compute"}))}
    with pytest.raises(ScopeError, match="site 'site2' has no service 'image'") as refused:
        routed("{image: site1 & site2}", "image", replace(snapshot, sites=sites))
    assert refused.value.hint == "It is at: site1, site3, site4."


def test_of_a_site_that_was_never_heard_of_nobody_knows_what_it_lacks() -> None:
    sites = {**world().sites, "site2": SiteInfo("site2", up=False, has_reported=False)}
    snapshot = replace(world(), sites=sites)
    assert routed("{image: site2}", "image", snapshot) == One("site2")
    assert routed("{image: site1 & site2}", "image", snapshot) == Replicas(("site1", "site2"))


def test_a_site_named_twice_gets_one_replica() -> None:
    assert routed("site1 & site2 & site1") == Replicas(("site1", "site2"))
    assert routed("site1 & site1") == One("site1")
    assert routed("site1 % site1") == One("site1")


@pytest.mark.parametrize(
    ("route_", "down", "works"),
    [
        (One("site1"), (), True),
        (One("site1"), ("site1",), False),
        (Replicas(("site1", "site2", "site3")), ("site1", "site2"), True),
        (Replicas(("site1", "site2", "site3")), ("site1", "site2", "site3"), False),
        (Replicas(("site1", "site2", "site3"), Consistency.NONE), ("site1", "site2"), True),
        (Replicas(("site1", "site2", "site3"), Consistency.ATOMIC), ("site1",), False),
        (Replicas(("site1", "site2", "site3"), Consistency.STRONG), ("site1",), True),
        (Replicas(("site1", "site2", "site3"), Consistency.STRONG), ("site1", "site2"), False),
    ],
)
def test_how_many_sites_each_level_needs(route_: One | Replicas, down: tuple[str, ...], works: bool) -> None:
    assert works_now(route_, world(down=down), reading=False) is works


def test_spanning_parts_may_be_replicated_but_not_the_other_way_round() -> None:
    spanning = Scope((Binding(None, Across((And((At("site1"), At("site2"))), At("site3")))),))
    assert resolve(spanning, None, world()).sites == ("site1", "site2", "site3")


@pytest.mark.parametrize("level", Consistency)
def test_one_replica_will_do_for_reading(level: Consistency) -> None:
    assert works_now(Replicas(("site1", "site2", "site3"), level), world(down=("site1", "site2")), reading=True)


def test_an_alternative_that_is_nowhere_now_is_passed_over() -> None:
    snapshot = replace(world(), sites={**world().sites, "far": SiteInfo("far")})
    assert routed("around(far, 10ms) ; site2", "image", snapshot) == One("site2")
    assert routed("site3 & around(far, 10ms) ; site2", "image", snapshot) == One("site2")
    with pytest.raises(ScopeError, match="no service 'image' is known within 10ms of 'far'") as refused:
        routed("strong(around(far, 10ms) & site1)", "image", snapshot)
    assert (refused.value.status, refused.value.definite) == (503, False)


def test_a_level_for_a_single_site_is_refused() -> None:
    with pytest.raises(ScopeError, match="gives a level to a single site"):
        routed("strong(site1 & site1)")
    with pytest.raises(ScopeError, match="'site1 % site2' is not replicated"):
        routed("strong(site1 % site2)")


@cache
def _large_world() -> Snapshot:
    """It has 600,000 distances, so one is made for all tests."""
    return world(*(f"s{number}" for number in range(1_100)))


@pytest.mark.parametrize(
    "text",
    [
        " ; ".join(f"s{number}" for number in range(1_025)),
        " & ".join(["(s0 ; s1)"] * 11),
        " & ".join(["(s0 ; s1)"] * 10 + [f"s{number}" for number in range(2, 100)]),
        " % ".join(["(s0 ; s1)"] * 11),
    ],
)
def test_the_size_of_a_route_is_refused_before_it_is_built(text: str) -> None:
    with pytest.raises(ScopeError) as refused:
        routed(text, None, _large_world())
    assert refused.value.hint == "At most 1,024 alternatives and 8,192 sites are accepted."


def test_what_functions_expand_to_is_limited() -> None:
    snapshot = world(*(f"s{number}" for number in range(100)), step_ms=0.001)
    with pytest.raises(ScopeError, match=f"expand to more than {MAX_EXPANDED_SITES:,} sites"):
        routed(" ; ".join(["around(s0, 1s)"] * 100), None, snapshot)
