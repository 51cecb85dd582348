"""Replicas behind HAProxy: no local id of one gets out, and no change reaches only one, whatever was a flow."""

import json
import threading
from collections.abc import Iterator

import pytest

from tests.agent.rig import until
from tests.gateway.replicas.sites import Sites, running

TWO = ("site1", "site2")
HERE = "site1"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    with running(Sites(tmp_path_factory.mktemp("fast-replicas") / "rig", TWO, plane="haproxy")) as sites:
        yield sites


def fast(sites: Sites, site: str) -> int:
    return int(json.loads(sites.rig.request(site, "GET", "/api/v1/flows"))["fast"])


def is_fast(sites: Sites, site: str, target: str, scope: str | None = None) -> bool:
    before = fast(sites, site)
    assert sites.call(site, "GET", target, scope=scope).status == 200
    return fast(sites, site) > before


def test_a_replica_that_comes_to_be_while_lists_are_read(two: Sites) -> None:
    """Everything is a flow before; from the first replica on nothing that is served here is."""
    for scope in (None, HERE):
        until(lambda s=scope: is_fast(two, "site1", "/images", s), "for it to be a flow")  # type: ignore[misc]
    until(lambda: is_fast(two, "site2", "/images", HERE), "for it to be a flow at the other site")
    seen: list[tuple[str, str]] = []
    is_created = threading.Event()
    is_done = threading.Event()

    def read() -> None:
        while not is_done.is_set():
            for site, scope in (("site1", None), ("site1", HERE), ("site2", HERE)):
                counts = is_created.is_set()
                found = two.call(site, "GET", "/images", scope=scope).json["images"]
                seen.extend((str(one["id"]), one["name"]) for one in found if counts)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        meta_id = two.create("site2", "site1 & site2", name="arrives")
        is_created.set()
        until(lambda: (meta_id, "arrives") in seen, "for it to be listed")
    finally:
        is_done.set()
        reader.join()
    assert {id_ for id_, name in seen if name == "arrives"} == {meta_id}


@pytest.fixture(scope="module")
def replica(two: Sites) -> tuple[str, str]:
    """The meta-id of one, and its local id at site1."""
    meta_id = two.create("site2", "site1 & site2", name="mine")
    return meta_id, str(two.replicant("site1", meta_id)["local_id"])


@pytest.mark.parametrize(("site", "scope"), [("site1", None), ("site1", HERE), ("site2", HERE)])
@pytest.mark.parametrize("by", ["meta-id", "local id", "query", "list"])
def test_no_local_id_of_a_replica_gets_out(
    by: str, site: str, scope: str | None, two: Sites, replica: tuple[str, str]
) -> None:
    meta_id, local_id = replica
    target = {
        "meta-id": f"/images/{meta_id}",
        "local id": f"/images/{local_id}",
        "query": f"/images?id={meta_id}",
        "list": "/images",
    }[by]
    answer = two.call(site, "GET", target, scope=scope)
    assert answer.status == 200
    mine = answer.json.get("images", [answer.json])
    assert [str(one["id"]) for one in mine if one["name"] == "mine"] == [meta_id]


@pytest.mark.parametrize("by", ["meta-id", "local id"])
@pytest.mark.parametrize("scope", [None, HERE])
def test_a_change_reaches_every_replica(by: str, scope: str | None, two: Sites, replica: tuple[str, str]) -> None:
    id_ = replica[0] if by == "meta-id" else replica[1]
    text = f"changed by {by} {scope}"
    answer = two.call("site1", "PATCH", f"/images/{id_}", {"text": text}, scope, Cheops_Wait="all")
    assert answer.status == 200
    for site in TWO:
        until(
            lambda s=site: text in [one.get("text") for one in two.images(s)],  # type: ignore[misc]
            f"for the change at {site}",
        )


def test_what_goes_to_another_site_is_still_fast(two: Sites, replica: tuple[str, str]) -> None:
    del replica
    assert not is_fast(two, "site1", "/images")
    until(lambda: is_fast(two, "site1", "/images", "site2"), "for it to be a flow")
