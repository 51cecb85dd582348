"""A skipped test passes on a laptop and fails in CI."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import ROOT

SUITE = "import pytest\n@pytest.mark.skip(reason='no redis-server here')\ndef test_needs_redis(): pass\ndef test_other(): pass\n"


@pytest.mark.parametrize(
    ("workers", "environment", "code"),
    [("0", {}, 0), ("0", {"CI": "true"}, 1), ("1", {"CI": "true"}, 1)],
    ids=["on-a-laptop", "in-ci", "in-ci-in-parallel"],
)
def test_a_skip_fails_in_ci_only(tmp_path: Path, workers: str, environment: dict[str, str], code: int) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_suite.py").write_text(SUITE)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    alone = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # the others take seconds to import
    env = {name: value for name, value in os.environ.items() if name != "CI"} | alone | environment
    command = [sys.executable, "-m", "pytest", "-p", "xdist", "-n", workers, "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout
    assert ("which CI does not accept: test_suite.py::test_needs_redis" in done.stdout) is bool(code)
