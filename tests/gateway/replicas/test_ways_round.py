"""No way round: however a request speaks of something replicated, all its sites do it, or none does."""

import pytest

from cheops.backends.http.ids import meta_id_of
from tests.agent.rig import until
from tests.gateway.raw import connected
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.gateway.stage import PLANES

PAIR = "site1 & site2"


def named(sites: Sites, name: str) -> list[dict[str, object]]:
    """What the services have under a name, site by site."""
    return [item for site in SITES for item in sites.images(site) if item["name"] == name]


# -- more than one at once ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["DELETE", "PUT", "PATCH"])
def test_a_collection_that_holds_replicants_is_not_changed_as_a_whole(three: Sites, method: str) -> None:
    three.create(name=f"held {method}")
    before = three.told("site2")
    for target in ("/images", "/images/"):
        answer = three.call("site2", method, target, {})
        assert answer.status == 409, answer.body
        assert "contains replicated resources" in answer.json["detail"]
        assert answer.headers["Cheops-Effect"] == "none"
    assert three.told("site2") == before
    assert three.call("site2", method, "/images", {}, EVERYWHERE).status == 409
    assert three.call("site1", method, "/images", {}, "site2").status == 409


def test_what_holds_no_replicants_is_changed_as_ever(three: Sites) -> None:
    three.direct("site1", "PUT", "/notes/folder", {})
    three.call("site1", "PUT", "/notes/folder/held", {"n": 1}, EVERYWHERE)
    # its own members are its own affair, but to delete it would take the replicant along
    assert three.call("site1", "PUT", "/notes/folder", {"n": 2}).status == 200
    assert three.call("site1", "PATCH", "/notes/folder", {"n": 3}).status == 200
    refused = three.call("site1", "DELETE", "/notes/folder")
    assert refused.status == 409
    assert "held" not in refused.json["detail"]  # nobody has asked the service whether this client may see it
    assert three.call("site1", "DELETE", "/").status == 409
    assert three.call("site1", "PUT", "/notes/other", {}).status == 201
    assert three.call("site1", "DELETE", "/notes/other").status == 204


# -- spellings of a path -----------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["/images/%{0:02X}{1}", "/imag%65s/{2}", "/images/./{2}", "/x/../images/{2}"])
def test_another_spelling_of_a_path_is_the_same_path(three: Sites, spelling: str) -> None:
    name = f"spelled {spelling}"
    meta_id = three.create(name=name)
    own = str(three.replicant("site2", meta_id)["local_id"])
    target = spelling.format(ord(own[0]), own[1:], own)
    answer = three.call("site2", "PATCH", target, {"size": 7}, Cheops_Wait="all")
    assert (answer.status, answer.json["id"]) == (200, meta_id), answer.body
    assert [one["size"] for one in named(three, name)] == [7, 7, 7]
    assert three.call("site2", "GET", target).json["id"] == meta_id


def test_a_name_may_be_spelled_in_several_ways_too(three: Sites) -> None:
    made = three.call("site1", "PUT", "/notes/b%61r%3Aone", {"n": 1}, EVERYWHERE, Cheops_Wait="all")
    assert made.status == 201
    again = three.call("site2", "PUT", "/notes/bar:one", {"n": 2}, Cheops_Wait="all")
    assert again.headers["Cheops-Replicas"].count("status=OK") == 3, again.body
    assert three.replicant("site3", meta_id_of("path", "image", "/notes/bar:one"))["overall"] == "CONVERGED"
    assert three.call("site3", "DELETE", "/notes/bar:one", Cheops_Wait="all").status in (200, 204)


# -- another protocol --------------------------------------------------------------------------------------


@pytest.mark.parametrize("connection", ["Upgrade, HTTP2-Settings", "close"])
def test_a_wish_for_another_protocol_is_no_way_round(three: Sites, connection: str) -> None:
    name = f"upgraded {connection}"
    meta_id = three.create(name=name)
    own = three.replicant("site1", meta_id)["local_id"]
    headers = {"Connection": connection, "Upgrade": "h2c", "HTTP2-Settings": "AAMA"}
    answer = three.call("site1", "PATCH", f"/images/{own}", {"size": 1}, Cheops_Wait="all", **headers)
    assert (answer.status, answer.json["id"]) == (200, meta_id)
    assert [one["size"] for one in named(three, name)] == [1, 1, 1]
    assert three.call("site1", "GET", f"/images/{own}", **headers).json["id"] == meta_id
    websocket = {"Connection": "Upgrade", "Upgrade": "websocket"}  # which this service does not speak there
    assert three.call("site1", "GET", f"/images/{own}", **websocket).json["id"] == meta_id
    changed = three.call("site1", "PATCH", f"/images/{own}", {"size": 2}, Cheops_Wait="all", **websocket)
    assert (changed.status, [one["size"] for one in named(three, name)]) == (200, [2, 2, 2])


def test_a_websocket_may_be_about_a_replicant(three: Sites) -> None:
    meta_id = three.create("site1", PAIR, name="console")
    for site in ("site1", "site2"):
        own = three.replicant(site, meta_id)["local_id"]
        with connected(three.address(site)) as client:
            client.send(
                f"GET /images/{meta_id}/console?of={meta_id} HTTP/1.1",
                "Host: h",
                "Connection: upgrade",
                "Upgrade: echo",
            )
            assert client.head().status == 101
            assert client.until(b"\n").decode() == f"/images/{own}/console?of={own}\n"
            client.raw(b"hello")
            assert client.exactly(5) == b"hello"
    elsewhere = three.call("site3", "GET", f"/images/{meta_id}/console", Connection="upgrade", Upgrade="echo")
    assert elsewhere.status == 409
    assert "no copy" in elsewhere.json["detail"]


