"""Rules of a service, with real agents and a cut: what the services themselves hold at the end is compared."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
RULES = [
    {"match": "POST /kv/put", "is": "put", "of": "$.key"},
    {"match": "POST /kv/get", "is": "read"},
    {"match": "POST /kv/swap", "is": "action swap", "of": "$.key", "ok": {"$.done": "true"}},
    {"match": "PUT /o/{name}?tagging", "is": "put tagging", "of": "/o/{name}"},
    {"match": "DELETE /o/{name}?tagging", "is": "delete tagging", "of": "/o/{name}"},
    {"match": "PATCH /o/{name}", "is": "move", "to": "/o/{$.to}"},
    {"match": "POST /s", "has": "$.id", "is": "put", "of": "/s/{$.id}", "id": "$.sid"},
    {"match": "POST /s", "is": "create", "id": "$.sid"},
    {"match": "PUT /f/{folder}/{file}", "is": "put"},
    {"match": "PUT /f/{folder}", "is": "put"},
    {"match": "PUT /n/{name}", "is": "put"},
    {"match": "PUT /in/{name}/{thing}", "is": "put"},
    {"match": "POST /things", "is": "create", "name": "$.metadata.name"},
]


@pytest.fixture
def sites(wan: Wan, tmp_path: Path) -> Iterator[AppSites]:
    made = AppSites(tmp_path / "rig", "app", wan, rules=RULES, local=["$.metadata.uid"])
    try:
        made.start(lambda _site, port: [sys.executable, "-m", "tests.gateway.replicas.rpc_service", str(port)])
        yield made
    finally:
        made.rig.close()


def state(sites: AppSites, site: str) -> dict[str, Any]:
    found: dict[str, Any] = sites.direct(site, "GET", "/_state").json
    return found


def ok(sites: AppSites, site: str, line: str, content: Any = None, scope: str = EVERYWHERE) -> Any:
    method, _, target = line.partition(" ")
    answer = sites.call(site, method, target, content, scope)
    assert answer.status in (200, 201), (answer.status, answer.body)
    return answer.json


def equal(sites: AppSites, **wanted: Any) -> None:
    for site in SITES:
        until(
            lambda s=site: {key: state(sites, s)[key] for key in wanted} == wanted,  # type: ignore[misc]
            f"for {wanted} at {site}",
        )
    assert sites.settled() == {site: {"CONVERGED"} for site in SITES}


def test_what_is_written_on_both_sides_of_a_cut_ends_equal(sites: AppSites, wan: Wan) -> None:
    ok(sites, "site1", "PUT /o/a", "first")
    ok(sites, "site1", "PUT /f/docs")
    ok(sites, "site1", "POST /kv/put", {"key": "k", "value": 0})
    equal(sites, o={"a": "first"}, f={"docs": {}}, kv={"k": 0})
    wan.partition(["site1"], ["site2", "site3"])
    # Members of the body say what it is about; the last one stays.
    ok(sites, "site1", "POST /kv/put", {"key": "k", "value": 1})
    ok(sites, "site2", "POST /kv/put", {"key": "k", "value": 2}, scope="")
    ok(sites, "site1", "POST /kv/put", {"key": "other", "value": 3})
    # A part of an object is not the object.
    ok(sites, "site1", "PUT /o/a?tagging", ["one"])
    ok(sites, "site2", "PUT /o/a", "second")
    ok(sites, "site2", "PUT /o/a?tagging", ["two"])
    # A parent and its child, while the other site has neither.
    ok(sites, "site1", "PUT /f/new")
    ok(sites, "site1", "PUT /f/new/file", 1)
    # One name, created on both sides: one resource.
    ok(sites, "site1", "POST /things", {"metadata": {"name": "web"}, "size": 1})
    ok(sites, "site2", "POST /things", {"metadata": {"name": "web"}, "size": 2})
    wan.heal()
    equal(
        sites,
        kv={"k": 2, "other": 3},
        o={"a": "second"},
        tags={"a": ["two"]},
        f={"docs": {}, "new": {"file": 1}},
        things={"web": {"metadata": {"name": "web"}, "size": 2}},
    )
    # Read, modify, write: the uid that one site gave must not reach another.
    thing = ok(sites, "site3", "GET /things/web", scope="")
    assert thing["metadata"]["uid"]
    ok(sites, "site3", "PUT /things/web", {**thing, "size": 3}, scope="")
    equal(sites, things={"web": {"metadata": {"name": "web"}, "size": 3}})
    ok(sites, "site3", "DELETE /o/a?tagging")
    equal(sites, o={"a": "second"}, tags={})


def logged(sites: AppSites, site: str, resource: str) -> list[str]:
    """The types of the operations that a site knows."""
    log = json.loads(sites.rig.request(site, "GET", f"/api/v1/resources/{resource}/log"))
    return sorted(op["type"] for op in log["operations"])


def test_a_swap_that_both_sides_won_is_shown_and_reads_are_not_logged(sites: AppSites, wan: Wan) -> None:
    ok(sites, "site1", "POST /kv/put", {"key": "lock", "value": "free"})
    equal(sites, kv={"lock": "free"})
    wan.partition(["site1"], ["site2", "site3"])
    for site in ("site1", "site2"):
        assert ok(sites, site, "POST /kv/swap", {"key": "lock", "old": "free", "new": site}) == {"done": True}
    assert ok(sites, "site3", "POST /kv/get", {"key": "lock"})["value"] in ("free", "site2")
    wan.heal()
    (resource,) = sites.statuses("site1")
    both = ["action swap", "action swap", "put"]
    until(lambda: [logged(sites, site, resource) for site in SITES] == [both] * 3, "for both swaps")
    said = sites.settled()
    must_be_true(said, [state(sites, site) for site in SITES])
    assert said == {site: {"DIVERGED"} for site in SITES}
    # A write of the whole heals it.
    ok(sites, "site3", "POST /kv/put", {"key": "lock", "value": "free"})
    until(lambda: [state(sites, site)["kv"] for site in SITES] == [{"lock": "free"}] * 3, "for the lock to be free")


def test_what_nothing_explains_is_refused_with_the_line_to_add(sites: AppSites) -> None:
    ok(sites, "site1", "PUT /o/a", "x")
    equal(sites, o={"a": "x"})
    for scope in (EVERYWHERE, ""):
        answer = sites.call("site1", "PUT", "/o/a?acl=private", "y", scope)
        assert answer.status == 422
        lines = answer.json["detail"].partition("Add a rule to services.app.rules at all sites: ")[2]
        assert '{match: "PUT /o/a?acl={acl}", is: "put {acl}"} if the value of acl names the part' in lines
        assert '{match: "PUT /o/a?acl={acl}", is: put acl} if the value is what it writes' in lines
    answer = sites.call("site1", "POST", "/kv/put", {"value": 1}, EVERYWHERE)
    assert answer.status == 422
    assert "'POST /kv/put' is about $.key of the request, and there is none" in answer.json["detail"]
    assert [state(sites, site)["kv"] for site in SITES] == [{}] * 3


def test_what_is_refused_while_something_earlier_is_pending_is_tried_again(sites: AppSites) -> None:
    """The thing needs a name that neither its path nor a meta-id leads to."""
    assert sites.direct("site2", "PUT", "/_hold", ["a"]).status == 200
    ok(sites, "site1", "PUT /n/a", {})
    ok(sites, "site1", "PUT /in/a/x", 1)
    until(lambda: "x" in sites.direct("site2", "GET", "/_refused").json, "for site2 to refuse it")
    assert sites.direct("site2", "PUT", "/_hold", []).status == 200
    for site in SITES:
        until(lambda s=site: state(sites, s)["in"] == {"x": 1}, f"for it at {site}")  # type: ignore[misc]
    assert sites.settled() == {site: {"CONVERGED"} for site in SITES}
    # What has nothing to wait for has failed, and that is shown.
    assert sites.direct("site1", "PUT", "/n/own", {}).status == 201
    ok(sites, "site1", "PUT /in/own/y", 1)
    until(lambda: "DIVERGED" in sites.settled()["site1"], "for the status")


@pytest.mark.parametrize("is_cut_off", [False, True])
def test_an_operation_does_not_wait_for_a_resource_that_its_site_has_left(
    sites: AppSites, wan: Wan, is_cut_off: bool
) -> None:
    ok(sites, "site1", "PUT /f/d", {})
    equal(sites, f={"d": {}})
    (folder,) = sites.statuses("site1")
    if is_cut_off:
        wan.partition(["site1", "site2"], ["site3"])
    else:
        assert sites.direct("site3", "PUT", "/_hold", ["d"]).status == 200
    ok(sites, "site1", "PUT /f/d", {})
    ok(sites, "site1", "PUT /f/d/x", 1)
    (file,) = set(sites.statuses("site1")) - {folder}
    until(lambda: state(sites, "site2")["f"] == {"d": {"x": 1}}, "for the file at site2")
    if not is_cut_off:
        why = f"it comes after an operation on {folder}".encode()
        until(lambda: why in sites.rig.request("site3", "GET", f"/api/v1/replicants/{file}"), "for site3 to wait")
    body, kind = json.dumps({"sites": "site3", "how": "remove"}), {"Content-Type": "application/json"}
    sites.rig.request("site1", "POST", f"/api/v1/resources/{folder}/sites?wait=first", body, kind)
    wan.heal()
    until(lambda: state(sites, "site3")["f"] == {"d": {"x": 1}}, "for the file at site3, whose folder is its own now")
    assert sites.settled() == {site: {"CONVERGED"} for site in SITES}


def texts(sites: AppSites) -> list[list[str]]:
    return [sorted(state(sites, site)["s"].values()) for site in SITES]


def test_a_change_that_names_its_resource_in_the_body_and_gives_it_another_id(sites: AppSites, wan: Wan) -> None:
    id_ = ok(sites, "site1", "POST /s", {"text": "one"})["sid"]
    until(lambda: texts(sites) == [["one"]] * 3, "for it to be everywhere")
    assert ok(sites, "site2", "POST /s", {"id": id_, "text": "two"}, scope="")["sid"] == id_
    until(lambda: texts(sites) == [["two"]] * 3, "for the change")
    (own,) = state(sites, "site3")["s"]
    assert ok(sites, "site3", "POST /s", {"id": own, "text": "three"}, scope="")["sid"] == id_  # by its id there, too
    until(lambda: texts(sites) == [["three"]] * 3, "for the change")
    wan.partition(["site1"], ["site2", "site3"])
    ok(sites, "site1", "POST /s", {"id": id_, "text": "first"}, scope="")
    ok(sites, "site2", "POST /s", {"id": id_, "text": "later"}, scope="")
    wan.heal()
    until(lambda: texts(sites) == [["later"]] * 3, "for the later one")
    assert sites.settled() == {site: {"CONVERGED"} for site in SITES}
    alone = ok(sites, "site1", "POST /s", {"text": "alone"}, scope="")["sid"]
    refused = sites.call("site1", "POST", "/s", {"id": alone, "text": "x"}, EVERYWHERE)
    assert (refused.status, sorted(state(sites, "site1")["s"].values())) == (404, ["alone", "later"])


def test_a_move_and_changes_under_both_names(sites: AppSites, wan: Wan) -> None:
    ok(sites, "site1", "PUT /o/a", 1)
    equal(sites, o={"a": 1})
    ok(sites, "site2", "PATCH /o/a", {"to": "b"}, scope="")
    equal(sites, o={"b": 1})
    wan.partition(["site1"], ["site2", "site3"])
    ok(sites, "site1", "PATCH /o/b", {"to": "c"}, scope="")
    ok(sites, "site1", "PUT /o/c?tagging", "x", scope="")
    ok(sites, "site2", "PUT /o/b", 2, scope="")
    wan.heal()
    equal(sites, o={"c": 2}, tags={"c": "x"})
    (resource,) = sites.statuses("site1")
    sites.rig.request("site1", "DELETE", f"/api/v1/resources/{resource}")
    equal(sites, o={})
    log = json.loads(sites.rig.request("site3", "GET", f"/api/v1/resources/{resource}/log"))
    deletion = json.dumps([op for op in log["operations"] if op["kind"] == "delete"])  # a seal may come after it
    assert "/o/c" in deletion
    assert "/o/a" not in deletion


def test_what_was_moved_is_repaired_where_it_is(sites: AppSites) -> None:
    ok(sites, "site1", "PUT /o/a", 1)
    equal(sites, o={"a": 1})
    ok(sites, "site2", "PATCH /o/a", {"to": "b"}, scope="")
    equal(sites, o={"b": 1})
    assert sites.direct("site3", "PUT", "/o/b", 2).status == 200
    (resource,) = sites.statuses("site1")
    kind = {"Content-Type": "application/json"}
    sites.rig.request("site1", "POST", f"/api/v1/resources/{resource}/resolve", '{"resolution": "state"}', kind)
    equal(sites, o={"b": 1})


def test_two_resources_are_never_at_one_path(sites: AppSites, wan: Wan) -> None:
    """The service would replace what is at the new name, at each site another one."""
    ok(sites, "site1", "PUT /o/a", "moved")
    equal(sites, o={"a": "moved"})
    wan.partition(["site1"], ["site2", "site3"])
    ok(sites, "site1", "PATCH /o/a", {"to": "b"}, scope="")
    ok(sites, "site2", "PUT /o/b", "new")
    wan.heal()
    said = sites.settled()
    must_be_true(said, [state(sites, site)["o"] for site in SITES])
    assert said == {site: {"DIVERGED"} for site in SITES}


# -- dry runs --------------------------------------------------------------------------------------------------


def dry(sites: AppSites, line: str, content: Any = None, scope: str = "", site: str = "site1") -> dict[str, Any]:
    method, _, target = line.partition(" ")
    answer = sites.call(site, method, target, content, scope, Cheops_Dry_Run="1")
    return {**answer.json, "status": answer.status}


def test_a_dry_run_says_which_rule_a_request_matches_and_what_it_becomes(sites: AppSites) -> None:
    put = {"key": "k", "value": 1}
    new = dry(sites, "POST /kv/put", put, EVERYWHERE)
    id_ = new["about"]["id"]
    assert new["about"] == {
        "request": "POST /kv/put",
        "rule": "POST /kv/put",
        "does": "put",
        "resource": "/$.key/k",
        "id": id_,
        "moved to": None,
        "operation": "put",
        "replaces": new["about"]["replaces"],
    }
    assert "put" in new["about"]["replaces"]
    assert (new["decision"], new["effect"]["method"], new["replicant"]) == ("replicate", "update", None)
    assert [state(sites, site)["kv"] for site in SITES] == [{}] * 3, "a dry run does nothing"
    alone = dry(sites, "POST /kv/put", put)
    assert (alone["decision"], alone["about"]["id"], alone["replicant"]) == ("local", id_, None)

    ok(sites, "site1", "POST /kv/put", put)
    equal(sites, kv={"k": 1})
    for site in SITES:  # it is replicated now, with or without a scope
        found = dry(sites, "POST /kv/put", put, site=site)
        assert (found["decision"], found["replicant"]) == ("replicate", id_)
        assert sorted(found["effect"]["sites"]) == list(SITES)

    read = dry(sites, "POST /kv/get", {"key": "k"}, EVERYWHERE)
    assert (read["about"]["does"], read["effect"]["method"]) == ("read", "read")
    part = dry(sites, "PUT /o/a?tagging", ["x"], EVERYWHERE)["about"]
    assert (part["rule"], part["resource"], part["operation"]) == ("PUT /o/{name}?tagging", "/o/a", "put tagging")


def test_a_dry_run_of_plain_rest_has_the_operation_too(sites: AppSites) -> None:
    ok(sites, "site1", "PUT /o/a", "x")
    equal(sites, o={"a": "x"})
    found = dry(sites, "PUT /o/a/color", "y", site="site2")
    assert (found["about"]["rule"], found["about"]["resource"]) == (None, "/o/a")
    assert (found["about"]["operation"], found["about"]["id"]) == ("put color", found["replicant"])
    assert found["about"]["meaning"] == "plain REST: it replaces what is at this path"
    assert dry(sites, "GET /o/a")["about"]["meaning"] == "plain REST: it reads"


def test_a_dry_run_refuses_what_the_request_itself_would_be_refused_for(sites: AppSites) -> None:
    ok(sites, "site1", "PUT /o/a", "x")
    equal(sites, o={"a": "x"})
    for line, content, scope in (
        ("PUT /o/a?acl=private", "y", ""),  # no rule explains its query
        ("PUT /o/new?acl=private", "y", EVERYWHERE),
        ("PUT /o/a?tagging=1", "y", EVERYWHERE),  # the rule is about a member without a value
        ("POST /kv/put", {"value": 1}, EVERYWHERE),  # its rule is about a member that it lacks
        ("PATCH /o/missing", {"to": "b"}, EVERYWHERE),  # nothing to move
        ("DELETE /o/missing", None, EVERYWHERE),
    ):
        method, _, target = line.partition(" ")
        tried, real = dry(sites, line, content, scope), sites.call("site1", method, target, content, scope)
        assert (tried["status"], tried["detail"]) == (real.status, real.json["detail"]), line
        assert 400 <= real.status < 500
