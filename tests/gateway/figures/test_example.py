"""The configuration of examples/minicloud: right, the same at each site but for numbers, and as its README says."""

import re

import pytest
import yaml

from tests.gateway.figures.cloud import MINICLOUD
from tests.support.command import run_here


@pytest.mark.parametrize("number", [1, 2, 3])
def test_the_configuration_is_right(number: int) -> None:
    ran = run_here("config", "check", str(MINICLOUD / f"site{number}.yaml"))
    assert ran.code == 0, ran.err


def test_the_three_sites_differ_in_name_and_ports_only() -> None:
    texts = [(MINICLOUD / f"site{number}.yaml").read_text() for number in (1, 2, 3)]
    same = {re.sub(rf"site{n}|(:\d\d\d){n}", r"\1", text) for n, text in enumerate(texts, 1)}
    assert len(same) == 1


def test_the_readme_names_the_ports() -> None:
    readme = (MINICLOUD / "README.md").read_text(encoding="utf-8")
    for number in (1, 2, 3):
        services = yaml.safe_load((MINICLOUD / f"site{number}.yaml").read_text())["services"].values()
        addresses = [service.get(key, "") for service in services for key in ("url", "listen", "outbound")]
        ports = [address.rpartition(":")[2] for address in addresses if address]
        assert all(f"| {port} |" in readme for port in ports), ports


def test_the_example_is_what_is_shipped() -> None:
    for name in ("image", "compute", "rest"):
        assert (MINICLOUD / f"{name}.py").resolve().parent.name == "minicloud"
        assert (MINICLOUD / f"{name}.py").resolve().is_relative_to(MINICLOUD.parents[1] / "src" / "cheops" / "demo")