def test_a_websocket_with_several_sites_is_refused_with_what_to_do(three: Sites) -> None:
    websocket = {"Connection": "Upgrade", "Upgrade": "websocket"}
    answer = three.call("site1", "GET", "/images", None, EVERYWHERE, **websocket)
    assert (answer.status, answer.headers["Cheops-Effect"]) == (422, "none")
    assert "{image: site1}" in answer.json["detail"]
    assert three.call("site1", "GET", "/images", None, "site1", **websocket).status == 200  # as the service says


# -- from a site that is not involved ----------------------------------------------------------------------


@pytest.mark.parametrize("plane", PLANES)
def test_what_has_a_name_can_be_read_at_a_site_that_has_none_of_it(make_sites: MakeSites, plane: str) -> None:
    sites = make_sites(search=True, plane=plane)
    sites.start()
    assert sites.call("site3", "GET", "/notes/pair").status == 404
    assert sites.call("site1", "PUT", "/notes/pair", {"n": 1}, PAIR, Cheops_Wait="all").status == 201
    until(lambda: sites.call("site3", "GET", "/notes/pair").status == 200, "for the 404 to be forgotten")
    answer = sites.call("site3", "GET", "/notes/pair")
    assert (answer.json["n"], answer.site) in ((1, "site1"), (1, "site2"))
    assert sites.call("site3", "HEAD", "/notes/pair").status == 200
    assert sites.call("site3", "GET", "/notes/other").status == 404
    sites.rig.stop("site1")
    until(lambda: sites.call("site3", "GET", "/notes/pair").site == "site2", "for the other copy")
    assert sites.call("site3", "GET", "/notes/nowhere").status == 404  # though one site cannot be asked


def test_what_has_a_name_can_be_changed_from_a_site_that_has_none_of_it(three: Sites) -> None:
    made = three.call("site1", "PUT", "/notes/pair", {"n": 1}, PAIR, Cheops_Wait="all")
    assert made.status == 201
    patched = three.call("site3", "PATCH", "/notes/pair", {"n": 2}, PAIR, Cheops_Wait="all")
    assert patched.status == 200, patched.body
    assert [three.direct(site, "GET", "/notes/pair").json["n"] for site in ("site1", "site2")] == [2, 2]
    assert three.call("site3", "DELETE", "/notes/pair", None, PAIR, Cheops_Wait="all").status == 204
    assert [three.direct(site, "GET", "/notes/pair").status for site in SITES] == [404] * 3


# -- what would happen -------------------------------------------------------------------------------------


def test_a_dry_run_tells_what_becomes_of_a_request_for_a_replicant(three: Sites) -> None:
    meta_id = three.create("site1", PAIR, name="foretold")
    path = f"/images/{meta_id}"

    def told(site: str, method: str, target: str = path, scope: str | None = None) -> tuple[str, list[str]]:
        answer = three.call(site, method, target, scope=scope, Cheops_Dry_Run="1")
        assert answer.status == 200, answer.body
        return answer.json["replicant"], sorted(answer.json["effect"]["sites"])

    assert told("site1", "PATCH") == (meta_id, ["site1", "site2"])
    assert told("site1", "DELETE", scope="site1") == (meta_id, ["site1", "site2"])
    own = three.replicant("site2", meta_id)["local_id"]
    assert told("site2", "PUT", f"/images/{own}") == (meta_id, ["site1", "site2"])
    assert told("site2", "GET") == (meta_id, ["site2"])
    assert told("site3", "DELETE") == (meta_id, ["site1", "site2"])
    plain = three.call("site1", "GET", "/images/4711", Cheops_Dry_Run="1").json
    assert plain["replicant"] is None
    assert named(three, "foretold")


# -- who asked ---------------------------------------------------------------------------------------------


def test_a_service_is_told_who_asks_whether_it_has_replicas_or_not(three: Sites) -> None:
    three.create(name="asked")
    three.call("site1", "POST", "/servers", {"name": "who asks"}, X_Forwarded_For="6.6.6.6", Forwarded="for=6.6.6.6")
    told = next(one for one in three.told("site1") if "who asks" in one["body"])["headers"]
    assert told["X-Forwarded-For"] == "6.6.6.6, 127.0.0.1"
    assert told["Forwarded"] == "for=6.6.6.6"
    assert told["Via"] == "1.1 cheops-site1"


def test_answers_about_replicants_say_who_passed_them_on(three: Sites) -> None:
    meta_id = three.create("site1", PAIR, name="via")
    for site, via in (("site1", "1.1 cheops-site1"), ("site3", "1.1 cheops-site1, 1.1 cheops-site3")):
        answer = three.call(site, "GET", f"/images/{meta_id}")
        assert ", ".join(answer.headers.get_all("Via") or ()) in (via, via.replace("site1,", "site2,"))
        changed = three.call(site, "PATCH", f"/images/{meta_id}", {"size": 1})
        assert f"cheops-{site}" in ", ".join(changed.headers.get_all("Via") or ())
