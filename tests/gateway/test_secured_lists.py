"""Reads over several sites with security on: sites that go down in the middle, and credentials that stay here."""

import http.client
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.agent.rig import until
from tests.gateway.list_service import Asked, Given, ListService, as_json, problem, streamed, things, whole
from tests.gateway.stage import Stage, both_planes

plane = both_planes
SITES = ("site1", "site2", "site3")
ALL = " % ".join(SITES)


Three = tuple[Stage, dict[str, ListService]]


@pytest.fixture
def three(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[Three]:
    base = tmp_path_factory.mktemp("secured") / "rig"
    stage = Stage(base, SITES, ("image",), secure=True, plane=plane, forward="none")
    services = {site: ListService(stage.own(site), whole(things(site, 2))) for site in SITES}
    try:
        stage.rig.start()
        until(lambda: stage.ask("site1", "/things", ALL, headers={"Cheops-Wait": "all"}).status == 200)
        yield stage, services
    finally:
        stage.rig.close()
        for service in services.values():
            service.close()


def test_rights_and_a_site_that_is_cut_off(three: Three) -> None:
    stage, services = three

    def for_known_clients(site: str) -> None:
        def respond(asked: Asked) -> Given:
            return as_json(things(site, 2)) if asked.headers["Authorization"] == "secret" else problem(401)

        services[site].respond = respond

    for site in SITES:
        for_known_clients(site)
    answer = stage.ask("site1", "/things", ALL, headers={"Authorization": "secret"})
    assert (answer.status, len(answer.json)) == (200, 2)  # with `forward: none`, the others ask who it is
    assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=401, site3; status=401"
    assert stage.ask("site2", "/things", ALL).status == 401

    def endless(_asked: Asked) -> Given:
        return Given(
            streamed({"id": number, "text": "x" * 500} for number in iter(int, 1)),
            headers={"Content-Type": "application/json"},
        )

    services["site1"].respond = whole(things("site1", 2))
    services["site2"].respond = endless
    with closing(http.client.HTTPConnection(*stage.address("site1"), timeout=60)) as connection:
        connection.request("GET", "/things", headers={"Scope": "site1 % site2"})
        response = connection.getresponse()
        assert response.status == 200
        response.read(1_000_000)
        stage.rig.kill("site2")  # the list that the client reads does not end as if it were complete
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
    until(lambda: "site2; status=503" in stage.ask("site1", "/things", ALL).headers["Cheops-Parts"])
    answer = stage.ask("site1", "/things", ALL)
    assert (answer.status, [item["id"] for item in answer.json]) == (200, ["site1-0", "site1-1"])
    assert answer.headers["Cheops-Parts"] == "site1; status=200, site2; status=503, site3; status=401"
    answer = stage.ask("site1", "/things", ALL, headers={"Cheops-Wait": "all"})
    assert (answer.status, "site2 (down) and site3 (401)" in answer.json["detail"]) == (503, True)
