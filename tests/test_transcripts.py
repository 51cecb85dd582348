"""Every transcript, and every console block of the documentation, shows what the commands print now."""

from pathlib import Path

import pytest

from tests.support.command import ROOT
from tests.support.transcript import has_transcript, replayed

FILES = sorted(
    path
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/transcripts/*.txt"))
    if has_transcript(path)
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_transcript_shows_what_is_printed(path: Path, request: pytest.FixtureRequest) -> None:
    now = replayed(path)
    if request.config.getoption("--update-transcripts"):
        path.write_text(now, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == now, "if the change is meant: pytest --update-transcripts"


def test_the_documentation_has_transcripts() -> None:
    assert ROOT / "docs" / "tour.md" in FILES
