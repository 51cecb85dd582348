"""Node-RED, with `rules: node-red`: a deploy replaces all flows, so everything that it does has one order."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import NODE_RED, MakeSites
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.gateway.stage import Answer
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
PROGRAM = NODE_RED / "node_modules" / ".bin" / "node-red"
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM.is_file(), reason="needs Node-RED: 'make apps' installs it"),
]
SETTINGS = {
    "flowFile": "flows.json",
    "uiHost": "127.0.0.1",
    "credentialSecret": False,
    "diagnostics": {"enabled": False},
}
VERSION = {"Node_RED_API_Version": "v2"}  # in which a deploy names the revision that it changes


class NodeReds:
    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites = sites
        self._base = base

    def start(self) -> None:
        self.sites.start(self._argv)
        for site in SITES:
            until(lambda s=site: self.sites.direct(s, "GET", "/flows").status == 200, f"for {site}")  # type: ignore[misc]

    def _argv(self, site: str, port: int) -> list[str]:
        home = self._base / f"node-red-{site}"
        home.mkdir()
        settings = home / "settings.js"
        settings.write_text(f"module.exports = {json.dumps({**SETTINGS, 'uiPort': port})}")
        return [str(PROGRAM), "--userDir", str(home), "--settings", str(settings)]

    def deploy(self, site: str, flows: list[Any], scope: str = "", **more: Any) -> Answer:
        """All flows at once, as the editor does it."""
        return self.sites.call(site, "POST", "/flows", {"flows": flows, **more}, scope, **VERSION)

    def change(self, site: str, flow: str, label: str) -> int:
        return self.sites.call(site, "PUT", f"/flow/{flow}", {"id": flow, "label": label, "nodes": []}).status

    def flows(self, site: str) -> dict[str, str]:
        """The labels of what Node-RED itself has at a site."""
        return {one["id"]: one.get("label", "") for one in self.sites.direct(site, "GET", "/flows").json}

    def agree_on(self, wanted: dict[str, str]) -> None:
        for site in SITES:
            until(lambda s=site: self.flows(s) == wanted, f"for {wanted} at {site}")  # type: ignore[misc]
        assert self.sites.settled() == {site: {"CONVERGED"} for site in SITES}
        states = [self.sites.direct(site, "GET", "/flows").json for site in SITES]
        assert states == [states[0]] * len(SITES)  # in the same order, too: it is that of the editor's tabs


@pytest.fixture
def node_reds(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> NodeReds:
    made = NodeReds(make_sites("flows", wan, rules="node-red"), tmp_path)
    made.start()
    return made


def tab(id_: str, label: str) -> dict[str, str]:
    return {"id": id_, "type": "tab", "label": label}


def test_flows_are_deployed_changed_and_deleted_at_all_sites(node_reds: NodeReds, wan: Wan) -> None:
    alone = node_reds.sites.call("site3", "POST", "/flow", {"label": "own", "nodes": []})
    assert alone.status == 200  # without a scope as without Cheops
    assert list(node_reds.flows("site3").values()) == ["own"]
    seen = node_reds.sites.call("site1", "GET", "/flows", scope="site3")
    assert [one["label"] for one in seen.json] == ["own"]  # another site's, from here

    flows: list[Any] = [tab("one", "1"), tab("two", "2"), {"id": "n", "z": "one", "type": "comment", "x": 1, "y": 1}]
    assert node_reds.deploy("site1", flows, EVERYWHERE).status == 200
    node_reds.agree_on({"one": "1", "two": "2", "n": ""})
    # The editor reads, changes and deploys, and names the revision that it has read.
    read = node_reds.sites.call("site2", "GET", "/flows", **VERSION).json
    changed = [tab("one", "1 new"), *read["flows"][1:]]
    assert node_reds.deploy("site2", changed, rev=read["rev"]).status == 200
    assert node_reds.deploy("site2", flows, rev=read["rev"]).status == 409  # the service's own answer; it ran nowhere
    assert node_reds.change("site3", "two", "2 new") == 200
    node_reds.agree_on({"one": "1 new", "two": "2 new", "n": ""})

    wan.partition(["site1"], ["site2", "site3"])
    assert node_reds.change("site1", "one", "first") == 200
    assert node_reds.change("site2", "one", "later") == 200
    assert node_reds.change("site3", "two", "too") == 200
    wan.heal()
    node_reds.agree_on({"one": "later", "two": "too"})
    assert node_reds.sites.call("site2", "DELETE", "/flow/two").status == 204
    node_reds.agree_on({"one": "later"})


def test_a_deploy_and_a_change_of_one_flow_on_two_sides_of_a_cut(node_reds: NodeReds, wan: Wan) -> None:
    assert node_reds.deploy("site1", [tab("one", "1"), tab("two", "2")], EVERYWHERE).status == 200
    node_reds.agree_on({"one": "1", "two": "2"})
    wan.partition(["site1"], ["site2", "site3"])
    assert node_reds.change("site2", "two", "changed") == 200
    assert node_reds.deploy("site1", [tab("one", "deployed"), tab("two", "deployed")]).status == 200
    wan.heal()
    node_reds.agree_on({"one": "deployed", "two": "changed"})
    wan.partition(["site1"], ["site2", "site3"])
    assert node_reds.deploy("site1", [tab("one", "only")]).status == 200
    assert node_reds.change("site2", "two", "gone") == 200  # there is no such flow any more
    wan.heal()
    must_be_true(node_reds.sites.settled(), [node_reds.flows(site) for site in SITES])


def test_what_each_site_would_do_otherwise_is_refused_before_it_runs(node_reds: NodeReds) -> None:
    new = {"label": "new", "nodes": []}
    refused = node_reds.sites.call("site1", "POST", "/flow", new, EVERYWHERE)
    assert refused.status == 422
    assert "each site would give the flow another id" in refused.json["detail"]
    assert node_reds.deploy("site1", [tab("one", "1")], EVERYWHERE).status == 200
    node_reds.agree_on({"one": "1"})
    assert node_reds.sites.call("site2", "POST", "/flow", new).status == 422  # all flows are replicated now
    assert node_reds.sites.call("site2", "POST", "/settings/user", {"x": 1}).status == 422
    node_reds.agree_on({"one": "1"})
