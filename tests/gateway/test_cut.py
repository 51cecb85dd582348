"""Sites on hosts of their own, and links between them that break."""

import http.client
import json
import sys
from contextlib import closing, suppress
from typing import Any

import pytest
import yaml

from tests.agent.rig import until
from tests.gateway.stage import PLANES, Stage
from tests.wan.fixtures import MakeWan

SITES = ("site1", "site2", "site3")


def ask(stage: Stage, site: str, scope: str, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
    """A client on the host of a site."""
    address = stage.address(site)
    assert stage.rig.wan
    with closing(http.client.HTTPConnection(*address, timeout=60)) as connection:
        connection.sock = stage.rig.wan.hosts[site].socket()
        connection.sock.settimeout(60)
        connection.sock.connect(address)
        connection.request("GET", "/", headers={"Scope": scope, **(headers or {})})
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read()), answer.headers


@pytest.mark.parametrize("plane", PLANES)
def test_a_cut_and_its_healing(plane: str, make_wan: MakeWan, tmp_path: Any) -> None:
    wan = make_wan(*SITES, delay_ms=5)
    stage = Stage(tmp_path / "rig", SITES, ("image",), wan=wan, plane=plane)
    try:
        for site in SITES:
            stage.rig.start_beside(
                site, [sys.executable, "-m", "tests.gateway.serve", f"image of {site}", str(stage.own(site))]
            )
        stage.rig.start()
        for site in SITES:
            until(lambda s=site: ask(stage, "site1", s)[0] == 200, f"for {site} to serve")  # type: ignore[misc]
        assert ask(stage, "site1", "site2 ; site3")[1]["served_by"] == "image of site2"
        assert ask(stage, "site1", "around(site1, 5ms)")[1]["served_by"] == "image of site1"

        wan.partition(["site1", "site3"], ["site2"])
        # Over a connection that looks alive: what was asked is given up when its site is found to be down.
        status, told, headers = ask(stage, "site1", "site2 ; site3")
        assert (status, told["served_by"]) == (200, "image of site3")
        assert headers["Cheops-Fallback"].startswith("site2: ")
        until(lambda: "is down" in ask(stage, "site1", "site2")[1].get("detail", ""), "for it to be known")
        assert ask(stage, "site1", "site2 ; site3")[2]["Cheops-Fallback"] is None
        assert ask(stage, "site2", "site2")[1]["served_by"] == "image of site2"  # each side serves on

        wan.heal()
        until(lambda: ask(stage, "site1", "site2")[0] == 200, "for the link to be back")

        # The gateway believes nobody else on the network who says that a request was forwarded.
        served = ask(stage, "site1", "site2", {"Cheops-Hop": "site3"})[1]
        assert served["served_by"] == "image of site2"
    finally:
        stage.rig.close()


@pytest.mark.parametrize("plane", PLANES)
def test_requests_to_a_site_that_nobody_can_connect_to(plane: str, make_wan: MakeWan, tmp_path: Any) -> None:
    """site2 listens on its own loopback only, as behind NAT: requests travel through the channel that it opens."""
    sites = ("site1", "site2")
    wan = make_wan(*sites)
    stage = Stage(tmp_path / "rig", sites, ("image",), wan=wan, plane=plane)
    path = stage.rig.folder("site2") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    mesh = config["gateway"]["listen"].rpartition(":")[2]
    config["gateway"] |= {
        "listen": f"127.0.0.1:{mesh}",
        "advertise": f"https://{wan.hosts['site2'].address}:{mesh}",
    }
    config |= {"listen": "127.0.0.1:8079", "advertise": stage.rig.url("site2")}
    path.write_text(yaml.safe_dump(config))
    try:
        for site in sites:
            stage.rig.start_beside(
                site, [sys.executable, "-m", "tests.gateway.serve", f"image of {site}", str(stage.own(site))]
            )
        stage.rig.start()
        until(lambda: ask(stage, "site1", "site2")[0] == 200, f"for site2 to serve:\n{stage.rig.log('site1')}")
        for _ in range(20):
            status, told, _headers = ask(stage, "site1", "site2")
            assert (status, told["served_by"]) == (200, "image of site2")
        assert ask(stage, "site2", "site1")[1]["served_by"] == "image of site1"
        assert ask(stage, "site1", "site2 ; site1")[1]["served_by"] == "image of site2"
        wan.cut("site1", "site2")

        def served_by() -> str | None:
            # A request that is under way when its site goes down may end without a response.
            with suppress(http.client.HTTPException):
                return str(ask(stage, "site1", "site2 ; site1")[1].get("served_by"))
            return None

        until(lambda: served_by() == "image of site1", "for the cut")
        wan.heal()
        until(lambda: served_by() == "image of site2", "for the channel to be back")
    finally:
        stage.rig.close()
