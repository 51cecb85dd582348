"""The bed for pytest. A directory whose tests use it names the fixtures in its conftest.py:

    from tests.wan.fixtures import make_wan, wan

    __all__ = ["make_wan", "wan"]

A test that asks for them is skipped where no bed can be made, and the reason says what is missing.
"""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.wan.bed import Wan, missing

# For a test that makes its beds some other way, e.g. in a process of its own.
requires_wan = pytest.mark.skipif(missing() is not None, reason=missing() or "")

MakeWan = Callable[..., Wan]


@pytest.fixture
def make_wan() -> Iterator[MakeWan]:
    """Makes beds: `make_wan("a", "b", delay_ms=25)`, with the options of `Wan`; they end with the test."""
    if lacking := missing():
        pytest.skip(lacking)
    with contextlib.ExitStack() as beds:
        yield lambda *names, **options: beds.enter_context(Wan(names, **options))


@pytest.fixture
def wan(make_wan: MakeWan) -> Wan:
    """A bed of three hosts, site1 to site3, without any delay."""
    return make_wan("site1", "site2", "site3")
