"""Signals as users send them, also to commands that a shell started with SIGINT or SIGHUP ignored."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.agent.rig import MakeRig
from tests.cli.test_agents import started
from tests.demo.terminal import Visitor, nothing_is_left
from tests.support.command import ROOT

_PATIENCE_S = 60.0


@contextmanager
def ignored(number: signal.Signals) -> Iterator[None]:
    """Children that are started meanwhile inherit it, as from `nohup` (SIGHUP) or from a shell's `&` (SIGINT)."""
    before = signal.signal(number, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(number, before)


def test_the_tests_that_interrupt_do_not_hang_where_interrupts_are_ignored() -> None:
    """As `nohup make test &` runs them: pytest itself is started with SIGINT ignored."""
    test = "tests/cli/test_signals.py::test_ctrl_c_ends_watch"
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", test]
    with ignored(signal.SIGINT):
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(60)
def test_ctrl_c_ends_watch(make_rig: MakeRig) -> None:
    rig = started(make_rig, "site1")
    with watching(rig.url("site1")) as watch:
        watch.send_signal(signal.SIGINT)
        assert watch.wait(_PATIENCE_S) == 130


def test_a_background_job_is_not_interrupted_but_can_be_terminated(make_rig: MakeRig) -> None:
    """A Unix program leaves an ignored SIGINT ignored: Ctrl-C is meant for the foreground."""
    rig = started(make_rig, "site1")
    with ignored(signal.SIGINT):
        process = watching(rig.url("site1"))
    with process as watch:
        watch.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            watch.wait(0.5)
        watch.terminate()
        assert watch.wait(_PATIENCE_S) == -signal.SIGTERM


def test_the_demo_survives_a_hang_up_under_nohup(tmp_path: Path) -> None:
    with ignored(signal.SIGHUP):
        demo = Visitor(tmp_path, "--bare")
    with demo as visitor:
        visitor.await_text("demo> ")
        visitor.signal(signal.SIGHUP)
        visitor.type("help")
        visitor.await_text("heal")
        visitor.type("quit")
        assert visitor.end() == 0
    nothing_is_left(tmp_path)


def watching(url: str) -> "subprocess.Popen[bytes]":
    """`cheops watch`, once it follows the agent: its first event is read."""
    line = [sys.executable, "-m", "cheops", "watch", "--url", url, "-o", "json"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE)
    assert process.stdout
    os.set_blocking(process.stdout.fileno(), False)
    make = ["exec", "--id", "x", "--sites", "site1", "--type", "set", "--command", "true", "--url", url]
    while not process.stdout.read():
        subprocess.run([sys.executable, "-m", "cheops", *make], stdout=subprocess.DEVNULL, check=True)
    return process
