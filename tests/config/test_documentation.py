"""The reference has every setting with its default, and its examples are valid.

`pytest tests/config/test_documentation.py --update-reference` rewrites the tables of docs/configuration.md.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.config.site import parse_site, read_site
from cheops.config.types import TypeConfig
from cheops.log.policy import Policy, SiteGroup
from tests.config.reference import settings_by_path, with_tables
from tests.support.command import ROOT

PAGE = ROOT / "docs" / "configuration.md"
REFERENCE = PAGE.read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", REFERENCE, re.MULTILINE)
EXAMPLES = sorted((ROOT / "examples").glob("site*.yaml"))


def test_the_tables_are_up_to_date(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-reference"):
        PAGE.write_text(with_tables(REFERENCE), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == with_tables(REFERENCE), "a setting changed: pytest --update-reference"


def test_every_key_is_documented_once_and_no_other() -> None:
    documented = [key for key, _ in ROWS]
    assert sorted(documented) == sorted(settings_by_path())


def test_the_documented_defaults_are_the_defaults(tmp_path: Path) -> None:
    """A file that spells all of them out says the same as one that says nothing."""
    needed: dict[str, Any] = {
        "site": "a",
        "security": {},
        "services": {
            "t": {"url": "http://127.0.0.1:9292", "auth": {"file": "headers"}, "sign": {"sigv4": {"file": "key"}}}
        },
        "types": {"t": {"read": "r", "checkpoint": {"write": "w {state}"}}},
        "notify": {"t": {"webhook": {"url": "http://h.example"}}},
    }
    spelled: dict[str, Any] = yaml.safe_load(yaml.safe_dump(needed))
    count = 0
    for key, default in ROWS:
        if default.startswith("`") and default.endswith("`"):
            *path, last = key.replace("NAME", "t").split(".")
            place = spelled
            for name in path:
                place = place.setdefault(name, {})
            place[last] = yaml.safe_load(default.strip("`"))
            count += 1
    assert count > 15
    texts = (yaml.safe_dump(spelled), yaml.safe_dump(needed))
    explicit, implicit = (parse_site(text, tmp_path / "site.yaml") for text in texts)
    assert explicit == implicit


def test_required_keys_are_marked() -> None:
    required = {key for key, default in ROWS if default == "required"}
    assert required == {
        "site",
        "demo.wires",
        "services.NAME.url",
        "services.NAME.sign.sigv4",
        "services.NAME.sign.sigv4.file",
        "services.NAME.tls.certificate",
        "services.NAME.tls.key",
        "types.NAME.checkpoint.write",
        "types.NAME.decompose.amount",
        "types.NAME.decompose.unit",
        "notify.NAME.webhook.url",
        "notify.NAME.mail.smtp",
        "notify.NAME.mail.from",
        "notify.NAME.mail.to",
    }


def yaml_blocks() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```$", REFERENCE, re.MULTILINE | re.DOTALL)


def test_the_blocks_of_the_reference_are_valid(tmp_path: Path) -> None:
    site, on_error, policy, show, notify = yaml_blocks()
    assert parse_site(site, tmp_path / "site.yaml").peers == {"site2": "https://10.0.0.2:8079"}

    def type_of(block: str) -> TypeConfig:
        inner = block.strip().replace("\n", "\n    ")
        return parse_site(f"site: a\ntypes:\n  t:\n    {inner}\n", tmp_path / "site.yaml").types["t"]

    assert type_of(on_error).engine.decompose is not None
    assert type_of(policy).policy == Policy(SiteGroup.INVOLVED, ("site1",), ("site1", "site2"))
    assert list(type_of(show).hints()) == []
    targets = parse_site(f"site: a\n{notify}", tmp_path / "site.yaml").notify
    assert [target.name for target in targets] == ["chat", "pager"]


def test_there_are_examples() -> None:
    assert ROOT / "examples" / "site.yaml" in EXAMPLES
    assert all(f"examples/{path.name}" in REFERENCE for path in EXAMPLES if path.name != "sites.yaml")


@pytest.mark.parametrize("path", [path for path in EXAMPLES if path.name != "sites.yaml"], ids=lambda path: path.name)
def test_the_examples_are_right_and_leave_no_doubt(path: Path) -> None:
    config = read_site(path)
    assert config.warnings == ()
    assert not [hint for type_ in config.types.values() for hint in type_.hints()]
