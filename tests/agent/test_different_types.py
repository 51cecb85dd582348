"""Sites whose configurations differ: it is reported before the first operation fails, and with it."""

import json

import yaml

from tests.agent.rig import MakeRig, Rig, until
from tests.agent.types import TALLY

ADD = "printf x >> __ID__"


def problems(rig: Rig, at: str, of: str) -> list[str]:
    sites = json.loads(rig.request(at, "GET", "/api/v1/sites"))["sites"]
    return next((one["problems"] for one in sites if one["name"] == of), [])


def test_types_that_differ_are_reported(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1", "site2", "site3")
    path = rig.folder("site2") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    config["types"]["tally"]["allow"] = ["true"]
    path.write_text(yaml.safe_dump(config))
    rig.start()
    expected = ["it is configured differently: tally (allow)"]
    until(lambda: problems(rig, "site1", "site2") == expected, "for site1 to notice")
    until(lambda: problems(rig, "site1", "site3") == [], "for site1 to hear of site3")
    checks = json.loads(rig.request("site1", "GET", "/api/v1/check"))["checks"]
    found = {one["name"]: one for one in checks if one["group"] == "configuration"}
    different = found["site2 configures some types differently"]
    assert (different["level"], different["detail"]) == ("failed", "tally (allow)")
    assert found["site3 configures shared types equally"]["level"] == "ok"
    body = {"type": "inc", "command": ADD, "sites": "site1 & site2 & site3", "resource_type": "tally"}
    headers = {"Content-Type": "application/json"}
    path_of_n = "/api/v1/resources/n/operations"
    accepted = json.loads(rig.request("site1", "POST", path_of_n, json.dumps(body), headers))
    details = {one["site"]: one["detail"] for one in accepted["answers"]}
    assert "site2 and site1 configure the type tally (allow) differently: see 'cheops check'" in details["site2"]
    assert details["site3"] == ""
