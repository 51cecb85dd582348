from collections.abc import Iterator

import pytest

from tests.agent.rig import make_rig, until
from tests.gateway.raw import Socket, Upstream, connected
from tests.gateway.stage import Stage
from tests.wan.fixtures import make_wan, wan

__all__ = ["make_rig", "make_wan", "wan"]


@pytest.fixture(scope="module")
def plane() -> str:
    """Who forwards. Modules that hold for both have a fixture of their own for it."""
    return "builtin"


@pytest.fixture(scope="module")
def one_site(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[Stage]:
    """A site whose service is an `upstream` of each test's own."""
    stage = Stage(tmp_path_factory.mktemp("gateway") / "rig", ("site1",), ("image",), plane=plane)
    try:
        stage.rig.start()
        yield stage
    finally:
        stage.rig.close()


@pytest.fixture(scope="module")
def hasty_site(tmp_path_factory: pytest.TempPathFactory, plane: str) -> Iterator[Stage]:
    """The same with little patience, whose service is told all of who asks."""
    hurry = ("head_timeout", "stall_timeout", "silence_timeout", "keep_alive", "warm_for")
    base = tmp_path_factory.mktemp("gateway") / "rig"
    settings = {**dict.fromkeys(hurry, "1s"), "forwarded_headers": "all"}
    stage = Stage(base, ("site1",), ("image",), gateway=settings, timeout="1s", plane=plane)
    try:
        stage.rig.start()
        yield stage
    finally:
        stage.rig.close()


def _service_of(stage: Stage) -> Iterator[Upstream]:
    service = Upstream(stage.own("site1"))
    yield service
    # What a test left under way must not turn up at the service of the next one.
    until(lambda: "cheops_gateway_connections 0\n" in stage.rig.request("site1", "GET", "/metrics").decode())
    service.close()


@pytest.fixture
def upstream(one_site: Stage) -> Iterator[Upstream]:
    yield from _service_of(one_site)


@pytest.fixture
def client(one_site: Stage, upstream: Upstream) -> Iterator[Socket]:
    del upstream  # it is there, and outlives its clients
    with connected(one_site.address("site1")) as made:
        yield made


@pytest.fixture
def slow_upstream(hasty_site: Stage) -> Iterator[Upstream]:
    yield from _service_of(hasty_site)


@pytest.fixture
def hasty_client(hasty_site: Stage, slow_upstream: Upstream) -> Iterator[Socket]:
    del slow_upstream
    with connected(hasty_site.address("site1")) as made:
        yield made
