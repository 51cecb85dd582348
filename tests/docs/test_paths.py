"""Source files that the documentation mentions exist, so that renaming a module also renames it in the text."""

import re
from pathlib import Path

import pytest

from tests.support.command import ROOT

PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]
PACKAGES = ROOT / "src" / "cheops"
_SOURCES = ("py", "js", "css", "lark", "yaml", "svg", "service", "txt", "json", "toml")
# A path with a folder in it, as `engine/site.py`, `src/cheops/log/rules.py` or `tests/scenarios/`.
_PATH = re.compile(rf"(?<![\w/.~*{{-])((?:[\w-]+/)+(?:[\w.-]+\.(?:{'|'.join(_SOURCES)}))?)(?![\w/*{{-])")
_FENCED = re.compile(r"^```(?!\s*$).*?^```$", re.MULTILINE | re.DOTALL)
_URL = re.compile(r"\bhttps?://\S+|\]\([^)]*\)")
_TOP = {path.name for path in ROOT.iterdir() if path.is_dir()}


def mentioned(page: Path) -> set[str]:
    """Paths in the prose that begin with a folder of the repository or with a package."""
    text = _URL.sub(" ", _FENCED.sub("", page.read_text(encoding="utf-8")))
    packages = {path.name for path in PACKAGES.iterdir() if path.is_dir()} | {"cheops"}
    found = {match.group(1) for match in _PATH.finditer(text)}
    return {path for path in found if path.split("/")[0] in _TOP | packages and "." in path.rsplit("/", 1)[1]}


def exists(path: str) -> bool:
    return any((base / path).exists() for base in (ROOT, ROOT / "src", PACKAGES))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_mentioned_source_file_exists(page: Path) -> None:
    assert {path for path in mentioned(page) if not exists(path)} == set()


def test_paths_in_the_text_are_found() -> None:
    assert {"src/cheops/log/rules.py", "tests/sim/planted.py"} <= {
        path for page in PAGES for path in re.findall(r"(?:src|tests)/[\w/]+\.py", page.read_text(encoding="utf-8"))
    }
