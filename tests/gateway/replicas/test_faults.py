"""Cuts, sites that are down, and sites that are gone: section 3.4 of the first paper, on real hosts."""

import json
import re
from typing import Any

from tests.agent.rig import until
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.support.command import run_here
from tests.wan import Wan


def started(make_sites: MakeSites, wan: Wan) -> Sites:
    sites = make_sites(wan=wan)
    sites.start()
    return sites


def converged(sites: Sites, meta_id: str) -> None:
    for site in sites.sites:
        until(lambda s=site: sites.status(s, meta_id) == "CONVERGED", f"for {site} to converge")  # type: ignore[misc]


def fates(sites: Sites, meta_id: str) -> dict[str, str]:
    return {op["id"]: op["effect"] for op in sites.log("site1", meta_id)["operations"]}


def test_puts_on_both_sides_of_a_cut_the_later_one_stays(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="first")
    path = f"/images/{meta_id}"
    wan.partition(["site1"], ["site2", "site3"])
    assert sites.call("site1", "PUT", path, {"name": "one", "only": 1}).status == 200
    assert sites.call("site2", "PUT", path, {"name": "two"}).status == 200
    wan.heal()
    sites.all_have(name="two")
    assert not [item for site in SITES for item in sites.images(site) if "only" in item]
    converged(sites, meta_id)


def test_patches_on_both_sides_of_a_cut_are_both_kept_in_one_order(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="first")
    path = f"/images/{meta_id}"
    wan.partition(["site1"], ["site2"], ["site3"])
    assert sites.call("site1", "PATCH", path, {"both": 1, "a": 1}).status == 200
    assert sites.call("site2", "PATCH", path, {"both": 2, "b": 2}).status == 200
    assert sites.call("site3", "PATCH", path, {"c": 3}).status == 200
    wan.heal()
    sites.all_have(name="first", both=2, a=1, b=2, c=3)
    converged(sites, meta_id)
    assert "superseded" not in {fates(sites, meta_id)[op["id"]] for op in _patches(sites, meta_id)}


def _patches(sites: Sites, meta_id: str) -> list[dict[str, Any]]:
    return [op for op in sites.log("site1", meta_id)["operations"] if op["type"] == "patch"]


def test_a_put_beats_a_patch_and_a_delete_beats_all(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="first")
    path = f"/images/{meta_id}"
    wan.partition(["site1"], ["site2"], ["site3"])
    assert sites.call("site1", "PUT", path, {"name": "put"}).status == 200
    assert sites.call("site2", "PATCH", path, {"patched": 1}).status == 200
    wan.heal()
    sites.all_have(name="put")
    assert not [item for site in SITES for item in sites.images(site) if "patched" in item]
    wan.partition(["site1"], ["site2"], ["site3"])
    assert sites.call("site3", "DELETE", path).status == 204
    assert sites.call("site1", "PUT", path, {"name": "too late"}).status == 200
    wan.heal()
    for site in SITES:
        until(lambda s=site: sites.images(s) == [], f"for nothing at {site}")  # type: ignore[misc]
    converged(sites, meta_id)


