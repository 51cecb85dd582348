"""`cheops sim`: repeatable, and a failure is told as a story."""

import json
import os

import pytest

from cheops.sim.simulation import play
from tests.sim.planted import BUGS
from tests.sim.test_planted_bugs import PATIENCE_MS
from tests.support.command import run_here, run_process


def test_a_seed_gives_the_same_story_in_every_process() -> None:
    stories = {
        run_process("sim", "--seed", "11", "--sites", "4", env={**os.environ, "PYTHONHASHSEED": seed}).out
        for seed in ("1", "2")
    }
    assert len(stories) == 1
    (story,) = stories
    assert "everything is healed" in story
    assert story.rstrip().endswith("all invariants hold")


def test_a_failure_is_told_with_its_seed_and_its_shortest_story(monkeypatch: pytest.MonkeyPatch) -> None:
    _be_less_patient(monkeypatch)
    with BUGS["nothing is sent again"].plant():
        ran = run_here("sim", "--sites", "3", "--seeds", "1", "--jobs", "1")
    assert ran.code == 1
    assert " failed\n" in ran.out
    assert "the shortest failing history of seed" in ran.out
    assert "violated: " in ran.out
    assert "to run all of it: cheops sim --seed" in ran.out
    assert "site1                         site2" in ran.out  # the lanes


def _be_less_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails is waited for to the end, again for every part that is left out: wait as for the planted bugs."""
    monkeypatch.setattr(play, "__kwdefaults__", {"patience_ms": PATIENCE_MS})


def test_programs_get_the_failures_as_data(monkeypatch: pytest.MonkeyPatch) -> None:
    _be_less_patient(monkeypatch)
    with BUGS["nothing is sent again"].plant():
        ran = run_here("sim", "--sites", "3", "--seeds", "3", "--jobs", "1", "-o", "json")
    data = json.loads(ran.out)
    assert ran.code == 1
    assert data["histories"] == 3
    assert data["failures"][0]["problems"]
    assert data["injected"]["partition"] > 0


def test_processes_share_the_work_and_give_the_same() -> None:
    assert run_here("sim", "--seeds", "6", "--jobs", "2").out == run_here("sim", "--seeds", "6", "--jobs", "1").out


def test_an_unknown_profile_is_refused() -> None:
    ran = run_here("sim", "--profile", "gentle")
    assert (ran.code, ran.out) == (1, "")
    assert "Known profiles: byzantine, calm, clocks, crashes, deletions, hostile, http, joins, kinds," in ran.err
