from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.replicas.sites import SITES, Sites, running
from tests.wan import Wan
from tests.wan.fixtures import make_wan, wan

__all__ = ["make_wan", "wan"]

MakeSites = Callable[..., Sites]


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    """Three sites that a module's tests share: each uses names of its own."""
    with running(Sites(tmp_path_factory.mktemp("replicas") / "rig")) as sites:
        yield sites


@pytest.fixture
def make_sites(tmp_path: Path) -> Iterator[MakeSites]:
    """Makes sites that are not started: `make_sites("a", "b", wan=wan, exists="adopt")`."""
    made: list[Sites] = []

    def make(*names: str, wan: Wan | None = None, **settings: Any) -> Sites:
        sites = Sites(tmp_path / f"rig{len(made)}", names or SITES, wan, **settings)
        made.append(sites)
        return sites

    try:
        yield make
    finally:
        for sites in made:
            sites.rig.close()
