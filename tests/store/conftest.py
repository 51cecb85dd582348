"""A store of each kind, for every test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from cheops.store.interface import Store
from tests.store.stores import STORES


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    opened = STORES[request.param](tmp_path)
    yield opened
    opened.close()
