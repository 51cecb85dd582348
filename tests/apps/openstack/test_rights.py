"""Nobody gets more of a real OpenStack through Cheops than by a direct call.

Glance answers 404 for images that a project may not see, 401 without a valid token of its own site. Each test compares
what the two glances really hold at its end, as their administrators see it.
"""

from typing import Any
from uuid import uuid4

import pytest

from tests.agent.rig import until
from tests.apps.openstack.cloud import ADMIN, Cloud, login_body
from tests.apps.openstack.conftest import BOTH, SITES, CloudSites, new_image

pytestmark = pytest.mark.timeout(600)  # the clouds start within the first test
NOBODY = "gAAAAABnotATokenOfAnySite"


def unique(name: str) -> str:
    return f"{name}-{uuid4().hex[:8]}"


def tokens(clouds: dict[str, Cloud], user: str) -> dict[str, str]:
    return {site: clouds[site].token(user) for site in SITES}


def held(clouds: dict[str, Cloud], name: str) -> list[str]:
    """The sites whose glance holds an image of this name, for whatever project."""
    return [site for site in SITES if name in clouds[site].images()]


def created(sites: CloudSites, token: str, name: str, service: str = "image") -> str:
    """The meta-id of a new image at both sites."""
    answer = sites.call("site1", "POST", "/v2/images", new_image(name), service=service, scope=BOTH, token=token)
    assert answer.status == 201, answer.body
    until(lambda: held(sites.clouds, name) == list(SITES), f"for {name} at both sites")
    found: str = answer.json["id"]
    return found


def bad_tokens(clouds: dict[str, Cloud]) -> dict[str, str | None]:
    """What site1 must refuse."""
    expired = clouds["site1"].token("red")
    clouds["site1"].revoke(expired)
    return {
        "no token": None,
        "an invented token": NOBODY,
        "a revoked token": expired,
        "a token of site2": clouds["site2"].token("red"),
        "an administrator's token of site2": clouds["site2"].token(ADMIN),
    }


@pytest.mark.parametrize("service", ["image", "common"])
def test_who_has_no_valid_token_of_the_site_changes_nothing_anywhere(
    sites: CloudSites, clouds: dict[str, Cloud], service: str
) -> None:
    name = unique("kept")
    image = created(sites, clouds["site1"].token("red"), name, service)
    for what, token in bad_tokens(clouds).items():
        other = unique("never")
        calls: list[tuple[str, str, Any]] = [
            ("POST", "/v2/images", new_image(other)),
            ("PUT", f"/v2/images/{image}/tags/stolen", None),
            ("DELETE", f"/v2/images/{image}", None),
        ]
        for method, target, body in calls:
            answer = sites.call("site1", method, target, body, service=service, scope=BOTH, token=token)
            assert answer.status == 401, (what, method, answer.status, answer.body)
            answer = sites.call("site1", method, target, body, service=service, token=token)
            assert answer.status == 401, (what, method, "without a scope", answer.status, answer.body)
        assert held(clouds, other) == [], what
    for site in SITES:
        assert clouds[site].images()[name]["tags"] == []


@pytest.mark.parametrize("service", ["image", "common"])
def test_another_project_sees_and_deletes_no_copy(sites: CloudSites, clouds: dict[str, Cloud], service: str) -> None:
    name = unique("red")
    image = created(sites, clouds["site1"].token("red"), name, service)
    blue = tokens(clouds, "blue")
    for site in SITES:
        for scope in (None, site, BOTH):
            for method in ("GET", "DELETE"):
                answer = sites.call(site, method, f"/v2/images/{image}", service=service, scope=scope, token=blue[site])
                assert answer.status == 404, (site, scope, method, answer.body)
                assert name.encode() not in answer.body
    assert held(clouds, name) == list(SITES)


