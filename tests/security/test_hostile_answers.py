"""Another site answers nonsense, deep JSON, or without end: whoever asked is told, and this agent goes on."""

import asyncio
import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast
from urllib.parse import urlsplit

import pytest

from cheops.client.agent import Form
from cheops.node import document_fetcher
from cheops.node.document_fetcher import fetch_documents
from cheops.node.node import Node
from cheops.peers.frames import Answer
from cheops.peers.requests import RequestKind
from cheops.peers.streams import IncomingRequest
from tests.agent.rig import Rig
from tests.support.channel_server import ChannelServer

DEEP = b'{"a":' * 50_000
ENDLESS = b"endless"


class Thief:
    """Answers every request with the same bytes, or never stops."""

    body = b"{}"
    status = 200
    headers: tuple[tuple[str, str], ...] = ()


async def answer(request: IncomingRequest) -> None:
    if request.opening.kind == RequestKind.HEARTBEAT or Thief.body != ENDLESS:
        request.respond(Answer(Thief.status, Thief.body, headers=Thief.headers))
        return
    request.respond(Answer(Thief.status), end=False)
    for _ in range(2_000):
        await request.write(b"[" * 65_536)


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
    server = ChannelServer("thief", str(address.hostname), address.port or 0, answer)
    rig.start("here")
    yield rig
    server.close()
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


def test_a_response_does_not_add_headers_or_responses_of_its_own(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """To an operation that is passed on: a client would take them for those of its own site."""
    monkeypatch.setattr(Thief, "status", 200)
    monkeypatch.setattr(Thief, "body", b"{}")
    monkeypatch.setattr(Thief, "headers", (("location", "/\r\nset-cookie: id=theirs"), ("content-type", "text/plain")))
    fields = {"command": "true", "sites": "thief", "type": "s"}
    form = Form(fields, {})
    headers = {"Content-Type": form.content_type, "Content-Length": str(form.length)}
    with rig._connected("here") as connection:
        connection.request("POST", "/exec/elsewhere", iter(form), headers)
        response = connection.getresponse()
        assert "set-cookie" not in response.headers
        assert response.status == 502
        assert "a frame that cannot be read" in response.read().decode()


def test_the_agent_met_nothing_unforeseen(rig: Rig) -> None:
    """Runs last: none of the above was a mistake in the log."""
    assert "Traceback" not in (rig.folder("here") / "log").read_text()


@pytest.mark.parametrize(
    "body",
    [b'{"documents":[' + b"{}," * 1_000 + b"{}]}", b'{"documents":[{"_id":' + b"[" * 5_000, b'{"documents":[1]}', DEEP],
    ids=["many", "deep-id", "number", "deep"],
)
def test_documents_that_nobody_asked_for_are_not_read(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever looks at an operation makes this site ask others for its output."""
    read: list[object] = []

    class Channels:
        async def request(self, *_args: object, **_more: object) -> tuple[int, bytes]:
            return 200, body

    node = SimpleNamespace(channels=Channels(), verifier=None)
    monkeypatch.setattr(document_fetcher, "parse_document", read.append)
    assert asyncio.run(fetch_documents(cast("Node", node), "thief", "n", ["reply/n/thief/1/1"])) == []
    assert read == []
