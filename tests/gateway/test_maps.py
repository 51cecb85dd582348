"""HAProxy learns flows whichever of its maps a configuration uses: it knows only those that a rule mentions."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.agent.rig import until
from tests.gateway.service import Service
from tests.gateway.stage import Stage
from tests.gateway.test_fast import flows, learned, sees_all
from tests.support.ports import free_ports

SITES = ("site1", "site2")


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
@pytest.mark.parametrize("case", ["proxy alone", "outbound without carriers", "neither"])
def test_flows_are_learned(case: str, secure: bool, tmp_path: Path) -> None:
    more: dict[str, Any] = {"carriers": []} if case == "outbound without carriers" else {}
    base = tmp_path / "rig"
    stage = Stage(base, SITES, ("image",), outbound="outbound" in case, secure=secure, plane="haproxy", **more)
    if case == "proxy alone":
        path = stage.rig.folder("site1") / "site.yaml"
        config = yaml.safe_load(path.read_text())
        config["gateway"]["proxy"] = f"127.0.0.1:{free_ports(1)[0]}"
        path.write_text(yaml.safe_dump(config))
    services = [Service(f"image of {site}", stage.own(site)) for site in SITES]
    try:
        stage.rig.start()
        until(lambda: sees_all(stage), "for the sites to see each other")
        assert learned(stage, "site2").site == "site2"
        assert flows(stage)["trouble"] in (None, "")
        assert "Unknown map" not in stage.rig.log("site1")
        checks = json.loads(stage.rig.request("site1", "GET", "/api/v1/check"))["checks"]
        assert not [one for one in checks if "HAProxy" in one["name"] and one["level"] != "ok"]
    finally:
        stage.rig.close()
        for one in services:
            one.close()
