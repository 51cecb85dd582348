"""What pages ask for: lanes, searches, types, scopes, and the demo's wires."""

from collections.abc import Iterator
from typing import TypeVar

import msgspec
import pytest

from cheops.api.endpoints.site import GET_SITE
from cheops.api.handlers.gateway import scope_explanation
from cheops.api.models.operations import Lanes, SubmitRequest, Wait
from cheops.api.models.resources import Resources, ScopeExplanation, Types
from cheops.api.models.site import Sites, Wiring
from cheops.scope import SiteInfo, Snapshot
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.api.agents import TYPES
from tests.api.agents import Sites as Agents

T = TypeVar("T")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Agents]:
    """Two sites that the tests share: each uses names of its own."""
    rig = Rig(tmp_path_factory.mktemp("pages") / "rig", TYPES, ("site1", "site2"))
    try:
        rig.start()
        found = Agents(rig)
        found.sees("site1", "site2", "up")
        yield found
    finally:
        rig.close()


def asked(sites: Agents, path: str, kind: type[T]) -> T:
    return msgspec.json.decode(sites.rig.request("site1", "GET", f"/api/v1{path}"), type=kind)


def ids(found: Resources) -> list[str]:
    return [one.id for one in found.resources]


def test_lanes_say_what_each_site_has_and_what_follows_what(sites: Agents) -> None:
    sites.make("lanes", "set", "echo one > __ID__", "file")
    sites.do("site2", "lanes", "add", "echo two >> __ID__", Wait.ALL)
    sites.do("site1", "lanes", "set", "echo three > __ID__", Wait.ALL)
    sites.do("site1", "lanes", "add", "false")
    sites.becomes("site1", "lanes", "CONVERGED")
    found = asked(sites, "/resources/lanes/lanes", Lanes)
    one, two, three, four = found.operations
    assert [op.id for op in found.operations] == ["site1:1", "site2:1", "site1:2", "site1:3"]
    assert [op.after for op in found.operations] == [(), ("site1:1",), ("site2:1",), ("site1:2",)]
    assert (one.effect, one.beaten_by, one.rule) == ("superseded", "site1:2", 3)
    assert (three.effect, four.effect) == ("effective", "void")
    here, there = found.lanes
    assert here.states == there.states == ("superseded", "superseded", "ok", "void")
    assert here.here
    assert not there.here
    assert all(at is not None for at in (*here.ran_ms[:3], *there.ran_ms[:3]))
    assert there.ran_ms[3] is None
    assert two.command == "echo two >> __ID__"


def test_a_site_that_is_down_lacks_what_was_made_since(sites: Agents) -> None:
    sites.make("lacking", "set", "echo one > __ID__", "file")
    sites.rig.kill("site2")
    try:
        sites.do("site1", "lacking", "set", "echo two > __ID__")
        found = asked(sites, "/resources/lacking/lanes", Lanes)
        # What it ran is in force there: it has not heard of what beats it.
        assert [lane.states for lane in found.lanes] == [("superseded", "ok"), ("ok", "missing")]
        until(lambda: asked(sites, "/sites", Sites).sites[1].pending, "for what is on its way")
    finally:
        sites.rig.start("site2")
    sites.becomes("site1", "lacking", "CONVERGED")
    until(lambda: asked(sites, "/sites", Sites).sites[1].resources, "for those that are shared")


def test_resources_are_found_by_what_they_are_called_and_how_they_are(sites: Agents) -> None:
    for n in range(5):
        sites.make(f"Found-{n}", "set", "echo x > __ID__", "file" if n % 2 else "tally")
    own = SubmitRequest(type="set", command="true", sites="site1", resource_type="tally")
    sites["site1"].submit("found-own", own)
    assert len(ids(asked(sites, "/resources?search=fOUND-", Resources))) == 6
    assert ids(asked(sites, "/resources?search=found-&site=site2&type=file", Resources)) == [
        "Found-1",
        "Found-3",
    ]
    first = asked(sites, "/resources?search=found-&type=tally&limit=2", Resources)
    assert (ids(first), first.next) == (["Found-0", "Found-2"], "Found-2")
    rest = asked(sites, f"/resources?search=found-&type=tally&limit=2&cursor={first.next}", Resources)
    assert (ids(rest), rest.next) == (["Found-4", "found-own"], None)
    assert ids(asked(sites, "/resources?search=found-&prefix=Found-4", Resources)) == ["Found-4"]
    assert ids(asked(sites, "/resources?search=found-&overall=DIVERGED", Resources)) == []
    sites.do("site1", "Found-1", "add", "exit 3")
    bad = asked(sites, "/resources?search=found-&outcome=VOID", Resources)
    assert [(one.id, one.last_outcome) for one in bad.resources] == [("Found-1", "VOID")]
    with pytest.raises(RefusedByAgentError, match="overall"):
        asked(sites, "/resources?overall=FINE", Resources)


def test_types_say_what_can_be_sent(sites: Agents) -> None:
    found = {one.name: one for one in asked(sites, "/types", Types).types}
    assert found["tally"].operations == ("set", "inc")
    assert found["file"].reads
    assert found["file"].resets
    assert not found["plain"].resets


def test_what_is_not_submitted_so_can_be_tried_all_the_same(sites: Agents) -> None:
    sites.make("tried", "set", "echo x > __ID__", "file")
    deleted = sites["site1"].dry_run("tried", SubmitRequest(type="delete", kind="delete"))  # type: ignore[arg-type]
    assert (deleted.command, [one.operation for one in deleted.would_supersede]) == (
        ": > __ID__",
        ["site1:1"],
    )
    moved = sites["site1"].dry_run("tried", SubmitRequest(type="sites", kind="sites", sites="site1"))  # type: ignore[arg-type]
    assert moved.sites == ("site1",)
    assert sites["site1"].status("tried").sites[1].site == "site2"  # nothing was done


def test_a_scope_is_explained_or_its_mistake_shown(sites: Agents) -> None:
    found = asked(sites, "/scope?text=site1%20%26%20site2", ScopeExplanation)
    assert found.mistake is None
    assert found.services[0].route == {
        "kind": "replicas",
        "sites": ["site1", "site2"],
        "consistency": "eventual",
    }
    assert [one.site for one in found.services[0].sites] == ["site1", "site2"]


@pytest.mark.parametrize(
    ("text", "start", "problem"),
    [("site1 & ", 7, "ends"), ("{image: site1", 0, "never closed"), ("nosite", 0, "nosite"), ("", None, "")],
)
def test_a_mistake_has_a_place(text: str, start: int | None, problem: str) -> None:
    known = Snapshot("site1", {"site1": SiteInfo("site1", frozenset({"image"}))})
    found = scope_explanation(text, "", "site1", known)
    assert found.mistake is not None
    assert problem in found.mistake.problem
    assert start is None or found.mistake.start == start


def test_without_demo_mode_nothing_is_cut(sites: Agents) -> None:
    assert asked(sites, "/demo/wires", Wiring) == Wiring(on=False, cut=())
    with pytest.raises(RefusedByAgentError, match="not in demo mode"):
        sites.rig.request("site1", "DELETE", "/api/v1/demo/wires/site2")
    assert sites["site1"].call(GET_SITE, "site2").state == "up"
