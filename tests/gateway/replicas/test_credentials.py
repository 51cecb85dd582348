"""Credentials: a client's stay where it gave them, and each site runs with its own."""

from pathlib import Path

import pytest
import yaml

from tests.agent.rig import until
from tests.gateway.replicas.conftest import MakeSites
from tests.gateway.replicas.sites import EVERYWHERE, SITES, Sites
from tests.gateway.replicas.taps import tapped

SECRET = "tr0ub4dor-and-3-horses"  # noqa: S105 - what the test looks for
HEADERS = {
    "Authorization": f"Bearer {SECRET}",
    "Cookie": f"session={SECRET}",
    "X-Auth-Token": SECRET,
    "X-Vault": SECRET,
}


def everything_kept(folder: Path) -> bytes:
    """All that a site has on disk, its log file included."""
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


def tokens(sites: Sites, site: str) -> list[str | None]:
    return [told["headers"].get("X-Auth-Token") for told in sites.told(site)]


def call(sites: Sites, site: str, method: str, target: str, content: object) -> int:
    named = {name.replace("-", "_"): value for name, value in HEADERS.items()}
    return sites.call(site, method, target, content, EVERYWHERE, Cheops_Wait="all", **named).status


def test_nothing_secret_is_kept_or_goes_over_the_wire(make_sites: MakeSites) -> None:
    sites = make_sites(credential_headers=["X-Vault"], forward="none")
    agents = [(site, sites.rig._addresses[site]) for site in SITES]
    fronts = [(site, sites.address(site)) for site in SITES]
    with tapped(*(address for _, address in (*agents, *fronts))) as taps:
        urls = dict(zip(SITES, (tap.url for tap in taps[:3]), strict=True))
        for number, site in enumerate(SITES):
            path = sites.rig.folder(site) / "site.yaml"
            config = yaml.safe_load(path.read_text())
            config |= {"advertise": urls[site], "peers": urls}
            config["services"]["image"]["advertise"] = taps[3 + number].url
            path.write_text(yaml.safe_dump(config))
        sites.start()
        assert call(sites, "site1", "POST", "/images", {"name": "secret"}) == 201
        meta_id = sites.call("site1", "GET", "/images").json["images"][0]["id"]
        # from a site that is not involved, too
        pair = sites.call("site1", "POST", "/images", {"name": "pair"}, "site1 & site2", Cheops_Wait="all")
        named = {name.replace("-", "_"): value for name, value in HEADERS.items()}
        assert sites.call("site3", "PATCH", f"/images/{pair.json['id']}", {"size": 1}, **named).status == 200
        assert sites.call("site3", "GET", f"/images/{pair.json['id']}", **named).status == 200
        assert call(sites, "site2", "PATCH", f"/images/{meta_id}", {"size": 2}) == 200
        # the service of the site that took it has had them
        assert SECRET in tokens(sites, "site1")
        assert SECRET in tokens(sites, "site2")
        messages = b"".join(message for tap in taps for message in tap.messages)
        assert b"secret" in messages  # the name of the image: what was said was heard
        assert SECRET.encode() not in messages
        heard = b"".join(tap.heard for tap in taps)
        assert b"Cheops-For: replication" in heard  # what passed between gateways was heard, too
        assert SECRET.encode() not in heard
    for site in SITES:
        assert sites.rig.stop(site) == 0
        assert SECRET.encode() not in everything_kept(sites.rig.folder(site))
        assert b"secret" in everything_kept(sites.rig.folder(site))


def test_what_another_site_serves_gets_them_and_what_is_replicated_does_not(make_sites: MakeSites) -> None:
    sites = make_sites()
    sites.start("--token", SECRET)
    answer = sites.call("site1", "POST", "/images", {"name": "shared"}, "site2", X_Auth_Token=SECRET)
    assert (answer.status, answer.headers["Cheops-Credentials"]) == (201, None)
    assert [tokens(sites, site) for site in SITES] == [[], [SECRET], []]
    pair = sites.call("site1", "POST", "/images", {"name": "pair"}, "site1 & site2", X_Auth_Token=SECRET)
    assert pair.status == 201
    until(lambda: None in tokens(sites, "site2"), "for site2 to run it without credentials")
    # a site without a copy serves its clients by one that has it
    assert sites.call("site3", "GET", f"/images/{pair.json['id']}", X_Auth_Token=SECRET).status == 200
    assert sites.call("site3", "GET", f"/images/{pair.json['id']}").status == 401


