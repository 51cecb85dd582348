"""Sites that are known by gossip only: an agent finds them again after a restart."""

import json

import yaml

from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import TALLY


def up(rig: Rig, at: str) -> set[str]:
    sites = json.loads(rig.request(at, "GET", "/api/v1/sites"))["sites"]
    return {one["name"] for one in sites if one["state"] == "up" and one["name"] != at}


def test_a_site_that_stops_soon_remembers_who_it_has_met(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1", "site2")
    path = rig.folder("site1") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**config, "peers": {}}))
    rig.start()
    until(lambda: up(rig, "site1") == {"site2"}, "for site1 to learn of site2")
    rig.stop("site1")
    rig.kill("site2")  # it could tell site1 where it is
    rig.start("site1")
    known = json.loads(rig.request("site1", "GET", "/api/v1/sites"))["sites"]
    assert rig.url("site2") in {one["url"] for one in known}
