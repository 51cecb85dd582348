"""kill -9 at any moment: what was said to be durable is there, and each commit is there whole or not at all."""

import subprocess
import sys
from pathlib import Path

from tests.support.command import ROOT

ROUNDS = 60


def test_whatever_moment_a_process_is_killed_at(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.killing", str(tmp_path / "site.db"), str(ROUNDS)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{ROUNDS} rounds, ")
