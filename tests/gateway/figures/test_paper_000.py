"""The replication of the first Cheops paper, with real sites: figure 3, each step of the workflows of section 3.3
(create, read, update, delete), and the faults of section 3.4.

The paper has a leader per replicant; here any site of a resource takes its operations, which is more than it
asks for: what it promises to users is the same.
"""

import contextlib
import json

import pytest

from cheops.backends.http.ids import is_meta_id
from tests.agent.rig import RefusedByAgentError, until
from tests.gateway.figures.cloud import Cloud, digest

PAIR = ("site1", "site2")
AT_PAIR = "{image: site1 & site2}"
FILE = b"content" * 1000


def local_id(cloud: Cloud, site: str, name: str) -> str:
    found: str = cloud.images(site)[name]["id"]
    return found


def have(cloud: Cloud, name: str, **wanted: object) -> None:
    """Wait until the services of both sites have an image like this."""

    def all_have() -> bool:
        found = [cloud.images(site).get(name, {}) for site in PAIR]
        return all(bool(image) and wanted.items() <= image.items() for image in found)

    until(all_have, f"for {name} with {wanted} at both sites")


def test_figure_3_and_the_steps_of_a_creation(cloud: Cloud) -> None:
    """Figure 3 and "Creation": 1, 2 the scope names the sites; 3, 4 the replicant {72: [App1: none, App2: none]} is
    kept at both before it is complete; 5 each service gives a local id; 6 each site has its own in the mapping;
    7 the user gets the first answer, with the meta-id instead of the local id. (App2's part is held back by a
    cut, so that each state can be seen.)"""
    cloud.wan.cut("site1", "site2")
    try:
        made = cloud.call("site1", "POST", "/images", {"name": "figure3"}, scope=AT_PAIR)
        meta_id = made.json["id"]
        assert (made.status, is_meta_id(meta_id)) == (201, True)
        assert made.headers["Location"] == f"/images/{meta_id}"
        assert made.headers["Cheops-Replicas"] == "site1; status=OK, site2; status=PENDING"
        begun = cloud.replicant("site1", meta_id)
        assert (begun["sites"], begun["local_id"]) == (list(PAIR), local_id(cloud, "site1", "figure3"))
        assert begun["overall"] != "CONVERGED"
        assert "figure3" not in cloud.images("site2")
    finally:
        cloud.wan.heal()
    until(lambda: cloud.replicant("site1", meta_id)["overall"] == "CONVERGED", "for site2's part")
    mapping = {site: cloud.replicant(site, meta_id)["local_id"] for site in PAIR}
    assert mapping == {site: local_id(cloud, site, "figure3") for site in PAIR}
    assert len({meta_id, *mapping.values()}) == 3
    cloud.all_see_all()


def test_creation_tells_where_it_is_applied(cloud: Cloud) -> None:
    """Section 3.3: users cannot assume from the first answer that it is applied everywhere; they ask Cheops where
    it is, by the operation that each answer names."""
    made = cloud.call("site1", "POST", "/images", {"name": "asked"}, scope=AT_PAIR)
    meta_id, operation = made.json["id"], made.headers["Cheops-Operation"]
    path = f"/api/v1/resources/{meta_id}/operations/{operation}"

    def statuses() -> dict[str, str]:
        told = json.loads(cloud.rig.request("site1", "GET", path))
        return {reply["site"]: reply["status"] for reply in told["replies"]}

    until(lambda: statuses() == {"site1": "OK", "site2": "OK"}, "for both sites to say OK")


@pytest.mark.parametrize(("site", "scope"), [("site1", None), ("site2", None), ("site3", "{image: site2}")])
def test_read(site: str, scope: str | None, cloud: Cloud) -> None:
    """Read: users are on a site that has a replica, or say in the scope which replica to read."""
    name = f"read-{site}"
    image = cloud.new_image("site1", name, FILE, scope=AT_PAIR)
    read = cloud.call(site, "GET", f"/images/{image}", scope=scope)
    assert (read.status, read.json["id"], read.json["sha256"]) == (200, image, digest(FILE))
    assert read.site == ("site2" if scope else site)
    assert cloud.call(site, "GET", f"/images/{image}/file", scope=scope).body == FILE


