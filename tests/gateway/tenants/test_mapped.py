"""Credentials by client (`replicate_as: mapped`), at sites that know the client, do not know it yet, or have stale ones."""

from collections.abc import Iterator

import pytest

from tests.agent.rig import until
from tests.gateway.tenants.service import Token
from tests.gateway.tenants.sites import SITES, TenantSites, running

SERVICE = "mapped-client"
BOTH = "site1 & site2"
ALICE, BOB = Token("site1", "alice"), Token("site1", "bob")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantSites]:
    with running(tmp_path_factory.mktemp("mapped") / "rig", "builtin") as started:
        yield started


def create(sites: TenantSites, service: str, name: str, token: Token, **headers: str) -> str:
    made = sites.call("site1", service, "POST", "/servers", {"server": {"name": name}}, BOTH, token, **headers)
    assert made.status == 201, made.body
    return str(made.json["server"]["id"])


def owner_at(sites: TenantSites, service: str, site: str, name: str) -> list[str]:
    return [one["owner"] for one in sites.state(service)[site]["servers"].values() if one["name"] == name]


def wait_for_effect(sites: TenantSites, meta_id: str, op: str, effect: str) -> None:
    until(lambda: sites.effect("site1", meta_id, op) == effect, f"for {op} to be {effect}")


def test_a_client_that_a_site_does_not_know_waits_for_the_operator(sites: TenantSites) -> None:
    known = sites.rig.folder("site2") / "auth" / "clients" / "bob"
    credentials = known.read_text()
    known.unlink()
    meta_id = create(sites, SERVICE, "waits", BOB)
    waits = until(lambda: sites.replicant("site2", meta_id)["waits"], "for the reason")
    assert "has nothing for this client" in waits
    assert sites.replicant("site1", meta_id)["overall"] == "CONVERGING"
    assert owner_at(sites, SERVICE, "site2", "waits") == []  # nobody else is taken instead
    known.write_text(credentials)
    until(lambda: sites.replicant("site1", meta_id)["overall"] == "CONVERGED")
    assert owner_at(sites, SERVICE, "site2", "waits") == ["bob"]


def test_credentials_that_the_service_refuses_are_asked_for_anew_and_nothing_diverges(sites: TenantSites) -> None:
    fresh = Token("site2", "alice", "second")
    sites.tenants["site2"].revoked.add(Token("site2", "alice").text)
    meta_id = create(sites, SERVICE, "stale", ALICE)
    waits = until(lambda: sites.replicant("site2", meta_id)["waits"], "for the reason")
    assert "answers 401" in waits
    assert sites.replicant("site1", meta_id)["overall"] == "CONVERGING"
    (sites.rig.folder("site2") / "auth" / "clients" / "alice").write_text(f"X-Auth-Token: {fresh.text}\n")
    until(lambda: sites.replicant("site1", meta_id)["overall"] == "CONVERGED")
    assert owner_at(sites, SERVICE, "site2", "stale") == ["alice"]


def test_a_site_without_credentials_waits_and_does_not_diverge(sites: TenantSites) -> None:
    meta_id = create(sites, "bare-client", "bare", ALICE)
    waits = until(lambda: sites.replicant("site2", meta_id)["waits"], "for the reason")
    assert "services.bare-client.auth is not set" in waits
    assert sites.replicant("site1", meta_id)["overall"] == "CONVERGING"


def test_the_operator_deletes_as_the_client_that_created_it(sites: TenantSites) -> None:
    meta_id = create(sites, SERVICE, "removed", BOB, Cheops_Wait="all")
    sites.rig.request("site1", "DELETE", f"/api/v1/resources/{meta_id}")
    until(lambda: not any(owner_at(sites, SERVICE, site, "removed") for site in SITES), "for it to be deleted")


def test_who_a_client_is_must_be_certain(sites: TenantSites) -> None:
    """Two spellings of one header could be read in two ways: the identity service by one, the service by the other."""
    before = sites.state(SERVICE)
    answer = sites.call(
        "site1", SERVICE, "POST", "/servers", {"server": {"name": "two"}}, BOTH, ALICE, x_auth_token=BOB.text
    )
    assert answer.status == 401
    assert "it is not known who the client is" in answer.json["detail"]
    for token in (None, Token("site1", "alice", is_expired=True), Token("site2", "alice")):
        answer = sites.call("site1", SERVICE, "POST", "/servers", {"server": {"name": "none"}}, BOTH, token)
        assert answer.status == 401
    assert sites.state(SERVICE) == before


def test_a_change_waits_for_its_service_but_not_with_other_credentials(sites: TenantSites) -> None:
    """The service of the site that took it is down, and the agent restarts: the client's credentials are gone."""
    for service in ("own-client", "bare-client"):
        meta_id = create(sites, service, "restart", ALICE)
        sites.tenants["site1"].close()
        path, content = f"/servers/{meta_id}", {"server": {"name": "later"}}
        waiting = sites.call("site1", service, "PATCH", path, content, token=ALICE, Prefer="respond-async")
        assert waiting.status == 202
        assert sites.rig.stop("site1") == 0
        sites.restart_service("site1")
        sites.rig.start("site1")
        wait_for_effect(sites, meta_id, waiting.headers["Cheops-Operation"], "void")
        assert not any(owner_at(sites, service, site, "later") for site in SITES)
