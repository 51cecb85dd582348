"""Lists over several sites: copies of one replicant are one item, whatever each site's service calls them."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.gateway.replicas.sites import SITES, Sites, running
from tests.gateway.stage import Answer

ALL = "site1 % site2 % site3"


@pytest.fixture(scope="module", params=["builtin", "haproxy"])
def three(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with running(Sites(tmp_path_factory.mktemp("listed") / "rig", plane=str(request.param))) as sites:
        yield sites


def listed(answer: Answer) -> list[dict[str, Any]]:
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json["images"]
    return found


def test_replicas_are_one_item(three: Sites) -> None:
    shared = three.create("site1", "site1 & site3", name="shared")
    everywhere = three.create("site2", name="everywhere")
    for site in SITES:
        three.direct(site, "POST", "/images", {"name": f"own of {site}"})
        three.direct(site, "POST", "/images", {"name": "alike"})
    for site in SITES:
        answer = three.call(site, "GET", "/images", scope=ALL, Cheops_Annotate="site")
        found = listed(answer)
        assert [item["id"] for item in found].count(shared) == 1
        assert [item["id"] for item in found].count(everywhere) == 1
        assert [item["name"] for item in found].count("alike") == 3
        where = {item["name"]: item["cheops_sites"] for item in found if item["name"] != "alike"}
        assert where["everywhere"] == list(SITES)
        assert where["own of site2"] == ["site2"]
        # A site without a copy knows only where it found it.
        assert where["shared"] == (["site1"] if site == "site2" else ["site1", "site3"])
    names = [item["name"] for item in listed(three.call("site2", "GET", "/images", scope="site3 % site1"))]
    assert names.index("shared") < names.index("own of site3") < names.index("own of site1")


def test_an_item_by_its_meta_id(three: Sites) -> None:
    meta_id = three.create("site1", "site1 & site3", name="one of two")
    for site in SITES:
        answer = three.call(site, "GET", f"/images/{meta_id}", scope=ALL)
        assert (answer.status, answer.json["id"], answer.site) == (200, meta_id, "site1")
        assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=404, site3; status=200"
    three.call("site1", "DELETE", f"/images/{meta_id}", Cheops_Wait="all")
    assert three.call("site1", "GET", f"/images/{meta_id}", scope=ALL).status == 404


def test_a_replica_that_is_missing_at_its_first_site_is_listed_at_another(three: Sites) -> None:
    meta_id = three.create(name="lost at site1")
    local = three.replicant("site1", meta_id)["local_id"]
    three.direct("site1", "DELETE", f"/images/{local}")
    found = listed(three.call("site1", "GET", "/images", scope=ALL))
    assert [item["id"] for item in found].count(meta_id) == 1


def test_what_clients_name(three: Sites) -> None:
    """The same name is one item only where it is known to be a replicant, and only at its sites."""
    assert three.call("site1", "PUT", "/notes/shared", {"text": "a"}, "site1 & site2", Cheops_Wait="all").status < 300
    for site in SITES:
        three.direct(site, "PUT", "/notes/alike", {"text": "a"})
    three.direct("site3", "PUT", "/notes/shared", {"text": "another"})
    answer = three.call("site1", "GET", "/notes", scope=ALL)
    assert answer.status == 200, answer.body
    found = answer.json["notes"]
    names = [item["id"] for item in found]
    assert (names.count("shared"), names.count("alike")) == (2, 3)
    answer = three.call("site1", "GET", "/notes/shared", scope="site1 % site2")
    assert (answer.status, answer.json["text"]) == (200, "a")
    assert three.call("site1", "GET", "/notes/shared", scope=ALL).status == 406