@pytest.mark.parametrize("kind", ["file", "command"])
def test_each_site_runs_with_its_own(make_sites: MakeSites, kind: str) -> None:
    sites = make_sites()
    for site in SITES:
        path = sites.rig.folder(site) / "token"
        path.write_text(f"# for the service\nX-Auth-Token: of-{site}\n")
        where = {"file": "token"} if kind == "file" else {"command": ["cat", str(path)]}
        sites.configure(site, auth=where)
        sites.start_service(site, "--token", f"of-{site}")
    sites.rig.start()
    until(sites._all_up)
    answer = sites.call(
        "site1",
        "POST",
        "/images",
        {"name": "own"},
        EVERYWHERE,
        Cheops_Wait="all",
        **{"X-Auth-Token": "of-site1"},
    )
    assert answer.status == 201
    assert [tokens(sites, site) for site in SITES] == [["of-site1"], ["of-site2"], ["of-site3"]]


def test_who_may_not_may_not_by_way_of_replication(make_sites: MakeSites) -> None:
    """At the site that takes a request it runs with what the client gave, and with nothing else."""
    sites = make_sites(forward="none")
    for site in SITES:
        (sites.rig.folder(site) / "token").write_text("X-Auth-Token: good\n")
        sites.configure(site, auth={"file": "token"})
    sites.start("--token", "good")
    for headers in ({}, {"X_Auth_Token": "bad"}):
        answer = sites.call("site1", "POST", "/images", {"name": "no"}, EVERYWHERE, **headers)
        assert answer.status == 401
    assert [sites.told(site) for site in ("site2", "site3")] == [[], []]

    # Nor by way of another site: nobody there knows the client, and its own credentials are not for strangers.
    good, pair = {"X_Auth_Token": "good"}, "site1 & site2"
    made = sites.call("site1", "POST", "/images", {"name": "pair"}, pair, Cheops_Wait="all", **good)
    path = f"/images/{made.json['id']}"
    before = [sites.told(site) for site in ("site1", "site2")]
    for site, method, target, scope in (
        ("site3", "POST", "/images", pair),  # handed on
        ("site3", "GET", path, None),
        ("site3", "PATCH", path, None),
        ("site3", "DELETE", path, None),
        ("site1", "PATCH", path, "site2"),  # shared
        ("site1", "DELETE", path, "site2"),
        ("site1", "GET", "/images", "site2"),
        ("site1", "POST", "/images", "site2"),
    ):
        for headers in ({}, good):
            answer = sites.call(site, method, target, {"name": "stranger"}, scope, **headers)
            assert answer.status == 401, (site, method, target, scope, answer.body)
            assert answer.headers["Cheops-Credentials"] == ("dropped" if headers else None)
    refused = [len(sites.told(site)) - len(told) for site, told in zip(SITES, before, strict=False)]
    assert sum(refused) == 2 * 6  # all but the reads were asked of a service, as the strangers that they are
    assert [image["name"] for site in SITES for image in _images(sites, site)] == ["pair", "pair"]
    sites.stop_service("site1")
    assert sites.call("site1", "GET", path).status == 401  # from site2

    # What waits for its service here is not done with other credentials, should the client's be forgotten.
    waiting = sites.call("site1", "PATCH", path, {"name": "late"}, Prefer="respond-async")
    assert waiting.status == 202
    assert sites.rig.stop("site1") == 0
    sites.start_service("site1", "--token", "good")
    sites.rig.start("site1")
    op = waiting.headers["Cheops-Operation"]

    def outcome() -> str:
        found = [one for one in sites.log("site1", made.json["id"])["operations"] if one["id"] == op]
        return str(found[0]["effect"]) if found else ""

    until(lambda: outcome() == "void", "for the request of a stranger to be refused")


def _images(sites: Sites, site: str) -> list[dict[str, object]]:
    found = sites.call(site, "GET", "/images", X_Auth_Token="good")  # noqa: S106 - of the test
    listed: list[dict[str, object]] = found.json["images"]
    return listed


def test_credentials_that_have_changed_are_asked_for_anew(make_sites: MakeSites) -> None:
    sites = make_sites("site1", "site2")
    for site in ("site1", "site2"):
        (sites.rig.folder(site) / "token").write_text("X-Auth-Token: old\n")
        sites.configure(site, auth={"file": "token", "every": "1h"})
    sites.start("--token", "old")
    made = sites.call(
        "site1",
        "POST",
        "/images",
        {"name": "a"},
        "site1 & site2",
        Cheops_Wait="all",
        **{"X-Auth-Token": "old"},
    )
    assert made.status == 201
    sites.direct("site2", "PUT", "/_token", "new")
    changed = f"/images/{made.json['id']}"
    later = sites.call(
        "site1", "PATCH", changed, {"size": 1}, Cheops_Wait="all", Prefer="wait=1", **{"X-Auth-Token": "old"}
    )
    assert later.status == 202  # site2 has no right credentials: it waits, and says why
    until(lambda: sites.replicant("site2", made.json["id"])["waits"] is not None)
    (sites.rig.folder("site2") / "token").write_text("X-Auth-Token: new\n")
    until(lambda: sites.status("site1", made.json["id"]) == "CONVERGED")
