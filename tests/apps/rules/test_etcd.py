"""etcd's JSON API, with `rules: etcd`: everything that it does has one order."""

import base64
import json

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import MakeSites
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
pytestmark = pytest.mark.timeout(300)


def text(value: str) -> str:
    return base64.b64encode(value.encode()).decode()


def started(make_sites: MakeSites, wan: Wan, **settings: str) -> AppSites:
    sites = make_sites("kv", wan, **settings)
    base = sites.rig.folder("site1").parent

    def argv(site: str, port: int) -> list[str]:
        peer, client = f"http://127.0.0.1:{port + 1}", f"http://127.0.0.1:{port}"
        return [
            *("etcd", "--name", site, "--data-dir", str(base / f"etcd-{site}"), "--unsafe-no-fsync"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"{site}={peer}"),
        ]

    sites.start(argv)
    return sites


def put(sites: AppSites, site: str, key: str, value: str, scope: str = EVERYWHERE) -> int:
    return sites.call(site, "POST", "/v3/kv/put", {"key": text(key), "value": text(value)}, scope).status


def state(sites: AppSites, site: str) -> dict[str, str]:
    """What etcd itself has at a site."""
    found = sites.direct(site, "POST", "/v3/kv/range", {"key": text("\0"), "range_end": text("\0")}).json
    read = {one["key"]: one.get("value", "") for one in found.get("kvs", ())}
    return {base64.b64decode(key).decode(): base64.b64decode(value).decode() for key, value in read.items()}


def same_everywhere(sites: AppSites, wanted: dict[str, str]) -> None:
    for site in SITES:
        until(lambda s=site: state(sites, s) == wanted, f"for {wanted} at {site}")  # type: ignore[misc]


def test_keys_are_the_same_everywhere_without_and_with_a_cut(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan, rules="etcd")
    assert put(sites, "site1", "alone", "x", scope="site1") == 200
    assert state(sites, "site2") == {}
    for turn in range(3):
        for key in range(6):
            assert put(sites, "site1", f"k{key}", f"v{turn}") == 200
    expected = {f"k{key}": "v2" for key in range(6)}
    until(lambda: state(sites, "site3") == expected, "for site3 to have the last values")
    wan.partition(["site1"], ["site2", "site3"])
    assert put(sites, "site1", "k0", "first") == 200
    assert put(sites, "site2", "k0", "later") == 200
    assert put(sites, "site1", "k1", "one", scope="") == 200  # it is replicated, so it needs no scope
    assert put(sites, "site3", "k2", "three") == 200
    wan.heal()
    expected |= {"k0": "later", "k1": "one", "k2": "three"}
    for site in SITES:
        wanted = expected | ({"alone": "x"} if site == "site1" else {})
        until(lambda s=site, w=wanted: state(sites, s) == w, f"for {wanted} at {site}")  # type: ignore[misc]
    assert sites.settled() == {site: {"CONVERGED"} for site in SITES}


def test_a_read_by_post_is_not_logged(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan, rules="etcd")
    assert put(sites, "site1", "k", "v") == 200
    same_everywhere(sites, {"k": "v"})
    found = sites.call("site2", "POST", "/v3/kv/range", {"key": text("k")}, EVERYWHERE)
    assert base64.b64decode(found.json["kvs"][0]["value"]) == b"v"
    (resource,) = sites.statuses("site1")
    log = json.loads(sites.rig.request("site1", "GET", f"/api/v1/resources/{resource}/log"))
    assert [op["type"] for op in log["operations"]] == ["put $.key/aw=="]


def lock(sites: AppSites, site: str, owner: str) -> bool:
    """A compare-and-swap: the lock is free, so it is mine."""
    free = {"key": text("lock"), "target": "CREATE", "result": "EQUAL", "create_revision": "0"}
    mine = {"request_put": {"key": text("lock"), "value": text(owner)}}
    answer = sites.call(site, "POST", "/v3/kv/txn", {"compare": [free], "success": [mine]}, EVERYWHERE)
    assert answer.status == 200, answer.body
    return bool(answer.json.get("succeeded"))


def test_a_lock_is_granted_once_and_never_twice_unseen(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan, rules="etcd")
    assert lock(sites, "site1", "one")
    same_everywhere(sites, {"lock": "one"})
    assert not lock(sites, "site2", "two")  # the answer of the service, as it is
    assert sites.settled() == {site: {"CONVERGED"} for site in SITES}
    assert [state(sites, site) for site in SITES] == [{"lock": "one"}] * 3


def test_what_no_rule_explains_is_refused_before_it_runs(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan, rules="etcd")
    assert sites.call("site1", "POST", "/v3/lease/grant", {"TTL": 60}).status == 200  # nothing is replicated yet
    for scope in (EVERYWHERE, ""):
        assert put(sites, "site1", "k", "v") == 200
        answer = sites.call("site1", "POST", "/v3/lease/grant", {"TTL": 60}, scope)
        assert answer.status == 422
        assert '{match: "POST /v3/lease/grant", is: action, of: service}' in answer.json["detail"]
    assert len(sites.direct("site1", "POST", "/v3/lease/leases", {}).json["leases"]) == 1


def test_a_lock_that_both_sides_of_a_cut_took_is_shown(make_sites: MakeSites, wan: Wan) -> None:
    """Without a quorum nobody can prevent it. But nobody must believe that the sites agree."""
    sites = started(make_sites, wan, rules="etcd")
    assert put(sites, "site1", "k", "v") == 200
    same_everywhere(sites, {"k": "v"})
    wan.partition(["site1"], ["site2", "site3"])
    assert lock(sites, "site1", "one")
    assert lock(sites, "site2", "two")
    wan.heal()
    said = sites.settled()
    must_be_true(said, [state(sites, site) for site in SITES])
    assert said == {site: {"DIVERGED"} for site in SITES}


def test_without_rules_it_is_refused_with_the_line_to_add(make_sites: MakeSites, wan: Wan) -> None:
    sites = started(make_sites, wan)
    answer = sites.call("site1", "POST", "/v3/kv/put", {"key": text("k"), "value": text("v")}, EVERYWHERE)
    assert answer.status == 422
    assert "ran at this site only and is not replicated" in answer.json["detail"]
    added = answer.json["detail"].partition("add a rule to services.kv.rules at all sites: ")[2]
    assert '{match: "POST /v3/kv/put", is: action, of: "/v3/kv"}' in added
    assert '{match: "POST /v3/kv/put", is: read}' in added
    assert [state(sites, site) for site in SITES] == [{"k": "v"}, {}, {}]
