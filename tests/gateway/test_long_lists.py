"""Long lists of three services: each item once, in bounded memory, at the pace of the client.

A hundred thousand items per site with CHEOPS_TEST_LIST_ITEMS=100000, as in `make soak`.
"""

import contextlib
import http.client
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator

import pytest

from tests.agent.rig import until
from tests.gateway.list_service import Given, ListService, Respond, streamed
from tests.gateway.raw import resident_bytes
from tests.gateway.stage import Stage

SITES = ("site1", "site2", "site3")
ITEMS = int(os.environ.get("CHEOPS_TEST_LIST_ITEMS", "20000"))
MIB = 1024 * 1024
GROWTH_BYTES = 24 * MIB  # of the agent, whatever the lists have: three parts' beginnings, and socket buffers


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(tmp_path_factory.mktemp("long") / "rig", SITES, ("image",))
    try:
        stage.rig.start()
        dry = {"Cheops-Dry-Run": "1"}
        until(lambda: all(one["up"] for one in stage.ask("site1", scope=" % ".join(SITES), headers=dry).json["sites"]))
        yield stage
    finally:
        stage.rig.close()


def list_of(site: str, count: int, size: int) -> Iterator[dict[str, object]]:
    for number in range(count):
        yield {"id": f"{site}-{number}", "name": "x" * size, "tags": [], "links": [{"rel": "self", "href": "/x"}]}


def respond_with(site: str, count: int, size: int = 200) -> Given:
    return Given(streamed(list_of(site, count, size)), headers={"Content-Type": "application/json"})


@contextlib.contextmanager
def opened(stage: Stage) -> Iterator[http.client.HTTPResponse]:
    with contextlib.closing(http.client.HTTPConnection(*stage.address("site1"), timeout=120)) as connection:
        connection.request("GET", "/images", headers={"Scope": " % ".join(SITES)})
        with connection.getresponse() as response:
            yield response


def services_with(stage: Stage, respond: Callable[[str], Given], patience_s: float = 30) -> list[ListService]:
    """One at each site; the first is always patient."""

    def at(site: str) -> Respond:
        return lambda _asked: respond(site)

    return [ListService(stage.own(site), at(site), patience_s if site != SITES[0] else 30) for site in SITES]


def test_a_long_list_of_three_sites(three: Stage) -> None:
    services = services_with(three, lambda site: respond_with(site, ITEMS))
    mark = b'{"id": "'
    try:
        assert len(three.ask("site1", "/images", "site2").json) == ITEMS  # all modules are loaded now
        before = most = resident_bytes(three.pid("site1"))
        seen, size, rest = 0, 0, b""
        with opened(three) as response:
            assert response.headers["Cheops-Parts"] == "site1; status=200, site2; status=200, site3; status=200"
            while piece := response.read(MIB):
                data = rest + piece
                seen += data.count(mark)
                rest = data[-len(mark) + 1 :]  # a mark may be cut
                size += len(piece)
                most = max(most, resident_bytes(three.pid("site1")))
        assert seen == 3 * ITEMS
        assert rest.endswith(b"}]")
        assert most - before < GROWTH_BYTES, f"{(most - before) / MIB:.0f} MiB for {size / MIB:.0f} MiB"
    finally:
        for service in services:
            service.close()


def test_a_client_that_reads_slowly_gets_all(three: Stage) -> None:
    """The services of the later parts lose their patience while the first one is read. They are asked again."""
    asked: list[str] = []

    def respond(site: str) -> Given:
        asked.append(site)
        return respond_with(site, 10_000, 1_500)

    services = services_with(three, respond, patience_s=1)
    try:
        with opened(three) as response:
            pieces = [response.read(MIB)]
            time.sleep(4)
            while piece := response.read(MIB):
                pieces.append(piece)
        found = [item["id"] for item in json.loads(b"".join(pieces))]
        assert found == [f"{site}-{number}" for site in SITES for number in range(10_000)]
        assert asked.count("site1") == 1
        assert asked.count("site2") == 2
    finally:
        for service in services:
            service.close()


def test_a_list_that_changed_before_it_was_asked_again_breaks_off(three: Stage) -> None:
    turn = itertools.count()

    def cut(_site: str) -> Given:
        items = streamed(iter([{"id": f"{next(turn)}-{number}", "name": "x" * 200} for number in range(5_000)]))
        return Given(itertools.islice(items, 20), headers={"Content-Type": "application/json"}, is_cut=True)

    services = services_with(three, cut)
    try:
        with opened(three) as response, pytest.raises((http.client.IncompleteRead, ConnectionError)):
            response.read()
        assert [len(service.asked) for service in services] == [2, 1, 1]
    finally:
        for service in services:
            service.close()
