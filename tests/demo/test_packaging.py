"""What is shipped: a wheel that runs the demo from an environment of its own, a unit of systemd, a container."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.demo.terminal import nothing_is_left
from tests.security.clients import rig_of
from tests.support.command import ROOT

PACKAGING = ROOT / "packaging"


def run(*argv: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if find_spec("hatchling") is None:
        pytest.skip("needs the package hatchling, which builds the wheel without asking the network")
    folder = tmp_path_factory.mktemp("wheel")
    options = ("--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("cheops-*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin directory of a fresh environment with the wheel. Of the environment of these tests it sees the
    dependencies, but not our sources: those are known there by a .pth file, and .pth files do not nest."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (library,) = folder.glob("lib/python*/site-packages")
    pip = ("-m", "pip", "--python", str(folder / "bin" / "python"), "--disable-pip-version-check")
    run(sys.executable, *pip, "install", "--no-deps", "--no-index", "--quiet", wheel)
    (library / "dependencies.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"


def test_the_installed_wheel_plays_the_demo_without_redis(installed: Path, tmp_path: Path) -> None:
    """Redis is not in its PATH, so this is also the story of plain files alone."""
    where = run(installed / "python", "-P", "-c", "import cheops; print(cheops.__file__)", PYTHONPATH="").stdout
    assert where.startswith(str(installed.parent)), "it runs what was installed"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    env = {"TMPDIR": str(temporary), "PATH": str(installed), "PYTHONPATH": ""}
    ran = run(installed / "cheops", "demo", "--check", **env)
    assert "no Redis: redis-server is not installed" in ran.stdout
    assert "✓ pizza at every site" in ran.stdout
    assert "✓ both sites report which pair was refused, and where" in ran.stdout
    assert "redis-cli" not in ran.stdout
    assert "\x1b" not in ran.stdout
    assert ran.stderr == ""
    nothing_is_left(temporary)


def test_the_wheel_holds_what_is_no_module_and_no_more_than_the_package(wheel: Path) -> None:
    names = run(sys.executable, "-m", "zipfile", "--list", wheel).stdout
    files = {line.split()[0] for line in names.splitlines()[1:]}
    expected = {
        "py.typed",
        "demo/site.yaml",
        "demo/redis.yaml",
        "demo/apps/note",
        "demo/apps/stock",
        "cli/demo_sites.yaml",
        "scope/grammar.lark",
    }
    assert {f"cheops/{name}" for name in expected} <= files
    assert {name.split("/")[0].split("-")[0] for name in files} == {"cheops"}


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze, of the package systemd")
    unit = tmp_path / "cheops.service"
    text = (PACKAGING / "cheops.service").read_text()
    unit.write_text(text.replace("/opt/cheops/bin/cheops", shutil.which("true") or ""))
    ran = run("systemd-analyze", "verify", unit)
    assert ran.stderr == ""


@pytest.mark.parametrize(
    "setting",
    [
        "KillMode=control-group",
        "StateDirectory=cheops",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        "User=cheops",
        "UMask=0077",
        "LimitCORE=0",
        "CapabilityBoundingSet=",
        "ProtectHome=yes",
        "ProtectProc=invisible",
        "PrivateDevices=yes",
        "RestrictSUIDSGID=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6",
        "SystemCallFilter=@system-service",
    ],
)
def test_the_unit_is_hardened(setting: str) -> None:
    assert setting in (PACKAGING / "cheops.service").read_text().splitlines()


def test_the_unit_can_be_parsed_and_says_nothing_twice() -> None:
    """Also where there is no systemd to ask."""
    unit = configparser.RawConfigParser(strict=True)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # names have capitals
    unit.read_string((PACKAGING / "cheops.service").read_text())
    assert unit.sections() == ["Unit", "Service", "Install"]
    command = unit["Service"]["ExecStart"].split()
    assert command[1:] == ["agent", "--config", "/etc/cheops/site.yaml"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"


def test_the_health_check_asks_an_agent_with_security_and_notices_one_that_is_gone(tmp_path: Path) -> None:
    text = (PACKAGING / "Containerfile").read_text()
    command = json.loads(re.search(r"^HEALTHCHECK(?:.*\\\n)+ *CMD (.*)$", text, re.MULTILINE)[1])  # type: ignore[index]
    assert command[:2] == ["python", "-c"]
    rig = rig_of(tmp_path)

    def health() -> int:
        place = str(rig.folder("site1") / "data" / "agent.sock")
        assert "/var/lib/cheops/agent.sock" in command[2]
        program = command[2].replace("/var/lib/cheops/agent.sock", place)
        return subprocess.run([sys.executable, "-c", program], check=False, stderr=subprocess.DEVNULL).returncode

    try:
        assert health() == 1
        rig.start()
        assert health() == 0
        rig.kill("site1")
        assert health() == 1
    finally:
        rig.close()


def test_the_container_is_built_in_stages_and_runs_without_root() -> None:
    text = (PACKAGING / "Containerfile").read_text()
    images = re.findall(r"^FROM (\S+)", text, re.MULTILINE)
    assert len(images) == 2
    assert all(re.fullmatch(r"[a-z]+:[\w.-]+", image) for image in images), "official images, no registry named"
    last = text[text.rindex("\nFROM ") :]
    assert last.index("\nUSER 10001:10001") < last.index("\nENTRYPOINT")
    assert "--uid 10001 --gid cheops" in last
    assert "groupadd --gid 10001 cheops" in last
    copied = [name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()]
    assert all((ROOT / name).exists() for name in copied)
    sent = re.findall(r"^!(\S+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert sorted(sent) == sorted(copied), "the builder is sent what is copied, and nothing else"
