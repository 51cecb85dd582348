"""The group `configuration` of `cheops check`: what the agent's file says now, and what the machine lacks for it."""

import json
from typing import Any

import yaml

from tests.agent.rig import MakeRig, Rig
from tests.agent.types import TALLY


def configuration(rig: Rig) -> dict[str, dict[str, Any]]:
    checks = json.loads(rig.request("site1", "GET", "/api/v1/check"))["checks"]
    return {one["name"]: one for one in checks if one["group"] == "configuration"}


def test_a_file_has_changed_only_if_its_settings_have(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": {**TALLY, "cwd": "made later", "user": "nobody-here"}}, "site1")
    path = rig.folder("site1") / "site.yaml"
    rig.start()
    found = configuration(rig)
    assert found[f"{path} is in force"]["level"] == "ok"
    assert found["commands cannot run"]["level"] == "failed"
    assert "nobody-here" in found["commands cannot run"]["detail"]  # the last one of that name
    (rig.folder("site1") / "made later").mkdir()
    path.write_text(f"# a comment\n{path.read_text()}")
    assert configuration(rig)[f"{path} is in force"]["level"] == "ok"
    config = yaml.safe_load(path.read_text())
    config["types"]["tally"]["allow"] = ["true"]
    path.write_text(yaml.safe_dump(config))
    changed = configuration(rig)[f"configuration in {path} has changed since the agent started"]
    assert changed["level"] == "warning"
    assert changed["detail"].startswith("types, in this file or in one that it names")


def test_a_list_of_peers_in_a_file_of_its_own_is_named(make_rig: MakeRig) -> None:
    rig = make_rig({"tally": TALLY}, "site1")
    path = rig.folder("site1") / "site.yaml"
    config = yaml.safe_load(path.read_text())
    (rig.folder("site1") / "others.yaml").write_text("other: http://127.0.0.1:9\n")
    path.write_text(yaml.safe_dump({**config, "peers": "others.yaml"}))
    rig.start()
    (rig.folder("site1") / "others.yaml").write_text("another: http://127.0.0.1:9\n")
    changed = configuration(rig)[f"configuration in {path} has changed since the agent started"]
    assert changed["detail"].startswith("peers, in this file or in one that it names")
