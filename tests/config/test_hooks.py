"""What a type runs by itself: states written back, commands split into steps, plugins."""

import shlex
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cheops.config.command import MAX_UNITS, StateWriter, UnitSteps
from cheops.config.site import SiteConfig, parse_site
from cheops.log.operation import Command, FileRef
from cheops.yaml_file import YamlFileError

TAKE_ONE = UnitSteps(4, "stock take __ID__ 1")


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_state_stays_one_word_whatever_it_holds(state: str) -> None:
    written = StateWriter("write --value={state} __ID__")(f"{state}\n")
    if written is None:
        assert "\0" in state, "no program takes it"
    else:
        assert shlex.split(written.line) == ["write", f"--value={state}", "__ID__"]


def test_only_one_newline_at_the_end_of_a_state_is_dropped() -> None:
    assert StateWriter("write {state}")("a\n\n") == Command("write 'a\n'")
    assert StateWriter("write {state}")("") == Command("write ''")


@pytest.mark.parametrize(
    ("line", "steps"),
    [
        ("stock take shoes 50", 50),
        ("stock take __ID__ 50", 50),
        ("stock take 'red shoes' +2", 2),
        ("stock take shoes 0", 0),
        ("stock take shoes -5", 0),  # gives back: never the unit
        ("stock set shoes 50", 0),  # another command with a number
        ("stock take shoes 50 now", 0),
        ("stock take shoes", 0),
        ("stock take shoes 1.5", 0),
        ("stock take shoes many", 0),
        ("stock take '' 5", 0),
        ("stock take 'shoes 5", 0),
        (f"stock take shoes {MAX_UNITS}", MAX_UNITS),
        (f"stock take shoes {MAX_UNITS + 1}", 0),
        (f"stock take shoes {'9' * 5_000}", 0),
    ],
)
def test_a_command_is_split_only_if_it_is_the_unit_with_another_number(line: str, steps: int) -> None:
    assert TAKE_ONE(Command(line)) == (Command("stock take __ID__ 1"),) * steps


def test_the_number_may_be_below_zero_if_the_unit_is() -> None:
    split = UnitSteps(2, "add -1")
    assert split(Command("add -3")) == (Command("add -1"),) * 3
    assert split(Command("add 3")) == ()


def test_an_id_may_be_part_of_a_word() -> None:
    split = UnitSteps(3, "take item:__ID__. 1")
    assert len(split(Command("take item:a.b. 2"))) == 2
    assert split(Command("take itemXab. 2")) == ()


def test_the_files_of_a_command_go_with_each_step() -> None:
    files = (FileRef("list.txt", "0" * 64, 3),)
    assert UnitSteps(2, "take 1")(Command("take 2", files)) == (Command("take 1", files),) * 2


def test_the_type_hands_the_steps_to_the_engine() -> None:
    engine = site("{on_error: decompose, decompose: {amount: 4, unit: stock take __ID__ 1}}").types["t"].engine
    assert engine.decompose == TAKE_ONE
    assert engine.on_error is None


@pytest.mark.parametrize("line", ["/usr/local/bin/repair", "repair __ID__", "./repair"])
def test_what_is_no_plain_word_is_a_command(line: str) -> None:
    type_ = site(f"{{on_error: {line}}}").types["t"]
    assert type_.engine.on_error == Command(line)
    assert type_.engine.decompose is None


def site(type_settings: str) -> SiteConfig:
    return parse_site(f"site: a\ntypes:\n  t: {type_settings}\n", Path("site.yaml"))


PLUGIN = """
from cheops.log.operation import Command

def twice(command):
    return (command, command)

def joined(operations):
    return (Command(" ".join(operation.payload.line for operation in operations)),)

number = 42
"""


def install(where: Path, entries: str, package: str = "edgehooks") -> None:
    """What installing a package leaves behind: a module, and a note of its entry points."""
    info = where / f"{package}-1.0.dist-info"
    info.mkdir()
    (where / f"{package}.py").write_text(PLUGIN)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages, forgotten after the test."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("edgehooks", "otherhooks"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_plugins_are_taken_by_name(packages: Path) -> None:
    install(packages, "[cheops.on_error]\ntwice = edgehooks:twice\n[cheops.logic]\njoin = edgehooks:joined\n")
    type_ = site("{on_error: twice, logic: join}").types["t"]
    assert (type_.on_error, type_.logic) == ("twice", "join")
    assert type_.engine.decompose is not None
    assert type_.engine.decompose(Command("x")) == (Command("x"), Command("x"))
    assert type_.engine.logic is not None
    assert type_.engine.logic(()) == (Command(""),)
    assert type_.engine.on_error is None


@pytest.mark.parametrize(
    ("entries", "setting", "complaint"),
    [
        (
            "[cheops.logic]\njoin = edgehooks:joined\n",
            "logic: joint",
            "unknown plugin 'joint'; did you mean 'join'? Installed for cheops.logic: join, text",
        ),
        (
            "[cheops.logic]\njoin = edgehooks:number\n",
            "logic: join",
            (
                "the plugin 'join' (edgehooks:number, cheops.logic) cannot be used: it is a int, not a function\n"
                "  Fix it, or uninstall the package that brings it."
            ),
        ),
        (
            "[cheops.on_error]\nmend = edgehooks:nothing\n",
            "on_error: mend",
            (
                "the plugin 'mend' (edgehooks:nothing, cheops.on_error) cannot be used: "
                "module 'edgehooks' has no attribute 'nothing'\n"
                "  Fix it, or uninstall the package that brings it."
            ),
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_refused_where_it_is_named(
    packages: Path, entries: str, setting: str, complaint: str
) -> None:
    install(packages, entries)
    with pytest.raises(YamlFileError) as refused:
        site(f"{{{setting}}}")
    key = setting.split(":", maxsplit=1)[0]
    assert str(refused.value) == f"site.yaml:3: types.t.{key}: {complaint}"


def test_two_plugins_of_one_name_are_refused(packages: Path) -> None:
    install(packages, "[cheops.logic]\njoin = edgehooks:joined\n")
    install(packages, "[cheops.logic]\njoin = otherhooks:joined\n", "otherhooks")
    with pytest.raises(YamlFileError) as refused:
        site("{logic: join}")
    assert str(refused.value) == (
        "site.yaml:3: types.t.logic: the plugin 'join' (cheops.logic) is there more than once: "
        "edgehooks:joined, otherhooks:joined; uninstall all but one"
    )
