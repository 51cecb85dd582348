"""A store that has reached clients.store_size: it says so everywhere, and what it advises helps."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cheops.api.models.operations import SubmitRequest
from cheops.client.target import AgentError
from tests.agent.rig import RefusedByAgentError, Rig, until
from tests.gateway.replicas.sites import Sites, running
from tests.security.clients import configure, local, rig_of


def metric(rig: Rig, name: str, site: str = "site1") -> float:
    lines = rig.request(site, "GET", "/metrics").decode().splitlines()
    (found,) = [line for line in lines if line.startswith(f"{name} ")]
    return float(found.rpartition(" ")[2])


def fill(rig: Rig, *sites: str) -> None:
    """As if the stores were full: they may have less than they already have."""
    for site in sites:
        rig.stop(site)
        configure(rig, site, clients={"store_size": "1B"})
        rig.start(site)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = rig_of(tmp_path, secure=False)
    rig.start()
    yield rig
    rig.close()


def test_a_full_store_says_so_and_still_deletes(rig: Rig) -> None:
    create = SubmitRequest(type="set", command="echo 1 > __ID__", sites="site1", resource_type="file")
    local(rig).submit("a", create)
    assert metric(rig, "cheops_ready") == 1
    fill(rig, "site1")
    with pytest.raises(AgentError, match=r"clients.store_size.*: delete resources") as refused:
        local(rig).submit("b", create)
    assert refused.value.http_status == 507
    with pytest.raises(RefusedByAgentError) as unready:
        rig.request("site1", "GET", "/readyz")
    assert unready.value.status == 503
    assert "clients.store_size" in local(rig).ready().detail
    assert metric(rig, "cheops_ready") == 0
    failed = [check for check in local(rig).check().checks if not check.ok]
    assert [check.name for check in failed] == ["no space is left for clients"]
    assert "delete resources" in failed[0].detail
    assert local(rig).delete("a").operation
    assert local(rig).resource("a").deleted


def test_replicated_resources_are_deleted_while_the_stores_are_full(tmp_path: Path) -> None:
    with running(Sites(tmp_path, ("site1", "site2"))) as sites:
        meta_id = sites.create("site1", "site1 & site2", name="one")
        fill(sites.rig, "site1", "site2")
        until(lambda: sites.replicant("site1", meta_id), "for the copy")
        refused = sites.call("site1", "POST", "/images", {"name": "two"}, "site1 & site2")
        assert (refused.status, b"clients.store_size" in refused.body) == (507, True)
        assert [item["name"] for item in sites.images("site1")] == ["one"]
        until(sites._all_up, "for the sites to see each other")
        deleted = sites.call("site2", "DELETE", f"/images/{meta_id}", Cheops_Wait="all")
        assert deleted.status in (200, 204), deleted.body
        until(lambda: not sites.images("site1") and not sites.images("site2"), "for the deletion")
        usage = json.loads(sites.rig.request("site1", "GET", "/api/v1/status"))["space"]
        assert usage["replicas"] > 0
