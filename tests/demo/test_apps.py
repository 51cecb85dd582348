"""The demo's applications: what they do, and that they keep to their directory."""

import subprocess
from pathlib import Path

import pytest

from tests.support.command import ROOT

APPS = ROOT / "src" / "cheops" / "demo" / "apps"


def run(folder: Path, line: str) -> tuple[int, str]:
    name, *argv = line.split()
    done = subprocess.run(["/bin/sh", APPS / name, *argv], cwd=folder, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_notebook(tmp_path: Path) -> None:
    for line in ("note set list bread", "note add list milk"):
        assert run(tmp_path, line) == (0, "")
    assert run(tmp_path, "note show list") == (0, "bread\nmilk\n")
    assert run(tmp_path, "note clear list") == (0, "")
    assert run(tmp_path, "note show list") == (0, "")


def test_a_stock_never_falls_below_zero(tmp_path: Path) -> None:
    assert run(tmp_path, "stock set shoes 100") == (0, "")
    assert run(tmp_path, "stock take shoes 51") == (0, "")
    assert run(tmp_path, "stock take shoes 50") == (1, "49 is less than 50\n")
    assert run(tmp_path, "stock take shoes 49") == (0, "")
    assert run(tmp_path, "stock show shoes") == (0, "0\n")
    assert run(tmp_path, "stock take shoes 1") == (1, "0 is less than 1\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("note set ../list x", "'../list' is not the name of a page"),
        ("note set /tmp/list x", "'/tmp/list' is not the name of a page"),
        ("note set .list x", "'.list' is not the name of a page"),
        ("note show -n", "'-n' is not the name of a page"),
        ("note set list", "usage: note"),
        ("note", "'' is not the name of a page"),
        ("stock set ../shoes 1", "'../shoes' is not the name of an item"),
        ("stock set shoes -1", "'-1' is not a number of things"),
        ("stock set shoes 010", "'010' is not a number of things"),
        ("stock set shoes 1$(id)", "'1$(id)' is not a number of things"),
        ("stock take nothing 1", "nothing"),
        ("stock dance shoes", "usage: stock"),
    ],
)
def test_what_they_refuse(tmp_path: Path, line: str, said: str) -> None:
    code, output = run(tmp_path, line)
    assert code != 0
    assert said in output
    assert not [*tmp_path.iterdir()]
