"""The backend of examples/backend-kv, installed as a third party's would be, with real agents."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.agent.rig import RefusedByAgentError, Rig, until

EXAMPLE = Path(__file__).parents[2] / "examples" / "backend-kv"
STOCK = {
    "backend": "kv",
    "options": {"file": "stock.db"},
    "reset": "delete",
    "matrix": [
        {"before": "set", "after": "set", "result": "take-one"},
        {"before": "set", "after": "add", "result": "take-both-keep-order"},
        {"before": "add", "after": "add", "result": "take-both"},
    ],
}


def install(where: Path) -> None:
    """What `pip install` leaves behind: the module, and its metadata."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    info = where / "cheops_kv-0.1.0.dist-info"
    info.mkdir(parents=True)
    (where / "cheops_kv.py").symlink_to(EXAMPLE / "cheops_kv.py")
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    lines = (f"{name} = {value}" for name, value in project["entry-points"]["cheops.backends"].items())
    (info / "entry_points.txt").write_text("[cheops.backends]\n" + "\n".join(lines))


class PluginRig(Rig):
    """Agents whose environment has the package."""

    def start(self, *names: str) -> None:
        environment = os.environ | {"PYTHONPATH": str(self.base / "packages")}
        for name in names or self.names:
            argv = [sys.executable, "-m", "cheops", "agent", "--config", str(self.folder(name) / "site.yaml")]
            with (self.folder(name) / "log").open("ab") as log:
                process = subprocess.Popen(argv, stdout=log, stderr=log, env=environment)
            self.processes[name] = process  # type: ignore[assignment]
        for name in names or self.names:
            until(lambda n=name: self._answers(n), f"for {name} to start:\n{self.log(name)}")  # type: ignore[misc]


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    install(tmp_path / "packages")
    rig = PluginRig(tmp_path, {"stock": STOCK}, ("site1", "site2"))
    rig.start()
    yield rig
    rig.close()


def states(rig: Rig, resource: str) -> set[tuple[str, str]]:
    shown = rig.show("site1", resource, sites=" & ".join(rig.names))
    return {(line["Status"], line["Output"]) for line in shown.values()}


def test_two_sites_end_with_the_same_state(rig: Rig) -> None:
    lines = rig.exec("site1", "apples", "set", "set 10")
    assert {line["Site"]: (line["Status"], line["Output"]) for line in lines} == dict.fromkeys(rig.names, ("OK", "10"))
    rig.kill("site2")
    rig.exec_here("site1", "apples", "add", "add 5")
    rig.kill("site1")
    rig.start("site2")
    rig.exec_here("site2", "apples", "add", "add -3")
    rig.start("site1")
    until(lambda: states(rig, "apples") == {("OK", "12")}, "for both sites to have 12")
    assert len({(rig.folder(name) / "stock.db").exists() for name in rig.names}) == 1


def test_the_backend_checks_what_is_submitted_and_reports_to_the_doctor(rig: Rig) -> None:
    with pytest.raises(RefusedByAgentError, match="expected 'set VALUE', 'add NUMBER', 'delete' or 'get'") as refused:
        rig.exec("site1", "apples", "set", "rm -rf /")
    assert refused.value.status == 400
    rig.exec("site1", "apples", "set", "set 1")
    with pytest.raises(RefusedByAgentError, match="the state is shown by 'get'"):
        rig.show("site1", "apples", command="cat /etc/passwd")
    checks = json.loads(rig.request("site1", "GET", "/api/v1/check"))["checks"]
    found = [check for check in checks if check["name"] == "stock: the folder of the database is there"]
    assert [(check["group"], check["ok"], check["detail"]) for check in found] == [
        ("backends", True, str(rig.folder("site1")))
    ]


def test_a_backend_that_is_not_installed_is_refused_where_it_is_named(tmp_path: Path) -> None:
    rig = Rig(tmp_path, {"stock": STOCK}, ("site1",))
    with pytest.raises(AssertionError, match=r"types\.stock\.backend: unknown plugin 'kv'"):
        rig.start()
