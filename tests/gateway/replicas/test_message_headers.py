"""Headers of replicated requests and of their answers: the Host that services get, and what comes back to clients."""

import json
from typing import Any

import pytest

from tests.agent.rig import until
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, Sites

PUBLIC = "s3.example.org"


def host_at(sites: Sites, site: str, target: str) -> str:
    """The Host with which the service of a site was asked to change something, once it was."""

    def asked() -> list[dict[str, Any]]:
        return [one for one in sites.told(site) if one["path"] == target]

    until(asked, f"for {target} at {site}")
    return str(asked()[0]["headers"]["Host"])


def test_the_service_that_decides_gets_the_host_that_the_client_sent(three: Sites) -> None:
    """S3's signatures cover it."""
    answer = three.call("site1", "PUT", "/notes/signed", {"a": 1}, EVERYWHERE, Host=PUBLIC, Cheops_Wait="all")
    assert answer.status == 201
    assert host_at(three, "site1", "/notes/signed") == PUBLIC
    assert host_at(three, "site2", "/notes/signed") == f"127.0.0.1:{three.own('site2')}"


@pytest.mark.parametrize("host", ["client", "service", "here.example.org:9000"])
def test_the_host_of_replicated_requests_can_be_set(make_sites: MakeSites, host: str) -> None:
    sites = make_sites("site1", "site2", host=host)
    sites.start()
    answer = sites.call("site1", "PUT", "/notes/a", {"a": 1}, "site1 & site2", Host=PUBLIC, Cheops_Wait="all")
    assert answer.status == 201
    for site in ("site1", "site2"):
        expected = {"client": PUBLIC, "service": f"127.0.0.1:{sites.own(site)}"}.get(host, host)
        assert host_at(sites, site, "/notes/a") == expected


def test_a_client_gets_all_headers_of_the_service_and_the_log_no_secrets(three: Sites) -> None:
    wanted = {
        "Docker-Content-Digest": "sha256:1",
        "Access-Control-Allow-Origin": "*",
        "X-Subject-Token": "token-of-the-client",
        "Set-Cookie": "session=of-the-client",
        "Content-MD5": "of-a-body-whose-ids-are-translated",
        "Cheops-Site": "elsewhere",
    }
    answer = three.call("site1", "PUT", "/notes/b", {"a": 1}, EVERYWHERE, X_Answer=json.dumps(wanted))
    assert answer.status == 201
    assert answer.headers["Docker-Content-Digest"] == "sha256:1"
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert answer.headers["X-Subject-Token"] == "token-of-the-client"
    assert answer.headers["Set-Cookie"] == "session=of-the-client"
    assert answer.headers["Content-MD5"] is None
    assert answer.headers.get_all("Cheops-Site") == ["site1"]
    assert len(answer.headers.get_all("Date") or ()) == 1
    (resource,) = (
        one["id"]
        for one in json.loads(three.rig.request("site1", "GET", "/api/v1/replicants"))["replicants"]
        if one["local_id"] == "b"
    )
    path = f"/api/v1/resources/{resource}/operations/{answer.headers['Cheops-Operation']}"
    kept = json.dumps(json.loads(three.rig.request("site1", "GET", path))["replies"])
    assert "sha256:1" in kept
    assert "of-the-client" not in kept