def test_a_copy_belongs_to_the_project_of_its_client_at_each_site(sites: CloudSites, clouds: dict[str, Cloud]) -> None:
    name, red = unique("mine"), tokens(clouds, "red")
    image = created(sites, red["site1"], name)
    for site in SITES:
        own = clouds[site].images()[name]
        assert own["owner"] == clouds[site].projects["red"]
        # Its owner sees it there, by a direct call and by its meta-id.
        assert clouds[site].image("GET", f"/v2/images/{own['id']}", token=red[site]).status == 200
        answer = sites.call(site, "GET", f"/v2/images/{image}", token=red[site])
        assert (answer.status, answer.json["name"]) == (200, name), answer.body
    # And can delete it from there, for both sites.
    assert sites.call("site2", "DELETE", f"/v2/images/{image}", token=red["site2"]).status == 204
    until(lambda: held(clouds, name) == [], "for both copies to be gone")


def test_with_own_credentials_copies_belong_to_the_site(sites: CloudSites, clouds: dict[str, Cloud]) -> None:
    name = unique("common")
    created(sites, clouds["site1"].token("red"), name, "common")
    assert clouds["site1"].images()[name]["owner"] == clouds["site1"].projects["red"]
    assert clouds["site2"].images()[name]["owner"] not in clouds["site2"].projects.values()


def test_a_request_that_is_sent_on_has_the_rights_of_its_client(sites: CloudSites, clouds: dict[str, Cloud]) -> None:
    name, red = unique("there"), tokens(clouds, "red")
    made = clouds["site2"].image("POST", "/v2/images", new_image(name), red["site2"])
    target = f"/v2/images/{made.json['id']}"
    direct = {"red of site2": red["site2"], "red of site1": red["site1"], "nobody": None, "blue": None}
    direct["blue"] = clouds["site2"].token("blue")
    for who, token in direct.items():
        for method in ("GET", "DELETE") if who != "red of site2" else ("GET",):
            expected = clouds["site2"].image("GET", target, token=token).status
            assert sites.call("site1", method, target, scope="site2", token=token).status == expected, (who, method)
        # Without forwarding, everyone is anonymous there.
        assert sites.call("site1", "GET", target, service="common", scope="site2", token=token).status == 401, who
    assert held(clouds, name) == ["site2"]


def test_a_client_that_a_site_does_not_know_waits_there_and_nothing_runs_as_another(
    sites: CloudSites, clouds: dict[str, Cloud]
) -> None:
    name, passwords = unique("waits"), sites.rig.folder("site2") / "passwords"
    kept = (passwords / "blue").read_text()
    (passwords / "blue").unlink()
    blue = clouds["site1"].token("blue")
    answer = sites.call("site1", "POST", "/v2/images", new_image(name), scope=BOTH, token=blue, wait="first")
    try:
        assert answer.status == 201, answer.body
        status = f"/api/v1/resources/{answer.json['id']}/status"
        until(lambda: b"no credentials" in sites.rig.request("site2", "GET", status), "for site2 to say what it lacks")
        assert held(clouds, name) == ["site1"]
    finally:
        (passwords / "blue").write_text(kept)
    until(lambda: held(clouds, name) == list(SITES), "for the copy once site2 knows the client")
    assert clouds["site2"].images()[name]["owner"] == clouds["site2"].projects["blue"]


def test_a_login_is_never_replicated_and_no_secret_is_written_down(sites: CloudSites, clouds: dict[str, Cloud]) -> None:
    password = clouds["site1"].password("red")
    body = login_body("red", password, "red")
    refused = sites.call("site1", "POST", "/v3/auth/tokens", body, service="identity", scope=BOTH)
    assert refused.status == 422, refused.body
    logged_in = sites.call("site1", "POST", "/v3/auth/tokens", body, service="identity", scope="site1")
    assert logged_in.status == 201, logged_in.body
    token = logged_in.headers["X-Subject-Token"]
    created(sites, token, unique("secretly"))
    # A new user has a password in its body: it cannot be replicated without being written down.
    user = {"user": {"name": unique("eve"), "password": "a very planted secret"}}
    admin = clouds["site1"].token(ADMIN)
    answer = sites.call("site1", "POST", "/v3/users", user, service="identity", scope=BOTH, token=admin)
    assert answer.status == 422, answer.body
    planted = [secret.encode() for secret in (password, token, admin, "a very planted secret")]
    for path, content in sites.written():
        assert not [secret for secret in planted if secret in content], path
