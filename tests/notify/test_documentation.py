"""docs/notifications.md says what there is, and its examples work."""

import json
import re
import time
from typing import Any

from cheops.config.notify import EventKind
from cheops.config.site import parse_site
from cheops.notify.event import decoded, encoded
from cheops.notify.signature import HEADER, sign
from tests.support.command import ROOT

PAGE = (ROOT / "docs" / "notifications.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_every_kind_is_documented_and_no_other() -> None:
    table = PAGE.split("## Events")[1].split("```")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert [kind for cell in cells for kind in re.findall("`([^`]+)`", cell)] == [kind.value for kind in EventKind]


def test_the_examples_are_events() -> None:
    for text in blocks("json"):
        assert json.loads(encoded(decoded(text.encode()))) == json.loads(text)


def test_the_settings_are_right() -> None:
    for text in blocks("yaml"):
        assert len(parse_site(f"site: a\n{text}", ROOT / "site.yaml").notify) == 1


def test_the_receiver_in_a_few_lines_is_right() -> None:
    (code,) = blocks("python")
    names: dict[str, Any] = {}
    exec(compile(code, "docs/notifications.md", "exec"), names)  # noqa: S102 - our own page
    header = sign(b"s3cret", b"{}", int(time.time()))
    assert names["is_genuine"](b"s3cret", b"{}", header)
    assert not names["is_genuine"](b"s3cret", b"{ }", header)
    assert not names["is_genuine"](b"s3cret", b"{}", sign(b"s3cret", b"{}", 1))
    assert f"`{HEADER}`" in PAGE
