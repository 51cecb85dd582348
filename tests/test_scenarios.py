"""Every scenario shows what happens now; and a script that cannot be right is refused at its line."""

from pathlib import Path

import pytest

from cheops.sim.script import ScriptError, replay
from tests.support.command import ROOT

SCENARIOS = sorted((ROOT / "tests" / "scenarios").glob("*.txt"))


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_shows_what_happens(path: Path, request: pytest.FixtureRequest) -> None:
    now = replay(path.read_text(encoding="utf-8"))
    if request.config.getoption("--update-transcripts"):
        path.write_text(now, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == now, "if the change is meant: pytest --update-transcripts"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario_says_what_it_shows(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")


WORLD = 'sites a b\nresource n counter at a b\nsubmit a n set "set 1"\n'


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("fly a", "unknown command 'fly'; known: clock, crash, "),
        ("submit a", 'usage: submit SITE RESOURCE TYPE "COMMAND" [force | delete] [matrix NAME]'),
        ('submit a n inc "inc 1" softly', "usage: submit"),
        ('submit c n inc "inc 1"', "unknown site 'c'; known: a, b"),
        ('submit a m inc "inc 1"', "unknown resource 'm'; known: n"),
        ('submit a n inc "inc 1', "No closing quotation"),
        ("sites a", "there is a site 'a' already"),
        ("resource m abacus at a", "unknown application 'abacus'; known: counter, deployment, "),
        ("resource m counter on a", "usage: resource"),
        ("resource m counter at a with luck", "unknown option 'luck'; known: plain, parallel, matrix NAME"),
        ("resource m counter at a with matrix strict", "unknown matrix 'strict'; known: none"),
        ("matrix strict set inc take-two", "unknown result 'take-two'; known results: take-one, "),
        ("matrix strict set set take-both-keep-order", "a type has no order with itself"),
        ("matrix strict set inc take-both sometimes", "usage: matrix"),
        ("move a n b", "usage: move"),
        ("move a n to c", "unknown site 'c'; known: a, b"),
        ("partition a", "say on which side b is to be"),
        ("cut a b", "usage: cut"),
        ("cut a to b", "usage: cut"),
        ("deliver a", "usage: deliver"),
        ("deliver b a", "nothing is on its way from b to a"),
        ("crash a after lunch", "usage: crash"),
        ("crash a after run", "a runs nothing; pause it first"),
        ("restart a", "a is running; crash it first"),
        ("crash a\npause a", "a is down; restart it first"),
        ("refuse a often", "'often' is not a whole number"),
        ("resolve a n a:1 maybe", "unknown outcome 'maybe'; known: did-not-happen, happened"),
        ("timeout a never", "unknown moment 'never'; known: after, before"),
    ],
)
def test_a_bad_line_is_named(line: str, problem: str) -> None:
    number = 4 + line.count("\n")
    with pytest.raises(ScriptError, match=f"^line {number}: ") as caught:
        replay(WORLD + line)
    assert problem in str(caught.value)


def test_what_was_printed_before_is_not_read() -> None:
    once = replay(WORLD + "deliver\nlog n\nstate n\n")
    assert "  a, b: 1\n" in once
    assert replay(once) == once
