"""One site of three whose clock is an hour off: all three work, and end equal."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest

from tests.agent.rig import Rig, until
from tests.security.sites import all_up
from tests.security.test_forgery import ADD, TALLY, TYPES, tally


@pytest.fixture(scope="module", params=["-3600", "+3600"], ids=["behind", "ahead"])
def rig(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    """Shared by the tests of a module: an agent with libfaketime takes seconds to start."""
    library = _library()
    made = Rig(tmp_path_factory.mktemp("clock") / "rig", TYPES, ("site1", "site2", "site3"), secure=True)
    try:
        made.start("site1", "site2")
        faked = {"LD_PRELOAD": library, "FAKETIME": request.param, "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        _start_with(made, "site3", faked)
        all_up(made)
        yield made
    finally:
        made.close()


def _library() -> str:
    if shutil.which("faketime") is None:
        pytest.skip("needs faketime (Debian: apt-get install faketime)")
    found = subprocess.run(
        ["faketime", "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


def _start_with(rig: Rig, name: str, environment: dict[str, str]) -> None:
    argv = [sys.executable, "-m", "cheops", "agent", "--config", str(rig.folder(name) / "site.yaml")]
    with (rig.folder(name) / "log").open("ab") as log:
        rig.side_processes.append(subprocess.Popen(argv, env=os.environ | environment, stdout=log, stderr=log))


def test_all_sites_work_and_end_equal(rig: Rig) -> None:
    sites = "site1 & site2 & site3"
    for name in rig.names:
        assert rig.exec(name, "n", "inc", ADD, sites=sites, **TALLY)[0]["Status"] == "OK"
    until(lambda: [tally(rig, name, "n") for name in rig.names] == [3, 3, 3], "for all sites to have all of it")
    until(lambda: b"CONVERGED" in rig.request("site3", "GET", "/api/v1/resources/n/status"), "for site3 to know")


def test_check_says_whose_clock_is_wrong(rig: Rig) -> None:
    def wrong(name: str) -> list[str]:
        checks = json.loads(rig.request(name, "GET", "/api/v1/check"))["checks"]
        return [one["name"] for one in checks if one["group"] == "clocks" and one["level"] != "ok"]

    until(lambda: "clock of this site is wrong" in wrong("site3"), "for site3 to know")
    for name in ("site1", "site2"):
        until(lambda name=name: wrong(name) == ["clock of site3 differs from ours"], "for it to be measured")  # type: ignore[misc]


def test_the_operator_cures_what_a_wrong_clock_has_stamped(tmp_path: Path) -> None:
    """Of two sites nobody can tell whose clock is right, and one that is alone has nobody to compare with."""
    library = _library()
    rig = Rig(tmp_path / "rig", TYPES, ("site1", "site2"), secure=True)
    try:
        rig.start()
        rig.exec("site2", "n", "inc", ADD, **TALLY)
        for name in rig.names:
            rig.stop(name)
        faked = {"LD_PRELOAD": library, "FAKETIME": "+3600", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
        _start_with(rig, "site2", faked)
        until(lambda: rig._answers("site2"), "for site2 to start")
        assert rig.exec_here("site2", "n", "inc", ADD)["Status"] == "OK"
        wrong = rig.side_processes.pop()
        wrong.terminate()
        wrong.wait()
        rig.start()
        all_up(rig)
        refused = until(lambda: _clock(rig, "site1").get("refused"), "for site1 to refuse it")
        assert "the clock of site2 was 60 min ahead of ours when it made site2:2" in refused[0]["detail"]
        assert _clock(rig, "site2")["is_held_back"]
        rig.request("site2", "POST", "/api/v1/clock/cure")
        until(lambda: [tally(rig, name, "n") for name in rig.names] == [2, 2], "for both sites to have both")
        until(lambda: _clock(rig, "site2").get("is_held_back") is False, "for the stamps to be right")
        assert rig.exec("site2", "n", "inc", ADD, **TALLY)[0]["Status"] == "OK"
        until(lambda: [tally(rig, name, "n") for name in rig.names] == [3, 3], "for site1 to take the next one")
    finally:
        rig.close()


def _clock(rig: Rig, name: str) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(rig.request(name, "GET", "/api/v1/clock"))
    except (OSError, HTTPException):  # it starts again
        return {}
    return found
