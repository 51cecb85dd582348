"""`cheops repair` with real agents and a real service at each of three sites. In the end the services are compared."""

import json
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.gateway.replicas.test_faults import converged
from tests.support.command import run_here
from tests.wan import Wan

HASH_CHARACTERS = 64


@pytest.fixture
def sites(make_sites: MakeSites) -> Sites:
    started = make_sites()
    started.start()
    return started


def cheops(sites: Sites, site: str, *words: str, code: int = 0) -> str:
    done = run_here(*words, "--url", sites.rig.url(site))
    assert done.code == code, done
    return done.out + done.err


def status(sites: Sites, meta_id: str, site: str = "site1") -> str:
    return sites.status(site, meta_id)


def services(sites: Sites, collection: str = "images") -> list[list[dict[str, Any]]]:
    """What each service itself has, without the ids that it gave."""
    found = [sites.images(site, collection) for site in sites.sites]
    return [[{k: v for k, v in one.items() if k not in ("id", "self")} for one in items] for items in found]


def fault(sites: Sites, site: str, **what: Any) -> None:
    sites.direct(site, "POST", "/_fault", what)


def refused_at_site2(sites: Sites, meta_id: str, method: str = "PATCH", **content: Any) -> None:
    """A change that the service of site2 alone refuses."""
    fault(sites, "site2", method=method, status=409)
    answer = sites.call("site1", method, f"/images/{meta_id}", content, Cheops_Wait="all")
    assert answer.status == 200, answer.body
    until(lambda: status(sites, meta_id) == "DIVERGED", "for DIVERGED")


