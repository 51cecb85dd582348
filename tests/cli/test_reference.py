"""docs/cli.md has every command and every option, and no other; the lists that stand for imports are right."""

import re
import subprocess
import sys
from typing import Any

import pytest

from cheops.cli.commands import _EXEC_FLAGS, _EXEC_OPTIONS, COMMANDS, with_exec
from tests.cli.tree import COMMON, commands, names_of, root
from tests.support.command import ROOT, run_process

REFERENCE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SECTIONS = {
    match[1]: match[3]
    for match in re.finditer(
        r"^### `(cheops(?: [a-z]+)+)([^`]*)`\n(.*?)(?=^##|\Z)", REFERENCE, re.MULTILINE | re.DOTALL
    )
}
ALL = dict(commands())


def rows(text: str) -> list[str]:
    """What the first cells of the tables of a section name."""
    cells = re.findall(r"^\| (`[^|]+) \|", text, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([^`]+)`", cell)]


def test_every_command_has_a_section_and_every_section_a_command() -> None:
    assert sorted(SECTIONS) == sorted(ALL)


@pytest.mark.parametrize("name", sorted(ALL))
def test_every_option_is_documented_once_and_no_other(name: str) -> None:
    assert sorted(rows(SECTIONS[name])) == sorted(names_of(ALL[name]))


def test_common_options_are_documented_where_all_commands_are() -> None:
    common = REFERENCE.split("## Exit codes")[0]
    own = {name for option in root().params for name in option.opts}
    assert set(rows(common)) == COMMON | own


def test_every_exit_code_is_documented() -> None:
    codes = re.findall(r"^\| (\d+) \|", REFERENCE, re.MULTILINE)
    assert codes == ["0", "1", "2", "3", "130"]


def test_examples_of_the_reference_are_command_lines_that_exist() -> None:
    for line in re.findall(r"^cheops (.*)$", REFERENCE, re.MULTILINE):
        words = with_exec(line.split())
        place = next(place for place in COMMANDS if place.name == words[0])
        options = {word.split("=")[0] for word in words if word.startswith("-")}
        known = {"cheops " + " ".join(words[:2]), f"cheops {words[0]}"} & set(ALL)
        assert known, line
        assert options <= names_of(ALL[max(known, key=len)]) | COMMON, f"{place.name}: {line}"


# -- what stands for modules that are not imported -------------------------------------------------------


@pytest.mark.parametrize("place", COMMANDS, ids=lambda place: place.name)
def test_the_summary_of_a_command_is_what_it_says_of_itself(place: Any) -> None:
    assert place.load().help.split("\n\n")[0] == place.summary


def test_the_papers_form_knows_the_options_of_exec() -> None:
    flags = {name for option in ALL["cheops exec"].params if option.is_flag for name in option.opts}
    names = {name for option in ALL["cheops exec"].params if not option.is_flag for name in option.opts}
    assert set(_EXEC_FLAGS) == flags
    assert set(_EXEC_OPTIONS) == names - {"--help", "-h"}


@pytest.mark.parametrize(
    ("line", "is_exec"),
    [
        ("--id a --sites b --command c --type d", True),
        ("--command status --id a --type d", True),  # the value of an option is no command
        ("--sites=a --id=b", True),
        ("--force --id a", True),
        ("--url http://a status b", False),
        ("--version", False),
        ("--help", False),
        ("status a", False),
        ("", False),
    ],
)
def test_the_word_exec_is_added_where_options_of_it_begin(line: str, is_exec: bool) -> None:
    argv = line.split()
    assert with_exec(argv) == (["exec", *argv] if is_exec else argv)


# What a command must not wait for. (Typer from 0.29 on takes pydantic to read options.)
SLOW = ["aiohttp", "pydantic", "starlette", "uvicorn", "asyncio", "lark", "yaml"]
SLOW += ["cheops.config.site", "cheops.engine.site", "cheops.sim.world"]


@pytest.mark.parametrize(
    ("argv", "needless"),
    [
        (["--help"], [*SLOW, "msgspec", "cheops.client"]),
        (["--version"], [*SLOW, "msgspec", "cheops.client", "rich.console"]),
        (["status", "n", "--url", "http://127.0.0.1:1"], SLOW),
        (["exec", "--id", "n", "--type", "t", "--command", "c", "--url", "http://127.0.0.1:1"], SLOW),
    ],
)
def test_a_command_imports_only_what_it_needs(argv: list[str], needless: list[str]) -> None:
    program = (
        "import sys; from cheops.cli.main import main; main(sys.argv[2:]); "
        "print(*(set(sys.argv[1].split(',')) & set(sys.modules)), file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, ",".join(needless), *argv], capture_output=True, text=True, check=True
    )
    assert ran.stderr.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("words", "expected"),
    [("cheops stat", "status"), ("cheops sites re", "remove"), ("cheops exec --dry", "--dry-run")],
)
def test_the_shell_completes_commands_and_options(words: str, expected: str) -> None:
    env = {
        "_CHEOPS_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
        "PATH": "/usr/bin:/bin",
    }
    assert run_process(env=env).out.split() == [expected]
