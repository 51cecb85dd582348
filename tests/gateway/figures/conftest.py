from collections.abc import Iterator

import pytest

from tests.gateway.figures.cloud import SITES, Cloud
from tests.wan import Wan
from tests.wan.bed import missing


@pytest.fixture(scope="package")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """One bed for all figures: each test has names of its own, and leaves the network whole."""
    if lacking := missing():
        pytest.skip(lacking)
    with Wan(SITES) as wan:
        made = Cloud(tmp_path_factory.mktemp("figures") / "rig", wan)
        try:
            made.shape()
            made.start()
            yield made
        finally:
            made.rig.close()