def test_a_name_given_at_two_sites_at_once_is_one_resource(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    wan.partition(["site1"], ["site2"], ["site3"])
    for site in ("site1", "site2"):
        assert sites.call(site, "PUT", "/notes/same", {"from": site}, EVERYWHERE).status == 201
    wan.heal()
    for site in SITES:
        until(lambda s=site: sites.direct(s, "GET", "/notes/same").json.get("from") == "site2")  # type: ignore[misc]
    assert len(json.loads(sites.rig.request("site3", "GET", "/api/v1/replicants"))["replicants"]) == 1


def test_a_site_that_is_down_during_a_create_and_an_update_gets_both(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    sites.rig.kill("site3")
    answer = sites.call("site1", "POST", "/images", {"name": "down"}, EVERYWHERE, Cheops_Wait="quorum")
    assert answer.status == 201
    meta_id = answer.json["id"]
    assert "site3; status=PENDING" in answer.headers["Cheops-Replicas"]
    assert sites.call("site2", "PATCH", f"/images/{meta_id}", {"size": 1}).status == 200
    waited = sites.call("site1", "PATCH", f"/images/{meta_id}", {"n": 1}, Cheops_Wait="all", Prefer="wait=1")
    assert waited.status == 202
    assert waited.json["waiting_for"] == ["site3"]
    sites.rig.start("site3")
    sites.all_have(name="down", size=1, n=1)
    converged(sites, meta_id)


def test_a_site_that_is_cut_off_serves_its_replica_and_takes_updates(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="island")
    path = f"/images/{meta_id}"
    wan.partition(["site3"], ["site1", "site2"])
    assert sites.call("site3", "GET", path).json["name"] == "island"
    assert sites.call("site3", "PATCH", path, {"by": "site3"}).status == 200
    assert sites.call("site3", "GET", path).json["by"] == "site3"
    assert sites.call("site1", "PATCH", path, {"at": "site1"}).status == 200
    wan.heal()
    sites.all_have(by="site3", at="site1")


def test_where_no_replica_can_be_reached_that_is_said_and_nothing_else(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create("site1", "site1 & site2", name="away")
    wan.isolate("site3")
    until(lambda: _state(sites, "site1", at="site3") == "down", "for site3 to see that it is alone")
    for method in ("GET", "PATCH"):
        answer = sites.call("site3", method, f"/images/{meta_id}", {} if method == "PATCH" else None)
        assert answer.status == 503
        assert "cannot be reached now" in answer.json["detail"]
    wan.heal()
    until(lambda: sites.call("site3", "GET", f"/images/{meta_id}").status == 200)


def test_a_site_removed_for_good_is_not_waited_for(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="left")
    sites.rig.kill("site3")
    body = json.dumps({"sites": "site3", "how": "remove"})
    kind = {"Content-Type": "application/json"}
    sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/sites?wait=first", body, kind)
    until(lambda: _state(sites, "site3") == "down", "for site3 to be down")
    sites.rig.request("site1", "DELETE", "/api/v1/sites/site3?force=true")
    answer = sites.call("site2", "PATCH", f"/images/{meta_id}", {"size": 1}, Cheops_Wait="all")
    assert answer.status == 200
    assert answer.headers["Cheops-Replicas"] == "site1; status=OK, site2; status=OK"
    until(lambda: sites.status("site1", meta_id) == "CONVERGED")


def test_a_site_that_is_forgotten_does_not_count_any_more(make_sites: MakeSites) -> None:
    """Nobody took it off the list of sites: who is removed from the mesh is not waited for anywhere."""
    sites = make_sites()
    sites.start()
    meta_id = sites.create(name="left")
    sites.rig.kill("site3")
    late = sites.call("site1", "PATCH", f"/images/{meta_id}", {"n": 1}, Cheops_Wait="all", Prefer="wait=0")
    assert late.status == 202
    sites.rig.request("site1", "DELETE", "/api/v1/sites/site3?force=true")
    for site in ("site1", "site2"):
        until(lambda s=site: sites.replicant(s, meta_id)["gone"] == ["site3"])  # type: ignore[misc]
        until(lambda s=site: sites.status(s, meta_id) == "CONVERGED")  # type: ignore[misc]
        found = sites.replicant(site, meta_id)
        assert (found["sites"], found["overall"]) == (["site1", "site2"], "CONVERGED")
    answer = sites.call("site2", "PATCH", f"/images/{meta_id}", {"size": 1}, Cheops_Wait="all")
    assert answer.status == 200
    assert answer.headers["Cheops-Replicas"] == "site1; status=OK, site2; status=OK"
    told = run_here("describe", "replicant", meta_id, "--url", sites.rig.url("site1")).out
    assert re.search(r"sites +site1, site2\nremoved sites +site3\n", told), told
    sites.stop_service("site1")  # a read goes to the other replica, and nowhere else
    assert sites.call("site1", "GET", f"/images/{meta_id}").site == "site2"
    sites.stop_service("site2")
    answer = sites.call("site1", "GET", f"/images/{meta_id}")
    assert "site2" in answer.json["detail"]
    assert "site3" not in answer.json["detail"]


def _state(sites: Sites, site: str, at: str = "site1") -> str:
    found = json.loads(sites.rig.request(at, "GET", "/api/v1/sites"))["sites"]
    return str(next(one["state"] for one in found if one["name"] == site))


def test_a_resource_that_leaves_a_site_is_an_ordinary_one_there(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="moved")
    kind = {"Content-Type": "application/json"}
    body = json.dumps({"sites": "site3", "how": "remove"})
    sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/sites", body, kind)
    (own,) = sites.images("site3")
    until(lambda: sites.call("site3", "GET", "/images").json["images"][0]["id"] == own["id"])
    assert sites.call("site3", "PATCH", own["self"], {"size": 1}).status == 200
    assert sites.call("site3", "GET", f"/images/{meta_id}").json.get("size") is None  # from site1 or site2
    assert sites.call("site1", "PUT", f"/images/{meta_id}", {"name": "meanwhile"}).status == 200
    # back again, it is the same copy, and catches up
    body = json.dumps({"sites": "site3", "how": "add"})
    sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/sites", body, kind)
    sites.all_have(name="meanwhile")
    assert sites.images("site3")[0]["id"] == own["id"]
    assert sites.call("site3", "GET", "/images").json["images"][0]["id"] == meta_id


def test_a_copy_may_be_deleted_where_a_resource_leaves_and_everywhere_by_hand(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create(name="moved")
    kind = {"Content-Type": "application/json"}
    body = json.dumps({"sites": "site3", "how": "remove", "delete_copy": True})
    sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/sites", body, kind)
    until(lambda: sites.images("site3") == [], "for the copy to be deleted")
    assert [len(sites.images(site)) for site in ("site1", "site2")] == [1, 1]
    sites.rig.request("site2", "DELETE", f"/api/v1/resources/{meta_id}")
    assert [len(sites.images(site)) for site in SITES] == [0, 0, 0]
    assert sites.call("site1", "GET", f"/images/{meta_id}").status == 404


def test_a_site_that_joins_gets_a_copy(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    meta_id = sites.create("site1", "site1 & site2", name="joined")
    sites.call("site1", "PATCH", f"/images/{meta_id}", {"size": 1}, Cheops_Wait="all")
    body = json.dumps({"sites": "site3", "how": "add"})
    kind = {"Content-Type": "application/json"}
    sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/sites", body, kind)
    sites.all_have(name="joined", size=1)
    assert sites.call("site3", "GET", f"/images/{meta_id}").site == "site3"
