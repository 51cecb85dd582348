"""Creating, reading, updating and deleting, as section 3.3 of the first paper has it, at three real sites."""

import json
import re

import pytest

from cheops.backends.http.ids import is_meta_id
from tests.agent.rig import until
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites

PAIR = "site1 & site2"


def only(sites: Sites, site: str, name: str) -> dict[str, object]:
    """The one image of a name that the service of a site has."""
    (found,) = [item for item in sites.images(site) if item.get("name") == name]
    return found


# -- creation --------------------------------------------------------------------------------------------------


def test_a_create_reaches_every_site_and_answers_with_the_meta_id(three: Sites) -> None:
    answer = three.call("site1", "POST", "/images", {"name": "all"}, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201
    meta_id = answer.json["id"]
    assert is_meta_id(meta_id)
    assert answer.headers["Location"] == f"/images/{meta_id}"
    assert answer.json["self"] == f"/images/{meta_id}"
    assert re.fullmatch(r"site1:\d+", answer.headers["Cheops-Operation"])
    assert answer.headers["Cheops-Replicas"] == ", ".join(f"{site}; status=OK" for site in SITES)
    own = {site: only(three, site, "all")["id"] for site in SITES}
    assert len(set(own.values())) == 3  # each service has its own id
    assert {site: three.replicant(site, meta_id)["local_id"] for site in SITES} == {
        site: str(id_) for site, id_ in own.items()
    }


def test_the_first_answer_is_enough_and_the_others_follow(three: Sites) -> None:
    answer = three.call("site2", "POST", "/images", {"name": "soon"}, EVERYWHERE)
    assert answer.status == 201
    assert "site2; status=OK" in answer.headers["Cheops-Replicas"]
    for site in SITES:
        until(lambda s=site: any(item["name"] == "soon" for item in three.images(s)))  # type: ignore[misc]


def test_a_site_that_is_not_involved_hands_a_create_on(three: Sites) -> None:
    answer = three.call("site3", "POST", "/images", {"name": "pair"}, PAIR, Cheops_Wait="all")
    assert answer.status == 201
    assert not [item for item in three.images("site3") if item["name"] == "pair"]
    assert {only(three, site, "pair")["name"] for site in ("site1", "site2")} == {"pair"}


def test_what_a_service_refuses_is_refused_and_runs_nowhere_else(three: Sites) -> None:
    three.direct("site1", "POST", "/images", {"name": "taken"})
    answer = three.call("site1", "POST", "/images", {"name": "taken"}, EVERYWHERE)
    assert answer.status == 409
    assert answer.json == {"error": "taken exists"}  # the service's own words
    assert not [item for item in three.images("site2") if item["name"] == "taken"]


def test_a_client_may_name_what_it_creates(three: Sites) -> None:
    made = three.call("site1", "PUT", "/notes/mine", {"text": "one"}, EVERYWHERE, Cheops_Wait="all")
    assert (made.status, made.json) == (201, {"text": "one", "id": "mine"})
    # it is known by its name at every site, without a scope
    changed = three.call("site3", "PUT", "/notes/mine", {"text": "two"}, Cheops_Wait="all")
    assert changed.status == 200
    for site in SITES:
        assert three.call(site, "GET", "/notes/mine").json == {"text": "two", "id": "mine"}
    assert three.call("site2", "DELETE", "/notes/mine", Cheops_Wait="all").status == 204
    assert [three.direct(site, "GET", "/notes/mine").status for site in SITES] == [404] * 3
    again = three.call("site2", "PUT", "/notes/mine", {"text": "new"}, EVERYWHERE, Cheops_Wait="all")
    assert again.status == 201
    assert three.call("site1", "GET", "/notes/mine").json["text"] == "new"


# -- reading ---------------------------------------------------------------------------------------------------


def test_every_site_reads_its_own_replica(three: Sites) -> None:
    meta_id = three.create(name="read")
    for site in SITES:
        answer = three.call(site, "GET", f"/images/{meta_id}")
        expected = {"name": "read", "id": meta_id, "self": f"/images/{meta_id}"}
        assert (answer.status, answer.json, answer.site) == (200, expected, site)
        assert three.call(site, "HEAD", f"/images/{meta_id}").status == 200


def test_a_site_without_a_replica_reads_the_nearest(three: Sites) -> None:
    meta_id = three.create("site1", PAIR, name="far")
    answer = three.call("site3", "GET", f"/images/{meta_id}")
    assert (answer.status, answer.json["id"]) == (200, meta_id)
    assert answer.site in ("site1", "site2")
    named = three.call("site3", "GET", f"/images/{meta_id}", scope="site2")
    assert (named.status, named.site) == (200, "site2")


def test_lists_show_meta_ids_for_replicants_and_local_ids_for_the_rest(three: Sites) -> None:
    meta_id = three.create(name="listed")
    own = three.call("site2", "POST", "/images", {"name": "plain"}).json  # no scope: local and not replicated
    assert isinstance(own["id"], int)
    shown = {item["name"]: item["id"] for item in three.call("site2", "GET", "/images").json["images"]}
    assert shown["listed"] == meta_id
    assert shown["plain"] == own["id"]


def test_an_unknown_meta_id_is_not_found(three: Sites) -> None:
    unknown = "c4e095a1-0000-8000-8000-000000000000"
    for method in ("GET", "PUT", "DELETE"):
        answer = three.call("site1", method, f"/images/{unknown}", {})
        assert answer.status == 404
        assert unknown in answer.json["detail"]


# -- updating --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", SITES)
def test_an_update_at_any_site_reaches_all(three: Sites, site: str) -> None:
    meta_id = three.create(name=f"update-{site}")
    name = f"put-{site}"
    put = three.call(site, "PUT", f"/images/{meta_id}", {"name": name, "size": 1}, Cheops_Wait="all")
    assert (put.status, put.json["id"], put.json["size"]) == (200, meta_id, 1)
    patch = three.call(site, "PATCH", f"/images/{meta_id}", {"size": 2}, Cheops_Wait="all")
    assert (patch.status, patch.json["name"], patch.json["size"]) == (200, name, 2)
    assert [only(three, other, name)["size"] for other in SITES] == [2, 2, 2]


def test_an_update_goes_to_all_replicas_whatever_the_scope(three: Sites) -> None:
    meta_id = three.create(name="scoped")
    three.call("site1", "PATCH", f"/images/{meta_id}", {"size": 3}, scope="site1", Cheops_Wait="all")
    assert [only(three, site, "scoped")["size"] for site in SITES] == [3, 3, 3]
    three.call("site1", "PATCH", f"/images/{meta_id}", {"size": 4}, scope=PAIR, Cheops_Wait="all")
    assert [only(three, site, "scoped")["size"] for site in SITES] == [4, 4, 4]


def test_a_local_id_counts_as_the_meta_id(three: Sites) -> None:
    meta_id = three.create(name="local")
    own = only(three, "site2", "local")["id"]
    answer = three.call("site2", "PATCH", f"/images/{own}", {"size": 5}, Cheops_Wait="all")
    assert (answer.status, answer.json["id"]) == (200, meta_id)
    assert [only(three, site, "local")["size"] for site in SITES] == [5, 5, 5]


def test_an_update_from_a_site_that_is_not_involved_is_handed_on(three: Sites) -> None:
    meta_id = three.create("site1", PAIR, name="handed")
    answer = three.call("site3", "PATCH", f"/images/{meta_id}", {"size": 6}, Cheops_Wait="all")
    assert (answer.status, answer.json["size"]) == (200, 6)
    assert [only(three, site, "handed")["size"] for site in ("site1", "site2")] == [6, 6]


def test_what_is_below_a_replicant_is_done_everywhere(three: Sites) -> None:
    meta_id = three.create(name="below")
    done = three.call("site1", "POST", f"/images/{meta_id}/reboot", {}, Cheops_Wait="all")
    assert (done.status, done.json) == (200, {"done": "reboot", "times": 1})
    assert [only(three, site, "below")["reboot"] for site in SITES] == [1, 1, 1]
    types = [op["type"] for op in three.log("site1", meta_id)["operations"]]
    assert types == ["create", "post reboot"]


def test_a_replicated_resource_may_refer_to_another(three: Sites) -> None:
    image = three.create(name="referred")
    body = {"name": "server", "image": image}
    answer = three.call("site2", "POST", "/servers", body, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201, answer.body
    for site in SITES:
        (server,) = [item for item in three.images(site, "servers") if item["name"] == "server"]
        assert server["image"] == only(three, site, "referred")["id"]


def test_a_request_without_a_scope_may_refer_to_a_replicant_too(three: Sites) -> None:
    image = three.create(name="used")
    answer = three.call("site3", "POST", "/servers", {"name": "own", "image": image})
    assert answer.status == 201, answer.body
    (server,) = [item for item in three.images("site3", "servers") if item["name"] == "own"]
    assert server["image"] == only(three, "site3", "used")["id"]


def test_what_is_not_here_cannot_be_referred_to(three: Sites) -> None:
    image = three.create("site1", PAIR, name="absent")
    for scope in (None, EVERYWHERE):
        answer = three.call("site3", "POST", "/servers", {"name": "no", "image": image}, scope)
        assert answer.status == 409
        assert image in answer.json["detail"]


# -- deleting --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["site1", "site3"])
def test_a_delete_reaches_all_and_the_meta_id_is_gone(three: Sites, site: str) -> None:
    meta_id = three.create("site1", PAIR, name=f"gone-{site}")
    assert three.call(site, "DELETE", f"/images/{meta_id}", Cheops_Wait="all").status == 204
    for other in ("site1", "site2"):
        assert not [item for item in three.images(other) if item["name"] == f"gone-{site}"]
    for other in SITES:
        assert three.call(other, "GET", f"/images/{meta_id}").status == 404
    assert three.call("site1", "PATCH", f"/images/{meta_id}", {}).status == 404
    replicant = three.replicant("site1", meta_id)
    assert (replicant["deleted"], replicant["local_id"]) == (True, None)


def test_a_delete_by_local_id_reaches_all(three: Sites) -> None:
    three.create(name="by-local")
    own = only(three, "site3", "by-local")["id"]
    assert three.call("site3", "DELETE", f"/images/{own}", Cheops_Wait="all").status == 204
    assert not [site for site in SITES for item in three.images(site) if item["name"] == "by-local"]


def test_what_is_gone_at_a_site_already_is_deleted_all_the_same(three: Sites) -> None:
    meta_id = three.create(name="half")
    three.direct("site2", "DELETE", f"/images/{only(three, 'site2', 'half')['id']}")
    answer = three.call("site1", "DELETE", f"/images/{meta_id}", Cheops_Wait="all")
    assert answer.headers["Cheops-Replicas"] == ", ".join(f"{site}; status=OK" for site in SITES)


# -- what is known ---------------------------------------------------------------------------------------------


def test_an_agent_tells_what_is_replicated_and_where(three: Sites) -> None:
    meta_id = three.create("site1", PAIR, name="told")
    found = three.replicant("site1", meta_id)
    assert found["path"] == f"/images/{meta_id}"
    assert (found["service"], found["sites"], found["overall"]) == ("image", ["site1", "site2"], "CONVERGED")
    listed = json.loads(three.rig.request("site2", "GET", "/api/v1/replicants"))["replicants"]
    assert meta_id in {one["id"] for one in listed}
    verified = json.loads(three.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/verify"))
    assert verified["same"], verified


def test_a_state_that_is_too_large_to_be_compared_is_not_called_equal(three: Sites) -> None:
    answer = three.call("site1", "PUT", "/notes/large", {"text": "x" * 70_000}, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201
    meta_id = answer.headers["Link"].split("/resources/")[1].split("/")[0]
    verified = json.loads(three.rig.request("site1", "POST", f"/api/v1/resources/{meta_id}/verify"))
    assert not verified["same"]
    assert "cannot be compared" in json.dumps(verified)
