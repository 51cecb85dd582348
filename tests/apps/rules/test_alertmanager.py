"""Alertmanager with amtool, with `rules: alertmanager`: an update is a POST that names a silence in its body."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import until
from tests.apps.rules.conftest import MakeSites
from tests.apps.rules.proxies import ScopeProxies
from tests.gateway.replicas.app_sites import SITES, AppSites, must_be_true
from tests.wan import Wan

EVERYWHERE = "site1 & site2 & site3"
PROGRAM = shutil.which("prometheus-alertmanager")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(not PROGRAM or not shutil.which("amtool"), reason="needs prometheus-alertmanager and amtool"),
]
CONFIG = "route: {receiver: none}\nreceivers: [{name: none}]\n"
COMPARED = ("comment", "createdBy", "endsAt", "matchers")


class Alertmanagers:
    def __init__(self, sites: AppSites, base: Path) -> None:
        self.sites = sites
        self._base = base
        self._proxies = ScopeProxies(sites, base)

    def start(self) -> None:
        (self._base / "alertmanager.yml").write_text(CONFIG)
        self.sites.start(self._argv)
        self._proxies.start()
        for site in SITES:
            until(lambda s=site: self.sites.direct(s, "GET", "/-/ready").status == 200, f"for {site}")  # type: ignore[misc]

    def _argv(self, site: str, port: int) -> list[str]:
        return [
            *(PROGRAM or "", f"--config.file={self._base / 'alertmanager.yml'}", "--cluster.listen-address="),
            *(f"--storage.path={self._base / f'data-{site}'}", f"--web.listen-address=127.0.0.1:{port}"),
        ]

    def amtool(self, site: str, *argv: str, scope: str = "") -> str:
        done = self.sites.run(site, "amtool", "--alertmanager.url", self._proxies.url(site, scope), *argv)
        assert done.returncode == 0, done.stderr
        return str(done.stdout).strip()

    def active(self, site: str) -> list[dict[str, Any]]:
        """The silences in effect at a site, as its own Alertmanager has them, without ids and beginnings."""
        found = self.sites.direct(site, "GET", "/api/v2/silences").json
        kept = [{name: one[name] for name in COMPARED} for one in found if one["status"]["state"] == "active"]
        return sorted(kept, key=lambda one: str(one["comment"]))

    def agree_on(self, *comments: str) -> None:
        wanted = sorted(comments)
        for site in SITES:
            until(lambda s=site: [one["comment"] for one in self.active(s)] == wanted, f"{wanted} at {site}")  # type: ignore[misc]
        assert self.sites.settled() == {site: {"CONVERGED"} for site in SITES}
        states = [self.active(site) for site in SITES]
        assert states == [states[0]] * len(SITES)


@pytest.fixture
def managers(make_sites: MakeSites, wan: Wan, tmp_path: Path) -> Alertmanagers:
    made = Alertmanagers(make_sites("alerts", wan, rules="alertmanager"), tmp_path)
    made.start()
    return made


def test_silences_are_added_updated_and_expired_at_all_sites(managers: Alertmanagers, wan: Wan) -> None:
    own = managers.amtool("site1", "silence", "add", "alertname=own", "-c", "own", "-a", "me")
    assert not own.startswith("c4e095a1")  # without a scope as without Cheops
    managers.amtool("site1", "silence", "update", own, "-c", "own 2")
    assert [one["comment"] for one in managers.active("site1")] == ["own 2"]
    managers.amtool("site2", "silence", "expire", own, scope="site1")  # another site's, from here
    assert managers.active("site1") == []

    id_ = managers.amtool("site1", "silence", "add", "alertname=disk", "-c", "one", "-a", "me", scope=EVERYWHERE)
    assert id_.startswith("c4e095a1")
    managers.agree_on("one")
    # An update names the silence in its body. Where it began at another moment, Alertmanager makes a new one of it.
    managers.amtool("site2", "silence", "update", id_, "-c", "two", "-d", "3h")
    managers.agree_on("two")
    assert [one["id"] for one in json.loads(managers.amtool("site3", "silence", "query", "-o", "json"))] == [id_]

    wan.partition(["site1"], ["site2", "site3"])
    managers.amtool("site1", "silence", "update", id_, "-c", "first")
    managers.amtool("site2", "silence", "update", id_, "-c", "later")
    managers.amtool("site3", "silence", "add", "alertname=cpu", "-c", "cpu", "-a", "me", scope=EVERYWHERE)
    wan.heal()
    managers.agree_on("cpu", "later")
    managers.amtool("site3", "silence", "expire", id_)
    managers.agree_on("cpu")


def test_what_cannot_be_replicated_is_refused_before_it_runs(managers: Alertmanagers) -> None:
    alert = [{"labels": {"alertname": "disk"}}]
    refused = managers.sites.call("site1", "POST", "/api/v2/alerts", alert, EVERYWHERE)
    assert refused.status == 422
    assert "send it to each site" in refused.json["detail"]
    assert managers.sites.direct("site1", "GET", "/api/v2/alerts").json == []
    assert managers.sites.call("site1", "POST", "/api/v2/alerts", alert).status == 200
    own = managers.amtool("site1", "silence", "add", "alertname=own", "-c", "own", "-a", "me")
    change = {**managers.sites.direct("site1", "GET", f"/api/v2/silence/{own}").json, "comment": "everywhere"}
    refused = managers.sites.call("site1", "POST", "/api/v2/silences", change, EVERYWHERE)
    assert refused.status == 404  # it is one site's own: there is nothing of it elsewhere
    assert [one["comment"] for one in managers.active("site1")] == ["own"]
    must_be_true({site: set(managers.sites.statuses(site).values()) for site in SITES}, [[], []])
