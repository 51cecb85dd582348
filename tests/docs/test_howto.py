"""The how-tos, typed by a test: every command is run, and prints what the text says."""

import re
import shutil
from pathlib import Path

import pytest
import yaml

from tests.demo.terminal import nothing_is_left
from tests.docs.shell import Reader, alike
from tests.support.command import ROOT
from tests.wan import Wan
from tests.wan.bed import missing

NEEDS = {"redis": "redis-server", "files": "sh"}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", NEEDS)
def test_a_how_to_shows_what_happens(name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    if shutil.which(NEEDS[name]) is None:
        pytest.skip(f"needs {NEEDS[name]}, of the package of the same name")
    with Reader(tmp_path) as reader:
        check(ROOT / "docs" / f"howto-{name}.md", reader, request)
    shutil.rmtree(tmp_path / "home")
    (tmp_path / "home").mkdir()
    nothing_is_left(tmp_path / "home")


def check(path: Path, reader: Reader, request: pytest.FixtureRequest) -> None:
    """Whether what is typed prints what the text says."""
    text = path.read_text(encoding="utf-8")
    now = reader.read(text)
    assert "no answer from the agent" not in now
    assert "No such" not in now
    if request.config.getoption("--update-transcripts") and alike(now) != alike(text):
        path.write_text(now, encoding="utf-8")
        text = now
    assert alike(text) == alike(now), "if the change is meant: pytest --update-transcripts"


def test_the_example_of_the_gateway_shows_what_happens(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """On a host of its own, for it uses many ports."""
    if lacking := missing() or ("" if shutil.which("curl") else "needs curl"):
        pytest.skip(lacking)
    path = ROOT / "examples" / "minicloud" / "README.md"
    with Wan(["reader"]) as wan, Reader(tmp_path, wan.hosts["reader"]) as reader:
        check(path, reader, request)


def test_the_readme_shows_what_happens(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Its reader has started the sites of the example first."""
    if lacking := missing() or ("" if shutil.which("curl") else "needs curl"):
        pytest.skip(lacking)
    example = (ROOT / "examples" / "minicloud" / "README.md").read_text(encoding="utf-8")
    start = re.search(r"^```text\n.*?^```$", example, re.MULTILINE | re.DOTALL)
    assert start
    with Wan(["reader"]) as wan, Reader(tmp_path, wan.hosts["reader"]) as reader:
        reader.read(start.group())
        check(ROOT / "README.md", reader, request)


@pytest.mark.parametrize("name", NEEDS)
def test_a_how_to_shows_the_type_as_it_is_in_the_example(name: str) -> None:
    text = (ROOT / "docs" / f"howto-{name}.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```yaml\n(types:.*?)^```$", text, re.MULTILINE | re.DOTALL)
    example = yaml.safe_load((ROOT / "examples" / name / "site1.yaml").read_text())
    assert yaml.safe_load(block)["types"] == example["types"]


@pytest.mark.parametrize("name", NEEDS)
def test_the_three_sites_differ_in_name_and_address_only(name: str) -> None:
    texts = [(ROOT / "examples" / name / f"site{number}.yaml").read_text() for number in (1, 2, 3)]
    same = {text.replace(f"site{n}", "site").replace(f"808{n}", "8080") for n, text in enumerate(texts, 1)}
    assert len(same) == 1
