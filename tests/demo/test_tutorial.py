"""The tutorial, typed by a test: every command is run, and prints what the text says."""

from pathlib import Path

import pytest

from tests.demo.terminal import nothing_is_left
from tests.demo.tutorial import Terminals, comparable
from tests.support.command import ROOT

TUTORIAL = ROOT / "docs" / "tutorial.md"


def test_the_tutorial_shows_what_happens(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    text = TUTORIAL.read_text(encoding="utf-8")
    with Terminals(tmp_path) as terminals:
        now = terminals.played(text)
        assert terminals.demo
        assert terminals.demo.wait() == 0
    nothing_is_left(tmp_path / "temporary")
    assert "error" not in now
    if request.config.getoption("--update-transcripts") and comparable(now) != comparable(text):
        TUTORIAL.write_text(now, encoding="utf-8")
        text = now
    assert comparable(text) == comparable(now), "if the change is meant: pytest --update-transcripts"
