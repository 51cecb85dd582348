"""Credentials by client (`replicate_as: mapped`), at sites that know the client, do not know it yet, or have stale ones."""

from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.agent.rig import RefusedByAgentError, until
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


def reason(sites: TenantSites, meta_id: str) -> str:
    """Why site2 has not run it yet, as soon as site2 knows it."""

    def waits() -> str:
        with suppress(RefusedByAgentError):
            return str(sites.replicant("site2", meta_id)["waits"] or "")
        return ""

    return str(until(waits, "for the reason"))


def wait_for_effect(sites: TenantSites, meta_id: str, op: str, effect: str) -> None:
    until(lambda: sites.effect("site1", meta_id, op) == effect, f"for {op} to be {effect}")


def test_a_client_that_a_site_does_not_know_waits_for_the_operator(sites: TenantSites) -> None:
    known = sites.rig.folder("site2") / "auth" / "clients" / "bob"
    credentials = known.read_text()
    known.unlink()
    meta_id = create(sites, SERVICE, "waits", BOB)
    waits = reason(sites, meta_id)
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
    waits = reason(sites, meta_id)
    assert "answers 401" in waits
    assert sites.replicant("site1", meta_id)["overall"] == "CONVERGING"
    (sites.rig.folder("site2") / "auth" / "clients" / "alice").write_text(f"X-Auth-Token: {fresh.text}\n")
    until(lambda: sites.replicant("site1", meta_id)["overall"] == "CONVERGED")
    assert owner_at(sites, SERVICE, "site2", "stale") == ["alice"]


def test_a_site_without_credentials_waits_and_does_not_diverge(sites: TenantSites) -> None:
    meta_id = create(sites, "bare-client", "bare", ALICE)
    waits = reason(sites, meta_id)
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


def test_a_site_without_a_copy_does_not_decide_about_it(sites: TenantSites) -> None:
    """It has nothing that it could delete, so its service has nothing to refuse: a site that has a copy is asked."""
    sites.tenants["site2"].revoked.add(Token("site2", "admin").text)
    meta_id = create(sites, "own-client", "absent", ALICE)
    reason(sites, meta_id)
    path = f"/servers/{meta_id}"
    for token in (None, Token("site2", "bob"), Token("site2", "alice")):
        answer = sites.call("site2", "own-client", "DELETE", path, token=token)
        assert (answer.status, answer.site) == (401, "site1"), answer.body
        answer = sites.call("site1", "own-client", "DELETE", path, scope="site2", token=token)
        assert answer.status in (401, 503), answer.body
    assert owner_at(sites, "own-client", "site1", "absent") == ["alice"]
    deleted = sites.call("site2", "own-client", "DELETE", path, token=ALICE)
    assert deleted.status == 204
    until(lambda: not owner_at(sites, "own-client", "site1", "absent"), "for it to be deleted")
    sites.tenants["site2"].revoked.clear()


def test_a_key_does_not_show_what_another_client_was_answered(sites: TenantSites) -> None:
    content, key = {"server": {"name": "with a key"}}, {"Idempotency_Key": "k-1"}
    made = sites.call("site1", "own-client", "POST", "/servers", content, BOTH, ALICE, **key)
    again = sites.call("site1", "own-client", "POST", "/servers", content, BOTH, ALICE, **key)
    assert (made.status, again.status, again.json["server"]["id"]) == (201, 201, made.json["server"]["id"])
    assert again.json["server"]["adminPass"] == "(secret: not kept)"
    for token, status in ((None, 401), (BOB, 404), (Token("site2", "alice"), 401)):
        answer = sites.call("site1", "own-client", "POST", "/servers", content, BOTH, token, **key)
        assert (answer.status, b"with a key" in answer.body) == (status, False), answer.body


def test_a_client_cannot_adopt_what_is_another_ones_elsewhere(sites: TenantSites) -> None:
    for policy in ("adopt", "overwrite"):
        answer = sites.call(
            "site1", "own-client", "POST", "/servers", {"server": {}}, BOTH, ALICE, Cheops_Exists=policy
        )
        assert answer.status == 403
        assert "services.own-client.exists is 'abort'" in answer.json["detail"]
