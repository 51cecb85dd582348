"""Links of the documentation work: the file exists, and it has the heading."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support.command import ROOT

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]
PICTURES = sorted((ROOT / "docs" / "pictures").rglob("*.svg"))
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def links(page: Path) -> list[str]:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    return [link for link in _LINK.findall(text) if "://" not in link]


def anchors(page: Path) -> set[str]:
    """As renderers derive them from headings: lower case, no punctuation, hyphens for spaces."""
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_works(page: Path) -> None:
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), link


def test_every_picture_is_used_and_has_a_description() -> None:
    shown = {link for page in PAGES for link in links(page) if link.startswith("pictures/")}
    assert shown == {str(path.relative_to(ROOT / "docs")) for path in PICTURES}
    for path in PICTURES:
        root = ET.parse(path).getroot()  # noqa: S314 - our own file
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert "prefers-color-scheme: dark" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.name)
def test_picture_is_small_and_self_contained(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text) < 8_000
    assert not re.search(r"href|url\((?!#)|@import|<script", text)


# -- screenshots of the web interface ------------------------------------------------------------------------

_SHOWN = re.compile(r'(?:src|srcset)="([^"]+)"')
_SHOTS = ROOT / "docs" / "pictures" / "ui"


def test_every_screenshot_is_used_in_light_and_dark() -> None:
    shown = {(page.parent / link).resolve() for page in PAGES for link in _SHOWN.findall(page.read_text("utf-8"))}
    assert shown == set(_SHOTS.iterdir())
    names = {path.name for path in shown}
    assert {name.replace("-light", "-dark") for name in names} == {n for n in names if "-dark" in n}
    assert sum(path.stat().st_size for path in shown) < 1_000_000
    for page in PAGES:
        for image in re.findall(r"<img [^>]*>", page.read_text("utf-8")):
            assert re.search(r'alt="[^"]{10,}"', image), image


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_has_conflict_markers(page: Path) -> None:
    assert not re.search(r"^(<<<<<<<|>>>>>>>) ", page.read_text(encoding="utf-8"), re.MULTILINE)
