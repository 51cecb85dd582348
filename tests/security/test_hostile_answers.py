"""Another site answers nonsense, deep JSON, or without end: whoever asked is told, and this agent goes on."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.agent.rig import Rig

DEEP = b'{"a":' * 50_000
ENDLESS = b"endless"


class Thief(BaseHTTPRequestHandler):
    """Answers every request with the same bytes, or never stops."""

    protocol_version = "HTTP/1.1"
    body = b"{}"
    status = 200

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = self.body
        self.send_response(self.status)
        self.send_header("Content-Type", "application/json")
        if body == ENDLESS:
            self.send_header("Connection", "close")
            self.end_headers()
            with suppress(OSError):
                for _ in range(2_000):
                    self.wfile.write(b"[" * 65_536)
            self.close_connection = True
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST  # noqa: N815 - so it is called

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rig]:
    types = {
        "note": {
            "allow": ["true"],
            "read": "true",
            "matrix": [{"before": "s", "after": "s", "result": "take-one"}],
        }
    }
    rig = Rig(tmp_path_factory.mktemp("hostile"), types, ("here", "thief"))
    address = urlsplit(rig.url("thief"))
    server = ThreadingHTTPServer((str(address.hostname), address.port or 0), Thief)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    rig.start("here")
    yield rig
    server.shutdown()
    server.server_close()
    rig.close()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b"[]"),
        (200, b"null"),
        (200, b"\xff\xfe"),
        (200, DEEP),
        (200, ENDLESS),
        (200, b'{"Status": {}, "Output": [1]}'),
        (500, b"[]"),
        (599, b'{"detail": {"a": 1}}'),
        (404, DEEP),
    ],
    ids=[
        "list",
        "null",
        "no-text",
        "deep",
        "endless",
        "odd-members",
        "refused-oddly",
        "odd-status",
        "refused-deep",
    ],
)
def test_a_state_that_a_hostile_site_shows(rig: Rig, status: int, body: bytes) -> None:
    Thief.status, Thief.body = status, body
    shown = rig.show("here", "n", sites="thief")
    assert set(shown["thief"]) == {"Status", "Output"}
    assert all(isinstance(value, str) for value in shown["thief"].values())
    assert json.loads(rig.request("here", "GET", "/db/"))["couchdb"] == "Welcome"


def test_the_agent_met_nothing_unforeseen(rig: Rig) -> None:
    """Runs last: none of the above was a mistake in the log."""
    assert "Traceback" not in (rig.folder("here") / "log").read_text()
