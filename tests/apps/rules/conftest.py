import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.replicas.app_sites import AppSites
from tests.wan import Wan
from tests.wan.fixtures import make_wan, wan

__all__ = ["make_wan", "wan"]

ROOT = Path(__file__).parents[3]
APPLICATIONS = Path(os.environ.get("CHEOPS_TEST_APPLICATIONS", ROOT / ".venv-applications"))
NODE_RED = Path(os.environ.get("CHEOPS_TEST_NODE_RED", ROOT / ".node-red"))

MakeSites = Callable[..., AppSites]


@pytest.fixture
def make_sites(tmp_path: Path) -> Iterator[MakeSites]:
    """Makes sites that are not started, with one service: `make_sites("git", wan, rules="git")`."""
    made: list[AppSites] = []

    def make(service: str, wan: Wan, **settings: Any) -> AppSites:
        sites = AppSites(tmp_path / f"rig{len(made)}", service, wan, **settings)
        made.append(sites)
        return sites

    try:
        yield make
    finally:
        for sites in made:
            sites.rig.close()
