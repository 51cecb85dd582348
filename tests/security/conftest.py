"""Three honest sites and a stolen one, for all attacks of a module."""

from collections.abc import Iterator

import pytest

from tests.security.honest_sites import HonestSites, honest_sites
from tests.security.hostile_site import HostileSite, hostile_site


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HonestSites]:
    """At the end all that was ever acknowledged is still there."""
    with honest_sites(tmp_path_factory.mktemp("honest") / "rig") as sites:
        yield sites
        sites.everything_stands()


@pytest.fixture(scope="module")
def thief(honest: HonestSites) -> Iterator[HostileSite]:
    with hostile_site(honest) as site:
        yield site
