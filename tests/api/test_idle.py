"""Resources that nobody asked for in a while leave memory; whoever looks at them then sees them as they are."""

import re

import yaml

from cheops.client import Agent
from tests.agent.rig import MakeRig, Rig, until
from tests.api.agents import TYPES, Sites


def in_memory(rig: Rig, name: str) -> int:
    numbers = rig.request(name, "GET", "/metrics").decode()
    found = re.search(r"^cheops_resources_in_memory(?:\{.*\})? (\d+)", numbers, re.MULTILINE)
    assert found
    return int(found[1])


def idle_soon(rig: Rig) -> None:
    for name in rig.names:
        path = rig.folder(name) / "site.yaml"
        config = yaml.safe_load(path.read_text())
        path.write_text(yaml.safe_dump({**config, "limits": {"idle": "100ms"}}))


def test_an_idle_resource_is_listed_as_it_is(make_rig: MakeRig) -> None:
    rig = make_rig(TYPES, "site1", "site2")
    idle_soon(rig)
    rig.start()
    sites = Sites(rig)
    for number in range(3):
        sites.make(f"page{number}", "set", "true", "file")

    def all_are(overall: str) -> bool:
        until(lambda: not in_memory(rig, "site1"), "for nothing to be in memory")
        return {one.overall for one in Agent(rig.url("site1")).all_resources()} == {overall}

    until(lambda: all_are("CONVERGED"))
    assert all_are("CONVERGED"), "each time, not only after somebody has asked"
    rig.stop("site2")
    sites.sees("site1", "site2", "down")
    assert all_are("UNREACHABLE")