def test_retry_runs_again_what_failed_and_the_services_are_equal(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    refused_at_site2(sites, meta_id, version=12)
    shown = cheops(sites, "site1", "repair", meta_id, code=1)
    assert "failed at site2" in shown
    assert "--retry" in shown
    shown = cheops(sites, "site1", "repair", meta_id, "--retry", code=1)
    assert "409" in shown, "the cause is still there"
    assert status(sites, meta_id) == "DIVERGED"
    fault(sites, "site2")
    shown = cheops(sites, "site3", "repair", meta_id, "--retry")
    assert services(sites) == [[{"name": "debian", "version": 12}]] * 3
    converged(sites, meta_id)


def test_a_create_that_failed_and_what_came_after_it_run_again_in_order(sites: Sites) -> None:
    fault(sites, "site2", method="POST", status=409)
    meta_id = sites.create(name="debian")
    assert sites.call("site1", "PATCH", f"/images/{meta_id}", {"version": 12}, Cheops_Wait="all").status == 200
    until(lambda: status(sites, meta_id) == "DIVERGED", "for DIVERGED")
    assert sites.images("site2") == []
    fault(sites, "site2")
    cheops(sites, "site1", "repair", meta_id, "--retry")
    assert services(sites) == [[{"name": "debian", "version": 12}]] * 3
    converged(sites, meta_id)


def test_a_put_that_replaces_what_failed_ends_the_divergence(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    refused_at_site2(sites, meta_id, version=12)
    fault(sites, "site2")
    assert sites.call("site3", "PUT", f"/images/{meta_id}", {"name": "new"}, Cheops_Wait="all").status == 200
    assert services(sites) == [[{"name": "new"}]] * 3
    converged(sites, meta_id)


def test_the_state_of_one_site_is_taken_for_all(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    refused_at_site2(sites, meta_id, version=12)
    fault(sites, "site2")
    shown = cheops(sites, "site3", "repair", meta_id, "--from", "site2", code=1)
    assert "is lost" in shown
    assert "Nothing was changed" in shown
    assert services(sites)[0] == [{"name": "debian", "version": 12}]
    shown = cheops(sites, "site3", "repair", meta_id, "--from", "site2", "--yes")
    assert services(sites) == [[{"name": "debian"}]] * 3
    converged(sites, meta_id)
    # It is an operation like others, and later ones build on it.
    assert sites.call("site1", "PATCH", f"/images/{meta_id}", {"version": 13}, Cheops_Wait="all").status == 200
    assert services(sites) == [[{"name": "debian", "version": 13}]] * 3
    converged(sites, meta_id)


def test_a_change_behind_the_back_of_cheops_is_repaired(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    [item] = sites.images("site3")
    assert sites.direct("site3", "PUT", item["self"], {"name": "by hand"}).status == 200
    assert status(sites, meta_id) == "CONVERGED", "nobody has looked"
    assert f"cheops repair {meta_id}" in cheops(sites, "site1", "verify", meta_id, code=1)
    shown = cheops(sites, "site1", "repair", meta_id, code=1)
    assert "by hand" in shown
    cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes")
    assert services(sites) == [[{"name": "debian"}]] * 3
    converged(sites, meta_id)
    cheops(sites, "site1", "verify", meta_id)


def test_what_a_service_lost_is_created_again_and_deleted_with_the_rest(sites: Sites) -> None:
    meta_id = sites.create(name="debian", version=12)
    [item] = sites.images("site2")
    assert sites.direct("site2", "DELETE", item["self"]).status == 204
    cheops(sites, "site1", "repair", meta_id, "--from", "site3", "--yes")
    assert services(sites) == [[{"name": "debian", "version": 12}]] * 3
    assert sites.images("site2")[0]["id"] != item["id"]
    assert sites.call("site2", "GET", f"/images/{meta_id}").json["version"] == 12
    assert sites.call("site1", "DELETE", f"/images/{meta_id}", Cheops_Wait="all").status == 204
    assert services(sites) == [[]] * 3


def test_a_copy_that_was_never_created_comes_from_another_site(sites: Sites) -> None:
    fault(sites, "site2", method="POST", status=409, times=1)
    meta_id = sites.create(name="debian")
    until(lambda: status(sites, meta_id) == "DIVERGED", "for DIVERGED")
    cheops(sites, "site2", "repair", meta_id, "--from", "site1", "--yes")
    assert services(sites) == [[{"name": "debian"}]] * 3
    converged(sites, meta_id)


def test_a_state_that_a_site_does_not_have_is_not_taken(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    [item] = sites.images("site2")
    assert sites.direct("site2", "DELETE", item["self"]).status == 204
    shown = cheops(sites, "site1", "repair", meta_id, "--from", "site2", "--yes", code=1)
    assert f"cheops delete {meta_id}" in shown
    shown = cheops(sites, "site1", "repair", meta_id, "--from", "site9", "--yes", code=1)
    assert "unknown site 'site9'" in shown
    assert [len(items) for items in services(sites)] == [1, 0, 1]


def test_a_state_that_its_own_service_refuses_goes_nowhere(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    fault(sites, "site1", method="PUT", status=422)
    [item] = sites.images("site2")
    assert sites.direct("site2", "PUT", item["self"], {"name": "by hand"}).status == 200
    shown = cheops(sites, "site2", "repair", meta_id, "--from", "site1", "--yes", code=1)
    assert "did not take its state back" in shown
    assert services(sites)[1] == [{"name": "by hand"}]


def test_a_state_that_is_another_one_after_it_was_written_is_no_success(sites: Sites) -> None:
    """The service of site2 says that it took the state, and does something else: nobody calls that CONVERGED."""
    meta_id = sites.create(name="debian")
    [item] = sites.images("site2")
    assert sites.direct("site2", "PUT", item["self"], {"name": "by hand"}).status == 200
    fault(sites, "site2", method="PUT", status=200)
    shown = cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes", code=1)
    assert "$.name differs" in shown
    assert status(sites, meta_id) == "DIVERGED"
    fault(sites, "site2")
    cheops(sites, "site1", "repair", meta_id, "--retry")
    assert services(sites) == [[{"name": "debian"}]] * 3
    converged(sites, meta_id)


def test_a_service_without_put_is_written_by_patch_if_that_gives_the_same_state(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    [item] = sites.images("site2")
    assert sites.direct("site2", "PATCH", item["self"], {"name": "by hand"}).status == 200
    fault(sites, "site2", method="PUT", status=405)
    cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes")
    assert services(sites) == [[{"name": "debian"}]] * 3
    converged(sites, meta_id)
    assert sites.direct("site2", "PATCH", item["self"], {"more": 1}).status == 200  # PATCH cannot remove it
    assert "$.more differs" in cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes", code=1)
    assert status(sites, meta_id) == "DIVERGED"


def test_what_clients_name_is_repaired_too(sites: Sites) -> None:
    answer = sites.call("site1", "PUT", "/notes/a", {"text": "one"}, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201
    [meta_id] = [one["id"] for one in _resources(sites)]
    assert sites.direct("site3", "DELETE", "/notes/a").status == 204
    assert sites.direct("site2", "PUT", "/notes/a", {"text": "two"}).status == 200
    cheops(sites, "site1", "repair", meta_id, "--from", "site2", "--yes")
    assert services(sites, "notes") == [[{"text": "two"}]] * 3
    converged(sites, meta_id)


def _resources(sites: Sites) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(sites.rig.request("site1", "GET", "/api/v1/resources"))["resources"]
    return found


def test_a_site_that_is_added_after_a_repair_gets_the_state(sites: Sites) -> None:
    meta_id = sites.create(scope="site1 & site2", name="debian")
    [item] = sites.images("site1")
    assert sites.direct("site1", "PUT", item["self"], {"name": "by hand", "version": 12}).status == 200
    cheops(sites, "site2", "repair", meta_id, "--from", "site1", "--yes")
    cheops(sites, "site2", "sites", "add", meta_id, "site3")
    converged(sites, meta_id)
    assert services(sites) == [[{"name": "by hand", "version": 12}]] * 3
    cheops(sites, "site3", "delete", meta_id)
    assert services(sites) == [[]] * 3


def test_parts_that_no_state_shows_are_not_lost(sites: Sites) -> None:
    meta_id = sites.create(name="debian")
    assert sites.call("site1", "PUT", f"/images/{meta_id}/file", b"data", Content_Type="text/plain").status == 204
    shown = cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes", code=1)
    assert "changed parts of it" in shown
    refused_at_site2(sites, meta_id, size=4)
    plan = cheops(sites, "site1", "repair", meta_id, code=1)
    assert f"cheops repair {meta_id} --from SITE\n  cannot be done: this state cannot be taken: site1:2 changed" in plan
    assert "--from site1" not in plan


def test_a_large_state_is_a_file_that_the_sites_fetch(sites: Sites) -> None:
    text = "x" * 100_000
    meta_id = sites.create(name="debian")
    content = {"name": "debian", "text": text}
    assert sites.call("site1", "PUT", f"/images/{meta_id}", content, Cheops_Wait="all").status == 200
    [item] = sites.images("site2")
    assert sites.direct("site2", "PATCH", item["self"], {"text": "short"}).status == 200
    cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes")
    assert services(sites) == [[{"name": "debian", "text": text}]] * 3
    converged(sites, meta_id)


def test_the_body_of_what_failed_is_kept_until_a_retry(sites: Sites) -> None:
    text = "x" * 100_000
    meta_id = sites.create(name="debian")
    refused_at_site2(sites, meta_id, method="PUT", text=text)
    kept = {site: _files(sites, site) for site in SITES}
    fault(sites, "site2")
    other = sites.create(name="other")
    assert sites.call("site1", "PUT", f"/images/{other}", {"text": "y" * 100_000}, Cheops_Wait="all").status == 200
    for site in SITES:  # its file goes, and that of what failed stays
        until(lambda s=site: _files(sites, s) == kept[s], f"for {site} to forget the other file")  # type: ignore[misc]
    assert all(kept.values())
    cheops(sites, "site1", "repair", meta_id, "--retry")
    assert [len(items[0]["text"]) for items in services(sites)] == [len(text)] * 3
    for site in SITES:
        until(lambda s=site: not _files(sites, s), f"for {site} to forget the file")  # type: ignore[misc]


def _files(sites: Sites, site: str) -> set[str]:
    folder = sites.rig.folder(site) / "data" / "files"
    return {path.name for path in folder.rglob("*") if path.is_file() and len(path.name) == HASH_CHARACTERS}


def test_a_repair_outlives_a_cut(make_sites: MakeSites, wan: Wan) -> None:
    sites = make_sites(wan=wan)
    sites.start()
    meta_id = sites.create(name="debian")
    [item] = sites.images("site3")
    assert sites.direct("site3", "PUT", item["self"], {"name": "by hand"}).status == 200
    wan.partition(["site1", "site2"], ["site3"])
    body = {"resolution": "state", "site": "site1"}
    answer = json.loads(
        sites.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/resolve?timeout=2", json.dumps(body).encode())
    )
    assert {one["site"]: one["status"] for one in answer["sites"]} == {"site1": "OK", "site2": "OK", "site3": "PENDING"}
    assert status(sites, meta_id) in ("UNREACHABLE", "CONVERGING")
    assert sites.images("site3")[0]["name"] == "by hand"
    wan.heal()
    until(lambda: services(sites) == [[{"name": "debian"}]] * 3, "for the repair at site3")
    converged(sites, meta_id)


# -- verify_every ------------------------------------------------------------------------------------------------


@pytest.fixture
def watched(make_sites: MakeSites) -> Sites:
    started = make_sites(verify_every="1s")
    started.start()
    return started


def diverged_everywhere(sites: Sites, meta_id: str) -> None:
    for site in sites.sites:
        until(lambda s=site: status(sites, meta_id, s) == "DIVERGED", f"for {site} to say DIVERGED")  # type: ignore[misc]


def test_a_change_behind_the_back_of_cheops_is_found_and_repaired(watched: Sites) -> None:
    sites = watched
    meta_id, other = sites.create(name="debian"), sites.create(name="other")
    [item] = [one for one in sites.images("site3") if one["name"] == "debian"]
    assert sites.direct("site3", "PUT", item["self"], {"name": "by hand"}).status == 200
    diverged_everywhere(sites, meta_id)
    shown = cheops(sites, "site2", "status", meta_id, code=1)
    assert "the application at site3 differs from that at site1, although all sites ran the same" in shown
    assert f"cheops repair {meta_id}" in shown
    assert "DIVERGED" in cheops(sites, "site2", "get", "resources")
    assert status(sites, other) == "CONVERGED"
    assert _metric(sites, "site1", "cheops_drifted") == 1
    assert _metric(sites, "site2", 'cheops_events_total{kind="drifted"}') == 1
    cheops(sites, "site2", "repair", meta_id, "--from", "site1", "--yes")
    assert [[one["name"] for one in items] for items in services(sites)] == [["debian", "other"]] * 3
    converged(sites, meta_id)
    until(lambda: _metric(sites, "site1", "cheops_drifted") == 0, "for the metric")


def test_drift_outlives_a_restart_and_ends_when_the_states_are_equal(watched: Sites) -> None:
    sites = watched
    meta_id = sites.create(name="debian")
    [item] = sites.images("site3")
    assert sites.direct("site3", "DELETE", item["self"]).status == 204  # that it is not there is a difference
    diverged_everywhere(sites, meta_id)
    sites.rig.stop("site2")
    sites.configure("site2", verify_every="24h")
    sites.rig.start("site2")
    assert status(sites, meta_id, "site2") == "DIVERGED"
    cheops(sites, "site1", "repair", meta_id, "--from", "site1", "--yes")
    converged(sites, meta_id)
    [item] = sites.images("site3")
    assert sites.direct("site3", "PUT", item["self"], {"name": "by hand"}).status == 200
    diverged_everywhere(sites, meta_id)
    # A write through Cheops that leaves the sites equal ends it too.
    assert sites.call("site2", "PUT", f"/images/{meta_id}", {"name": "new"}, Cheops_Wait="all").status == 200
    converged(sites, meta_id)
    assert services(sites) == [[{"name": "new"}]] * 3


def test_a_service_that_is_down_is_no_drift(watched: Sites) -> None:
    sites = watched
    meta_id = sites.create(name="debian")
    fault(sites, "site3", method="GET", status=503)
    before = _reads(sites, "site2")
    until(lambda: _reads(sites, "site2") >= before + 3, "for three rounds")
    assert status(sites, meta_id) == "CONVERGED"
    assert _metric(sites, "site1", "cheops_drifted") == 0


def test_only_one_site_compares(watched: Sites) -> None:
    sites = watched
    sites.create(name="debian")
    before = _reads(sites, "site2")
    until(lambda: _reads(sites, "site2") >= before + 3, "for three rounds")
    asked = {site: _reads(sites, site) for site in SITES}
    assert max(asked.values()) - min(asked.values()) <= 1, f"each round reads each service once: {asked}"


def _reads(sites: Sites, site: str) -> int:
    """How often the service of a site was asked for its image."""
    told = sites.direct(site, "GET", "/_told").json
    return sum(one["method"] == "GET" and one["path"].count("/") == 2 for one in told)


def _metric(sites: Sites, site: str, name: str) -> float:
    lines = sites.rig.request(site, "GET", "/metrics").decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))
