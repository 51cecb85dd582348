"""What every response says to browsers: no guessing of types, no frames, no caches."""

from collections.abc import Iterator

import pytest

from cheops.api.server import RESPONSE_HEADERS
from tests.agent.rig import Rig
from tests.security.clients import ask, rig_of

EXPECTED = {name.decode(): value.decode() for name, value in RESPONSE_HEADERS}


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    found = rig_of(tmp_path_factory.mktemp("headers"), secure=False)
    try:
        found.start()
        fields = {"command": "true", "sites": "site1", "type": "set", "resource-type": "file"}
        found.post("site1", "/exec/page", fields)
        yield found
    finally:
        found.close()


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/sites"),
        ("GET", "/api/v1/openapi.json"),
        ("GET", "/api/v1/resources/page"),
        ("GET", "/api/v1/resources/page/operations"),
        ("GET", "/api/v1/resources/none"),
        ("GET", "/api/v1/none"),
        ("POST", "/api/v1/sites"),
        ("POST", "/exec/x"),
        ("GET", "/healthz"),
        ("GET", "/metrics"),
        ("GET", "/db/"),
        ("GET", "/db/none"),
        ("GET", "/peer/none"),
        ("GET", "/ca"),
        ("GET", "/"),
    ],
)
def test_a_browser_takes_a_response_for_what_it_is(rig: Rig, method: str, path: str) -> None:
    said = ask(rig, method, path)
    assert {name: said.headers.get(name) for name in EXPECTED} == EXPECTED


def test_what_the_web_interface_says_itself_stays(rig: Rig) -> None:
    said = ask(rig, "GET", "/ui/")
    assert said.headers["x-content-type-options"] == "nosniff"
    assert said.headers["cache-control"] == "no-cache"
    assert "script-src 'self'" in said.headers["content-security-policy"]
