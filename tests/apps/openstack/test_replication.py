"""keystone and glance with `rules: openstack`: what their own services have at both sites."""

import json
from typing import Any

from tests.agent.rig import until
from tests.apps.openstack.cloud import ADMIN, Cloud, call, with_token
from tests.apps.openstack.conftest import BOTH, SITES, CloudSites, new_image

PATCH = "application/openstack-images-v2.1-json-patch"


def status_of(sites: CloudSites, site: str, meta_id: str) -> str:
    found = json.loads(sites.rig.request(site, "GET", "/api/v1/replicants"))["replicants"]
    return str(next(one["overall"] for one in found if one["id"] == meta_id))


def converged(sites: CloudSites, meta_id: str) -> None:
    for site in SITES:
        until(lambda s=site: status_of(sites, s, meta_id) == "CONVERGED", f"for {meta_id} at {site}")  # type: ignore[misc]


def test_an_image_with_its_content_tags_and_actions(sites: CloudSites, clouds: dict[str, Cloud]) -> None:
    token = clouds["site1"].token("blue")
    name = f"cirros-{sites.address('site1', 'image')[1]}"
    made = sites.call("site1", "POST", "/v2/images", new_image(name), scope=BOTH, token=token)
    assert made.status == 201, made.body
    image = f"/v2/images/{made.json['id']}"
    assert sites.call("site1", "PUT", f"{image}/file", b"the content", token=token).status == 204
    assert sites.call("site1", "PUT", f"{image}/tags/small", token=token).status == 204
    steps = [{"op": "add", "path": "/min_disk", "value": 3}]
    headers = {"Content-Type": PATCH, "Cheops-Wait": "all", **with_token(token)}
    port = sites.address("site1", "image")[1]
    assert call(port, "PATCH", image, json.dumps(steps).encode(), headers).status == 200

    def shown(site: str) -> dict[str, Any]:
        found = clouds[site].images()[name]
        return {key: found[key] for key in ("status", "tags", "min_disk", "checksum", "size", "disk_format")}

    until(lambda: shown("site1") == shown("site2"), "for the same image at both sites")
    assert (shown("site2")["status"], shown("site2")["tags"], shown("site2")["min_disk"]) == ("active", ["small"], 3)
    converged(sites, made.json["id"])
    refused = sites.call("site1", "POST", "/v2/tasks", {"type": "import", "input": {}}, scope=BOTH, token=token)
    assert refused.status == 422
    assert sites.call("site1", "DELETE", image, token=token).status == 204
    until(lambda: all(name not in clouds[site].images() for site in SITES), "for it to be gone")


def test_a_project_a_user_and_a_role_that_refer_to_each_other(sites: CloudSites, clouds: dict[str, Cloud]) -> None:
    token = clouds["site1"].token(ADMIN)
    mark = sites.address("site1", "identity")[1]

    def create(kind: str, name: str) -> str:
        body = {kind: {"name": f"{name}-{mark}"}}
        made = sites.call("site1", "POST", f"/v3/{kind}s", body, service="identity", scope=BOTH, token=token)
        assert made.status == 201, made.body
        assert made.json[kind]["id"].startswith("c4e095a1"), made.body
        return str(made.json[kind]["id"])

    project, user, role = create("project", "edge"), create("user", "eve"), create("role", "keeper")
    place = f"/v3/projects/{project}/users/{user}/roles/{role}"
    assert sites.call("site1", "PUT", place, service="identity", token=token).status == 204

    def assigned(site: str) -> set[tuple[str, str, str]]:
        found = (
            clouds[site]
            .identity("GET", "/v3/role_assignments?include_names", token=clouds[site].token(ADMIN))
            .json["role_assignments"]
        )
        names = (
            (one.get("scope", {}).get("project", {}).get("name"), one["user"]["name"], one["role"]["name"])
            for one in found
            if "user" in one
        )
        return {(p, u, r) for p, u, r in names if p == f"edge-{mark}"}

    wanted = {(f"edge-{mark}", f"eve-{mark}", f"keeper-{mark}")}
    until(lambda: [assigned(site) for site in SITES] == [wanted, wanted], "for the same role at both sites")
    converged(sites, project)
    changed = sites.call(
        "site1", "PATCH", f"/v3/projects/{project}", {"project": {"description": "x"}}, service="identity", token=token
    )
    assert changed.status == 200
    converged(sites, project)
    refused = sites.call(
        "site1",
        "POST",
        f"/v3/users/{user}/application_credentials",
        {"application_credential": {"name": "x"}},
        service="identity",
        token=token,
    )
    assert refused.status == 422
    for path in (f"/v3/users/{user}", f"/v3/roles/{role}", f"/v3/projects/{project}"):
        assert sites.call("site1", "DELETE", path, service="identity", token=token).status == 204
    until(lambda: [assigned(site) for site in SITES] == [set(), set()], "for all of it to be gone")
