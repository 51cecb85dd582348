"""Services of different kinds: random ids, ids in the Location header, ids that refer to other collections."""

from collections.abc import Iterator

import pytest

from cheops.backends.http.sender import below_base
from cheops.config.services import ServiceConfig
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites, running
from tests.support.command import run_process


@pytest.fixture(scope="module")
def random(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Services that give random ids, of which only the Location header is believed."""
    made = Sites(tmp_path_factory.mktemp("random") / "rig", id="Location")
    with running(made, "--ids", "random") as sites:
        yield sites


def test_a_random_id_is_recognised_wherever_it_stands(random: Sites) -> None:
    image = random.create(name="image")
    answer = random.call("site1", "POST", "/servers", {"name": "s", "image": image}, EVERYWHERE, Cheops_Wait="all")
    assert answer.status == 201
    assert answer.json["image"] == image  # as it came back from the service, where it was the local id
    for site in SITES:
        assert random.call(site, "GET", f"/servers/{answer.json['id']}").json["image"] == image
        (server,) = random.call(site, "GET", "/servers").json["servers"]
        assert (server["id"], server["image"]) == (answer.json["id"], image)
        assert random.images(site, "servers")[0]["image"] == random.images(site)[0]["id"]


def test_a_body_with_the_local_id_of_one_site_is_right_at_all(random: Sites) -> None:
    image = random.create(name="by-local")
    own = random.replicant("site2", image)["local_id"]
    answer = random.call("site2", "POST", "/servers", {"name": "l", "image": own}, EVERYWHERE, Cheops_Wait="all")
    assert (answer.status, answer.json["image"]) == (201, image)
    for site in SITES:
        (server,) = [one for one in random.images(site, "servers") if one["name"] == "l"]
        assert server["image"] == random.replicant(site, image)["local_id"]


def test_numbers_that_refer_to_a_collection_need_to_be_told(tmp_path_factory: pytest.TempPathFactory) -> None:
    made = Sites(tmp_path_factory.mktemp("refs") / "rig", ("site1", "site2"), refs={"image": "/images"})
    with running(made) as sites:
        image = sites.create("site1", "site1 & site2", name="image")
        body = {"name": "s", "image": image}
        answer = sites.call("site1", "POST", "/servers", body, "site1 & site2", Cheops_Wait="all")
        assert (answer.status, answer.json["image"]) == (201, image)
        assert sites.images("site2", "servers")[0]["image"] == sites.images("site2")[0]["id"]


def test_what_is_below_a_replicant_may_be_a_replicant_of_its_own(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    items = {"/servers/*/disks": "/servers/*/disks/{id}"}
    made = Sites(tmp_path_factory.mktemp("items") / "rig", ("site1", "site2"), items=items)
    with running(made) as sites:
        server = sites.call("site1", "POST", "/servers", {"name": "s"}, "site1 & site2", Cheops_Wait="all").json["id"]
        # without a scope: at the sites of what it is part of
        path = f"/servers/{server}/disks"
        disk = sites.call("site2", "POST", path, {"name": "d"}, Cheops_Wait="all")
        assert disk.status == 201, disk.body
        meta_id = disk.json["id"]
        assert disk.headers["Location"] == disk.json["self"] == f"{path}/{meta_id}"
        changed = sites.call("site1", "PATCH", f"{path}/{meta_id}", {"size": 9}, Cheops_Wait="all")
        assert (changed.status, changed.json["id"]) == (200, meta_id)
        for site in ("site1", "site2"):
            (listed,) = sites.call(site, "GET", path).json[f"servers/{_local(sites, site, server)}/disks"]
            assert (listed["id"], listed["size"]) == (meta_id, 9)
            (own,) = sites.images(site, "servers")
            assert [one["size"] for one in own["disks"].values()] == [9]
        assert sites.call("site1", "DELETE", f"{path}/{meta_id}", Cheops_Wait="all").status == 204
        assert [sites.images(site, "servers")[0]["disks"] for site in ("site1", "site2")] == [{}, {}]
        part = sites.call("site1", "POST", path, {"name": "e"}, Cheops_Wait="all").json["id"]
        assert sites.call("site2", "DELETE", f"/servers/{server}", Cheops_Wait="all").status == 204
        for site, method in (("site1", "GET"), ("site2", "GET"), ("site1", "PATCH"), ("site2", "DELETE")):
            gone = sites.call(site, method, f"{path}/{part}", {"size": 1})
            assert gone.status == 404, (site, method, gone.body)
            assert server in gone.json["detail"]


def _local(sites: Sites, site: str, meta_id: str) -> str:
    return str(sites.replicant(site, meta_id)["local_id"])


def test_urls_of_a_service_below_a_path() -> None:
    service = ServiceConfig("image", "http://127.0.0.1:9292/api")
    assert below_base(service, "http://127.0.0.1:9292/api/images/5") == "/images/5"
    assert below_base(service, "/api/images/5") == "/images/5"
    assert below_base(service, "/apis/images/5") == "/apis/images/5"


def test_the_command_line_shows_replicants(random: Sites) -> None:
    meta_id = random.create(name="shown")
    url = random.rig.url("site1")
    listed = run_process("get", "replicants", "--url", url, "-o", "wide").out
    row = next(line.split() for line in listed.splitlines() if line.startswith(meta_id))
    local_id = random.replicant("site1", meta_id)["local_id"]
    assert row[:4] == [meta_id, "image", local_id, "CONVERGED"]
    described = run_process("describe", "replicant", meta_id, "--url", url).out
    assert f"/images/{meta_id}" in described
    assert "site1, site2, site3" in described
