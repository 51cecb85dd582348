"""The threat model: every line names tests, and all of those are there."""

import re
from pathlib import Path

import pytest

from tests.support.command import ROOT

TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
FOLDERS = [ROOT / "tests" / name for name in ("security", "gateway/tenants", "gateway/replicas")]
MODEL = TEXT.partition("## What is protected from whom")[2].partition("### What is not protected")[0]
ROWS = [line for line in MODEL.splitlines() if line.startswith("|") and not line.startswith(("| ---", "| it can |"))]
NAMED = re.findall(r"`(\w+): (\w+)`", MODEL)


def functions(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: re.sub(r"\W+", "-", row)[:60])
def test_every_line_names_what_shows_it(row: str) -> None:
    shown_by = row.split("|")[3]
    assert re.search(r"`\w+: \w+`", shown_by) or "#fuzzing" in shown_by


@pytest.mark.parametrize(("module", "name"), NAMED[1:] if NAMED[0][0] == "forgery" else NAMED)
def test_every_test_that_is_named_is_there(module: str, name: str) -> None:
    files = [folder / f"test_{module}.py" for folder in FOLDERS]
    assert any(f"test_{name}" in functions(path) for path in files if path.exists())


def test_all_attackers_are_spoken_of() -> None:
    assert re.findall(r"^### (.*)$", MODEL, re.MULTILINE) == [
        "A hostile network",
        "A stolen site",
        "A stolen token",
        "A hostile client",
        "A hostile client of the gateway",
    ]
    assert len(ROWS) > 25
