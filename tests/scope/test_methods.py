"""What explain says must agree with what R decides, for every route and every state of the sites."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.errors import CheopsError
from cheops.scope import BUILTIN, Consistency, Cross, One, Replicas, Route, Scope, ScopeError, Snapshot, parse
from cheops.scope.explanation import Method, effect, explain, explanation_data
from cheops.scope.route import Direct, in_order, resolve, works_now
from tests.scope.strategies import scopes_of
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


def works(route: Route, method: Method, snapshot: Snapshot) -> bool:
    reading = method is Method.READ
    if not reading and any(isinstance(one, Cross) for one in in_order(route, snapshot, reading=False)):
        return False  # changes of what spans sites are refused
    first = in_order(route, snapshot, reading=reading)[0]
    return works_now(first, snapshot, reading=reading) and not has_level(first)


def has_level(direct: Direct) -> bool:
    """Then every request is refused: no level but the default is implemented."""
    match direct:
        case One():
            return False
        case Replicas():
            return direct.consistency is not Consistency.EVENTUAL
        case Cross(parts):
            return any(map(has_level, parts))


@given(texts, worlds, st.sampled_from(Method))
def test_a_method_reaches_sites_exactly_when_its_route_works(text: str, snapshot: Snapshot, method: Method) -> None:
    route = routed(text, "image", snapshot)
    assert bool(effect(route, method, snapshot).sites) == works(route, method, snapshot)


@given(texts, worlds, st.sampled_from(Method))
def test_only_sites_that_are_up_are_reached(text: str, snapshot: Snapshot, method: Method) -> None:
    said = effect(routed(text, "image", snapshot), method, snapshot)
    assert all(map(snapshot.is_up, said.sites))


def test_a_read_takes_the_nearest_replica_that_is_up() -> None:
    for here, down, nearest in [
        ("site3", (), "site3"),
        ("site4", (), "site3"),
        ("site4", ("site3",), "site2"),
    ]:
        said = effect(Replicas(("site1", "site2", "site3")), Method.READ, world(here=here, down=down))
        assert said.sites == (nearest,)


def test_a_write_is_answered_by_the_nearest_replica() -> None:
    assert effect(routed("site2 & site3"), Method.CREATE, world()).latency_ms == 4


@pytest.mark.parametrize("level", ["none", "atomic", "strong"])
@pytest.mark.parametrize("method", Method)
@pytest.mark.parametrize("text", ["{}(site1 & site2)", "{}(site1 & site2) ; site3", "{}(site1 & site2) % site3"])
def test_a_level_that_is_not_implemented_is_refused_whatever_is_around_it(
    text: str, method: Method, level: str
) -> None:
    route = routed(text.format(level), "image", world())
    with pytest.raises(CheopsError, match=f"the level '{level}' is not implemented yet") as refused:
        Replicas(("site1", "site2"), Consistency(level)).check_level()
    assert effect(route, method, world()).does == f"is refused: {refused.value}"


EXPLAINED: Counter[str] = Counter()


@given(scopes_of(NAMES, ("image", "compute")), worlds)
def test_whatever_can_be_parsed_is_explained_or_refused(scope: Scope, snapshot: Snapshot) -> None:
    try:
        explanation = explain(scope, snapshot)
    except ScopeError:
        EXPLAINED["refused"] += 1
    else:
        EXPLAINED["explained"] += 1
        data = explanation_data(explanation)
        assert data["scope"] == str(scope)
        for service in data["services"]:
            assert [effect["method"] for effect in service["methods"]] == list(Method)
            assert {site["site"] for site in service["sites"]} <= set(NAMES)


def test_the_law_above_has_seen_both_outcomes() -> None:
    test_whatever_can_be_parsed_is_explained_or_refused()
    assert EXPLAINED["explained"] > 50
    assert EXPLAINED["refused"] > 10


SENTENCES = [
    # (scope, down, method, latency from site1, sentence)
    ("site2 % site4", (), Method.CREATE, None,
     "is refused: changes of resources that span sites (%) are not implemented"),
    ("site2 % site4 ; site1", (), Method.UPDATE, None,
     "is refused: changes of resources that span sites (%) are not implemented"),
    ("site2 % site4", (), Method.READ, 12, "asks site2 and site4 at once, and gives one list of all, or the item that one of them has"),
    ("site2 % site4", ("site2",), Method.READ, 12, "asks site4, and reports that site2 is missing"),
    ("site2 % site4", ("site2", "site4"), Method.READ, None, "fails: site2 and site4 are down"),
    ("(site1 & site4) % site2", ("site4",), Method.READ, 4,
     "asks (site1 & site4) and site2 at once, and gives one list of all, or the item that one of them has"),
    ("site1 & site4 ; site2", ("site4",), Method.READ, 0, "reads the replica here; if that fails: site2"),
    ("atomic(site1 & site4) ; site2", ("site4",), Method.UPDATE, 4,
     "is sent to site2; if that fails: atomic(site1 & site4)"),
    ("site3 ; site4", ("site3", "site4"), Method.READ, None, "fails: none of its 2 alternatives works now"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "down", "method", "ms", "sentence"), SENTENCES)
def test_what_is_said_is_what_would_be_done(
    text: str, down: tuple[str, ...], method: Method, ms: float | None, sentence: str
) -> None:
    snapshot = world(down=down)
    said = effect(routed(text, "image", snapshot), method, snapshot)
    assert (said.latency_ms, said.does) == (ms, sentence)


@pytest.mark.parametrize("text", TEXTS)
def test_explain_and_resolve_agree(text: str) -> None:
    scope, snapshot = parse(text), world()
    (explained,) = explain(scope, snapshot, "image", BUILTIN).services
    route = resolve(scope, "image", snapshot)
    assert explained.route == route
    assert {site.site for site in explained.sites} == set(route.sites)
