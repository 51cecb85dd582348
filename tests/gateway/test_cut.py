"""Sites on hosts of their own, and links between them that break."""

import http.client
import json
import sys
from contextlib import closing
from typing import Any

import pytest

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
