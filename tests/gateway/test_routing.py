"""From the header `Scope` to a decision: a table of what is asked and what follows."""

import pytest

from cheops.errors import CheopsError, Fault
from cheops.gateway.routing import (
    Decision,
    Forward,
    Gather,
    InTurn,
    Local,
    Replicate,
    decide,
    decide_forwarded,
    method_of,
    parse_scope,
    resolve_route,
)
from cheops.scope.explanation import Method
from cheops.scope.route import Cross, One, Replicas
from cheops.scope.snapshot import SiteInfo, Snapshot

SERVICES = frozenset({"image", "compute"})
SNAPSHOT = Snapshot(
    "here",
    {
        "here": SiteInfo("here", SERVICES),
        "near": SiteInfo("near", SERVICES),
        "far": SiteInfo("far", SERVICES),
        "down": SiteInfo("down", SERVICES, up=False),
        "DC 1": SiteInfo("DC 1", SERVICES),
        "Zürich": SiteInfo("Zürich", SERVICES),
        "bare": SiteInfo("bare", frozenset({"compute"})),
    },
    {frozenset({"here", "near"}): 5.0, frozenset({"here", "far"}): 50.0, frozenset({"near", "far"}): 45.0},
)


def decision(*lines: str, reading: bool = True) -> Decision:
    scope = parse_scope(list(lines), "image")
    return decide(resolve_route(scope, "image", SNAPSHOT), SNAPSHOT, reading=reading)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ((), Local()),
        (("",), Local()),
        (("  ",), Local()),
        (("{image: here}",), Local()),
        (("here",), Local()),
        (("{compute: far}",), Local()),
        (("{image: near}",), Forward("near")),
        (("near",), Forward("near")),
        (("image: DC 1",), Forward("DC 1")),
        (("Zürich".encode().decode("latin-1"),), Forward("Zürich")),
        (("{compute: here, image: far}",), Forward("far")),
        (("down",), Forward("down")),
        (("near ; here",), InTurn((Forward("near"), Local()))),
        (("down ; far",), InTurn((Forward("far"), Forward("down")))),
        (("around(here, 10ms)",), InTurn((Local(), Forward("near")))),
        (("around(far, 1ms)",), Forward("far")),
        (("around(down, 1ms)",), Forward("down")),
        (("near & far",), Replicate(Replicas(("near", "far")))),
        (("near & near",), Forward("near")),
        (("near % far",), Gather(Cross((One("near"), One("far"))))),
        (("near & far % here",), Gather(Cross((Replicas(("near", "far")), One("here"))))),
        (("near % far ; here",), InTurn((Gather(Cross((One("near"), One("far")))), Local()))),
        (("near & far ; here",), InTurn((Replicate(Replicas(("near", "far"))), Local()))),
    ],
)
def test_what_follows_from_a_scope(lines: tuple[str, ...], expected: Decision) -> None:
    assert decision(*lines) == expected


@pytest.mark.parametrize(
    ("lines", "status", "said"),
    [
        (("near", "far"), 400, "given 2 times"),
        (("{image: near",), 400, "^"),
        (("{image: }",), 400, "^"),
        (("nearr",), 400, "Did you mean 'near'?"),
        (("{imgae: near}",), 400, "Did you mean 'image'?"),
        (("{image: near, compute: nowhere}",), 400, "unknown site 'nowhere'"),
        (("bare",), 400, "site 'bare' has no service 'image'"),
        (("\xff\xfe",), 400, "not UTF-8"),
    ],
)
def test_what_is_refused(lines: tuple[str, ...], status: int, said: str) -> None:
    with pytest.raises(CheopsError) as caught:
        decision(*lines)
    assert caught.value.status == status
    assert said in str(caught.value)


def test_the_bare_form_is_bound_to_the_service_that_was_asked() -> None:
    assert str(parse_scope(["near ; far"], "image")) == "{image: near ; far}"
    assert str(parse_scope(["{compute: far}"], "image")) == "{compute: far}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("near", Local()),
        ("near & far", Local()),
        ("here & far", Replicate(Replicas(("here", "far")))),
        ("near & far ; here & near", Replicate(Replicas(("here", "near")))),
        ("far ; here", Local()),
    ],
)
def test_what_was_forwarded_goes_no_further(text: str, expected: Decision) -> None:
    route = resolve_route(parse_scope([text], "image"), "image", SNAPSHOT)
    assert decide_forwarded(route, "here", SNAPSHOT, reading=False) == expected
    assert decide_forwarded(None, "here", SNAPSHOT, reading=False) == Local()


@pytest.mark.parametrize("scope", ["near % far", "near % far ; here", "here ; near % far"])
def test_what_does_not_exist_yet_is_our_fault(scope: str) -> None:
    route = resolve_route(parse_scope([scope], "image"), "image", SNAPSHOT)
    with pytest.raises(CheopsError, match="span sites") as refused:
        decide(route, SNAPSHOT, reading=False)
    assert (refused.value.status, refused.value.fault) == (501, Fault.US)


def test_methods() -> None:
    assert [method_of(name) for name in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "BREW")] == [
        *(Method.READ, Method.READ, Method.CREATE, Method.UPDATE, Method.UPDATE, Method.DELETE, Method.UPDATE)
    ]