@pytest.mark.parametrize("by", ["meta", "local"])
@pytest.mark.parametrize("site", PAIR)
@pytest.mark.parametrize("scope", [None, "{image: site1}"])
def test_update(by: str, site: str, scope: str | None, cloud: Cloud) -> None:
    """Update: 1, 2 by the meta-id or a local id, whether a scope is given or not; 3, 4 each site runs it with its
    own local id; 5, 6 the user gets the answer with the meta-id in it."""
    name = f"update-{by}-{site}-{'scoped' if scope else 'plain'}"
    image = cloud.new_image("site1", name, FILE, scope=AT_PAIR)
    # A local id belongs to the service of one site: with a scope it is that of the scope's site.
    known = image if by == "meta" else local_id(cloud, "site1" if scope else site, name)
    changed = cloud.call(site, "PATCH", f"/images/{known}", {"os": "linux"}, scope=scope, Cheops_Wait="all")
    assert (changed.status, changed.json["id"], changed.json["os"]) == (200, image, "linux"), changed.body
    have(cloud, name, os="linux", sha256=digest(FILE))


def test_update_of_what_is_in_no_replicant_goes_to_the_service(cloud: Cloud) -> None:
    """Update, step 2: where the id is in no replicant, the request is the local service's affair alone."""
    cloud.new_image("site1", "beside", FILE, scope=AT_PAIR)
    alone = cloud.new_image("site1", "alone", FILE)
    changed = cloud.call("site1", "PATCH", f"/images/{alone}", {"os": "linux"})
    assert (changed.status, changed.json["id"], changed.json["os"]) == (200, alone, "linux")
    assert "Cheops-Operation" not in changed.headers
    assert "alone" not in cloud.images("site2")


@pytest.mark.parametrize("by", ["meta", "local"])
@pytest.mark.parametrize("site", PAIR)
def test_delete(by: str, site: str, cloud: Cloud) -> None:
    """Delete: as an update, by either id, and it is gone at every site."""
    name = f"delete-{by}-{site}"
    image = cloud.new_image("site1", name, FILE, scope=AT_PAIR)
    known = image if by == "meta" else local_id(cloud, site, name)
    assert cloud.call(site, "DELETE", f"/images/{known}", Cheops_Wait="all").status == 204
    assert not [other for other in PAIR if name in cloud.images(other)]
    assert [cloud.call(other, "GET", f"/images/{image}").status for other in PAIR] == [404, 404]


# -- section 3.4 -------------------------------------------------------------------------------------------


def test_a_site_that_is_down_during_a_creation_has_it_when_it_is_back(cloud: Cloud) -> None:
    """ "Faults during operations": site2's agent and power are gone; the user is answered, and the log applies the
    creation when the site is back."""
    cloud.rig.kill("site2")
    made = cloud.call("site1", "POST", "/images", {"name": "while-down"}, scope=AT_PAIR)
    image = made.json["id"]
    assert made.status == 201
    put = cloud.call("site1", "PUT", f"/images/{image}/file", FILE)  # its content, which site2 has to fetch
    assert put.status == 204
    assert "while-down" not in cloud.images("site2")
    cloud.rig.start("site2")
    have(cloud, "while-down", sha256=digest(FILE))
    cloud.all_see_all()
    assert cloud.call("site2", "GET", f"/images/{image}/file").body == FILE


def test_a_site_that_is_cut_off_during_an_update_is_brought_up_to_date(cloud: Cloud) -> None:
    """ "Faults while there are replicas": a partitioned site still serves reads, which may be stale; when it is
    back the updates are applied there. (Writes at the partitioned site are possible too, see the next test.)"""
    image = cloud.new_image("site1", "while-cut", FILE, scope=AT_PAIR)
    cloud.wan.isolate("site2")
    try:
        assert cloud.call("site1", "PATCH", f"/images/{image}", {"version": 2}).status == 200
        stale = cloud.call("site2", "GET", f"/images/{image}")
        assert (stale.status, "version" in stale.json) == (200, False)
        assert cloud.call("site1", "PATCH", f"/images/{image}", {"version": 3}).status == 200
    finally:
        cloud.wan.heal()
    have(cloud, "while-cut", version=3)
    cloud.all_see_all()


