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
    {"match": "PUT /f/{folder}/{file}", "is": "put"},
    {"match": "PUT /f/{folder}", "is": "put"},
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
        assert (
            'Add a rule to services.app.rules, for example {match: "PUT /o/a?acl", is: put acl}'
            in answer.json["detail"]
        )
    answer = sites.call("site1", "POST", "/kv/put", {"value": 1}, EVERYWHERE)
    assert answer.status == 422
    assert "'POST /kv/put' is about $.key of the request, and there is none" in answer.json["detail"]
    assert [state(sites, site)["kv"] for site in SITES] == [{}] * 3
