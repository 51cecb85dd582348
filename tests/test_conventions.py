"""What the house rules say and a machine can check."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

from tests.support.command import ROOT

SOURCES = sorted((ROOT / "src").rglob("*.py"))
PURE = [path for path in SOURCES if path.relative_to(ROOT / "src" / "cheops").parts[0] in {"scope", "log", "engine"}]
TEXTS = sorted(
    path
    for pattern in (
        "*.md",
        "*.txt",
        "*.toml",
        "Makefile",
        "docs/**/*.md",
        "scripts/*",
        "src/**/*.*",
        "tests/**/*.*",
        "bench/*.py",
    )
    for path in ROOT.glob(pattern)
    if path.is_file() and "__pycache__" not in path.parts
)


def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.name)
def test_the_pure_core_neither_waits_nor_touches_the_world(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        assert not isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"open", "print", "input", "exec", "eval", "__import__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_functions_and_files_stay_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 500
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 70, f"{node.name} is too long"


LOCKS = ("requirements.lock", "requirements-dev.lock")


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_has_names_versions_and_hashes_only(name: str) -> None:
    text = (ROOT / name).read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert lines
    pin, marker, hash_ = r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", r"( ; [\w' =]+)?", r" +--hash=sha256:[0-9a-f]{64}"
    assert [line for line in lines if not re.fullmatch(f"{pin}{marker}({hash_})+ *", line)] == []


def test_the_locks_agree_and_have_all_that_is_needed() -> None:
    running, developing = (
        dict(re.findall(r"^([^=\s]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE)) for name in LOCKS
    )
    assert running.items() <= developing.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for wanted, pinned in ((project["dependencies"], running), (project["optional-dependencies"]["dev"], developing)):
        names = {re.split(r"[<>=;\s]", one)[0].lower().replace("_", "-") for one in wanted}
        assert names <= pinned.keys()
    assert {"hatchling", "editables"} <= running.keys(), "Cheops is built with these"


def test_no_file_names_a_package_index() -> None:
    index = re.compile("(index-url|find-links|registry" + r"=)|simple/\b", re.IGNORECASE)
    assert not [str(path) for path in TEXTS if path.name != Path(__file__).name and index.search(path.read_text())]


def test_ci_runs_the_commands_of_the_readme() -> None:
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make check", "make test", "make apps"]
    readme = (ROOT / "README.md").read_text()
    assert all(command in readme for command in [*commands, "make demo"])
