"""However the demo ends, nothing of it is left; and two of them do not disturb each other."""

import fcntl
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from cheops.demo import guard
from cheops.demo.sites import DemoFolder
from tests.demo.terminal import Visitor, living, nothing_is_left
from tests.support.command import run_process

_NOTE = (
    "--id",
    "n",
    "--resource-type",
    "note",
    "--sites",
    "site1",
    "--type",
    "set",
    "--command",
    "note set n x",
)
URL = re.compile(r"CHEOPS_URL=(\S+)")


def test_killed_interrupted_and_side_by_side(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    with Visitor(first, "--bare") as killed, Visitor(second, "--bare") as interrupted:
        for visitor in (killed, interrupted):
            visitor.await_text("demo> ")
        assert len([line for line in living(first) if " agent " in line]) == 3
        killed.signal(signal.SIGKILL)
        nothing_is_left(first)
        found = URL.search(interrupted.text)
        assert found
        ran = run_process("exec", *_NOTE, "--url", found[1])
        assert (ran.code, ran.out.split()) == (0, ["OK", "site1"])
        interrupted.signal(signal.SIGINT)
        assert interrupted.end() == 0
        assert "The sites are stopped" in interrupted.text
    nothing_is_left(second)


def test_stopped_while_it_starts(tmp_path: Path) -> None:
    with Visitor(tmp_path) as visitor:
        visitor.await_text("plain files")
        visitor.signal(signal.SIGTERM)
        assert visitor.end() == 130
    assert "Traceback" not in visitor.text
    nothing_is_left(tmp_path)


def test_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = run_process("demo", "--bare", "--port", str(port), env={**os.environ, "TMPDIR": str(tmp_path)})
    assert ran.code == 1
    assert f"port {port} cannot be used: Address already in use. Choose another with --port" in ran.err
    nothing_is_left(tmp_path)


def test_what_a_dead_demo_left_goes_and_what_a_living_one_has_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    dead, living_one = tmp_path / "cheops-demo-dead", tmp_path / "cheops-demo-living"
    for folder in (dead, living_one):
        (folder / "site1").mkdir(parents=True)
    lock = os.open(living_one, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with DemoFolder() as made, DemoFolder() as other:
        assert {entry.name for entry in tmp_path.iterdir()} == {
            living_one.name,
            made.path.name,
            other.path.name,
        }
        assert made.path.stat().st_mode & 0o777 == 0o700
    os.close(lock)
    assert list(tmp_path.iterdir()) == [living_one]


def test_what_is_tied_to_a_dead_process_does_not_start(tmp_path: Path) -> None:
    made = tmp_path / "made"
    done = subprocess.run(
        [sys.executable, "-I", "-S", guard.__file__, "tie", "1", "touch", str(made)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the parent process is gone" in done.stderr
    assert not made.exists()
