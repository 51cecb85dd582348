"""Replays the how-tos and the README: every command runs, and must print what the text shows."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.demo.terminal import nothing_is_left
from tests.docs.shell import Reader, normalized_lines
from tests.support.command import ROOT
from tests.wan import Wan
from tests.wan.bed import missing

NEEDS = {"redis": "redis-server", "files": "sh", "text": "sed"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NEEDS)
def test_how_to_shows_real_output(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if shutil.which(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}, of the package of the same name")
    with Reader(tmp_path) as reader:
        check(ROOT / "docs" / f"howto-{name}.md", reader, request)
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "home").mkdir()
    nothing_is_left(tmp_path / "home")


def check(path: Path, reader: Reader, request: pytest.FixtureRequest) -> None:
    """Every command prints what the text shows. `--update-transcripts` rewrites the page."""
    text = path.read_text(encoding="utf-8")
    now = reader.read(text)
    assert "no response from the agent" not in now
    assert "No such" not in now
    if request.config.getoption("--update-transcripts") and normalized_lines(now) != normalized_lines(text):
        path.write_text(now, encoding="utf-8")
        text = now
    assert normalized_lines(text) == normalized_lines(now), "if the change is meant: pytest --update-transcripts"


def test_gateway_example_shows_real_output(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """On a separate host of the test bed, because it uses many ports."""
    if reason := missing() or ("" if shutil.which("curl") else "needs curl"):
        pytest.skip(reason)
    path = ROOT / "examples" / "minicloud" / "README.md"
    with Wan(["reader"]) as wan, Reader(tmp_path, wan.hosts["reader"]) as reader:
        check(path, reader, request)


def test_readme_shows_real_output(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its reader first starts the sites of the example."""
    if reason := missing() or ("" if shutil.which("curl") else "needs curl"):
        pytest.skip(reason)
    example = (ROOT / "examples" / "minicloud" / "README.md").read_text(encoding="utf-8")
    start = re.search(r"^```text\n.*?^```$", example, re.MULTILINE | re.DOTALL)
    assert start
    with Wan(["reader"]) as wan, Reader(tmp_path, wan.hosts["reader"]) as reader:
        reader.read(start.group())
        check(ROOT / "README.md", reader, request)


@pytest.mark.parametrize("name", NEEDS)
def test_how_to_shows_the_type_of_the_example(name: str) -> None:
    text = (ROOT / "docs" / f"howto-{name}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(types:.*?)^```$", text, re.MULTILINE | re.DOTALL)
    example = yaml.safe_load((ROOT / "examples" / name / "site1.yaml").read_text())
    assert yaml.safe_load(block)["types"] == example["types"]


@pytest.mark.parametrize("name", NEEDS)
def test_the_three_sites_differ_in_name_and_address_only(name: str) -> None:
    texts = [(ROOT / "examples" / name / f"site{number}.yaml").read_text() for number in (1, 2, 3)]
    same = {text.replace(f"site{n}", "site").replace(f"808{n}", "8080") for n, text in enumerate(texts, 1)}
    assert len(same) == 1
