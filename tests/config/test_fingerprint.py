"""Fingerprints of types: equal for equal configuration, in every process, and they tell what differs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from cheops.config.fingerprint import Difference, difference_of, differences, fingerprints
from cheops.config.rule_syntax import rule_sets
from cheops.config.site import parse_site
from cheops.peers.heartbeat import SiteRecord, check_entry

BASE: dict[str, Any] = {
    "site": "a",
    "listen": "127.0.0.1:8079",
    "data": "data",
    "security": "none",
    "types": {"n": {"allow": ["echo *", "cat __ID__"], "read": "cat __ID__", "reset": "rm __ID__"}},
    "services": {"kv": {"url": "http://127.0.0.1:9", "rules": ["etcd"]}},
}


def of(**changes: Any) -> tuple[tuple[str, str], ...]:
    return fingerprints(parse_site(yaml.safe_dump({**BASE, **changes}), Path("site.yaml")))


def with_type(**changes: Any) -> tuple[tuple[str, str], ...]:
    return of(types={"n": {**BASE["types"]["n"], **changes}})


def test_what_is_written_in_another_order_is_the_same() -> None:
    assert with_type(allow=["cat __ID__", "echo *"]) == of()
    assert differences(of(), of(site="b", listen="127.0.0.1:8078")) == []


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"allow": ["echo *"]}, "allow"),
        ({"read": "wc __ID__"}, "read"),
        ({"reset": "rm -f __ID__"}, "reset"),
        ({"policy": {"sites": "involved"}}, "policy"),
        ({"matrix": [{"before": "x", "after": "y", "result": "take-one"}]}, "matrix"),
        ({"parallel": True}, "settings"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_part_is_told(changes: dict[str, Any], part: str) -> None:
    assert differences(of(), with_type(**changes)) == [Difference("n", (part,))]


def test_rules_of_services_are_told() -> None:
    other = of(services={"kv": {"url": "http://127.0.0.1:8", "rules": ["git"]}})
    assert differences(of(), other) == [Difference("http:kv", ("rules",))]
    elsewhere = of(services={"kv": {"url": "http://127.0.0.1:8", "rules": ["etcd"], "timeout": "9s"}})
    assert differences(of(), elsewhere) == []


def test_a_type_that_only_one_site_has_is_no_difference() -> None:
    assert differences(of(), of(types={})) == []


@pytest.mark.parametrize("name", rule_sets())
def test_every_set_of_rules_has_a_fingerprint(name: str) -> None:
    assert of(services={"kv": {"url": "http://127.0.0.1:9", "rules": [name]}})


def test_any_number_of_types_with_any_names_fits_into_a_record() -> None:
    """Otherwise the agent would not start."""
    many = of(types={f"type {n} {'x' * 100}": {"allow": ["true"]} for n in range(300)})
    assert 20 < len(many) < 300
    check_entry(SiteRecord("a", "1", "http://127.0.0.1:8079", 1, types=many))
    long = "n" * 200
    one, other = of(types={long: {"allow": ["true"]}}), of(types={long: {"allow": ["false"]}})
    found = difference_of(long, one, other)
    assert found is not None
    assert found.parts == ("allow",)


def test_another_process_finds_the_same() -> None:
    """Sets have another order there."""
    argv = [sys.executable, "-c", "from tests.config.test_fingerprint import of; print(of())"]
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    found = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(of())