def test_updates_on_both_sides_of_a_cut_end_in_the_same_state(cloud: Cloud) -> None:
    """What the paper does not allow: both sides go on writing, and agree when they meet."""
    image = cloud.new_image("site1", "both-sides", FILE, scope=AT_PAIR)
    cloud.wan.cut("site1", "site2")
    try:
        assert cloud.call("site1", "PATCH", f"/images/{image}", {"of": "site1", "one": 1}).status == 200
        assert cloud.call("site2", "PATCH", f"/images/{image}", {"of": "site2", "two": 2}).status == 200
    finally:
        cloud.wan.heal()
    have(cloud, "both-sides", one=1, two=2)
    until(lambda: len({cloud.images(site)["both-sides"]["of"] for site in PAIR}) == 1, "for one of the two")
    cloud.all_see_all()


def test_a_service_that_fails_is_tried_again(cloud: Cloud) -> None:
    """ "A failure from this site … if the request cannot be executed for any reason": the agent of site4 is there,
    and its service is not; the operation waits, says why, and runs when the service is back."""
    cloud.stop_services("site4")
    made = cloud.call("site1", "POST", "/images", {"name": "no-service"}, scope="{image: site1 & site4}")
    image = made.json["id"]
    assert made.status == 201

    def waits() -> bool:
        with contextlib.suppress(RefusedByAgentError):  # it has not heard of it yet
            return bool(cloud.replicant("site4", image)["waits"])
        return False

    until(waits, "for the reason")
    cloud.start_services("site4")
    until(lambda: cloud.replicant("site1", image)["overall"] == "CONVERGED", "for site4's service")
    assert "no-service" in cloud.images("site4")


def test_a_site_that_is_removed_for_good_leaves_every_replicant(cloud: Cloud) -> None:
    """ "If a site is removed from the system, every replicant … must delete the site from their mapping.": site4
    burns down and is forgotten; the replicant goes on with the sites that are left."""
    image = cloud.new_image("site1", "removed", FILE, scope="{image: site1 & site2 & site4}")
    cloud.rig.kill("site4")
    cloud.call("site1", "PATCH", f"/images/{image}", {"version": 2}, Prefer="wait=1", Cheops_Wait="all")
    assert cloud.replicant("site1", image)["overall"] != "CONVERGED"
    until(lambda: _state(cloud, "site4") not in ("up", "suspect"), "for site4 to be seen as down")
    with pytest.raises(RefusedByAgentError) as refused:  # it says what still has the site on its list
        cloud.rig.request("site1", "DELETE", "/api/v1/sites/site4")
    assert (refused.value.status, image in refused.value.detail) == (409, True)
    for listed in _replicants_at(cloud, "site4"):
        body = json.dumps({"sites": "site4", "how": "remove"})
        path, headers = f"/api/v1/resources/{listed}/sites?wait=first", {"Content-Type": "application/json"}
        cloud.rig.request("site1", "POST", path, body, headers)
    cloud.rig.request("site1", "DELETE", "/api/v1/sites/site4")
    for site in PAIR:
        until(lambda s=site: cloud.replicant(s, image)["sites"] == list(PAIR), f"for {site}'s mapping")  # type: ignore[misc]
        until(lambda s=site: cloud.replicant(s, image)["overall"] == "CONVERGED", f"for {site} to say so")  # type: ignore[misc]
    changed = cloud.call("site2", "PATCH", f"/images/{image}", {"version": 3}, Cheops_Wait="all")
    assert (changed.status, changed.headers["Cheops-Replicas"]) == (200, "site1; status=OK, site2; status=OK")
    have(cloud, "removed", version=3)


def _state(cloud: Cloud, site: str) -> str:
    return str(json.loads(cloud.rig.request("site1", "GET", f"/api/v1/sites/{site}"))["state"])


def _replicants_at(cloud: Cloud, site: str) -> list[str]:
    listed = json.loads(cloud.rig.request("site1", "GET", "/api/v1/replicants"))["replicants"]
    return [one["id"] for one in listed if site in one["sites"]]
