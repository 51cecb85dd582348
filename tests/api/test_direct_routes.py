"""Submissions go past the router, and are answered as behind it."""

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from starlette.types import ASGIApp, Message, Scope

from cheops.api.app import application
from cheops.api.direct_routes import DirectRoutes
from cheops.client.agent import Form
from cheops.config.site import parse_site
from cheops.node.node import Node

CONFIG = "site: a\nsecurity: none\ntypes: {t: {allow: ['true']}}\n"
FORM = Form({"command": "true", "sites": "a", "type": "inc"}, {}, "XX")
BAD_FORM = Form({"command": "false", "sites": "a", "type": "inc"}, {}, "XX")
JSON = json.dumps({"command": "true", "sites": "a", "type": "inc"}).encode()
SUBMIT = "/api/v1/resources/%s/operations"
REQUESTS: dict[str, tuple[str, str, str, bytes]] = {
    "form": ("POST", "/exec/n", FORM.content_type, b"".join(FORM)),
    "form of a path": ("POST", "/exec/n/m%2Fo", FORM.content_type, b"".join(FORM)),
    "no form": ("POST", "/exec/n", "application/json", JSON),
    "forbidden command": ("POST", "/exec/n", BAD_FORM.content_type, b"".join(BAD_FORM)),
    "empty id": ("POST", "/exec/", FORM.content_type, b"".join(FORM)),
    "wrong method": ("GET", "/exec/n", "", b""),
    "show": ("POST", "/show/n", FORM.content_type, b"".join(FORM)),
    "operation": ("POST", SUBMIT % "n", "application/json", JSON),
    "operation of an encoded id": ("POST", SUBMIT % "n%2Fm", "application/json", JSON),
    "operation of a wrong id": ("POST", SUBMIT % "%FF", "application/json", JSON),
    "bad parameter": ("POST", SUBMIT % "n" + "?wait=never", "application/json", JSON),
    "bad body": ("POST", SUBMIT % "n", "application/json", b"{"),
    "another path": ("POST", SUBMIT % "n" + "/", "application/json", JSON),
    "wrong method of an operation": ("PUT", SUBMIT % "n", "application/json", JSON),
    "foreign page": ("POST", "/exec/n", FORM.content_type, b"foreign"),
}


async def answer(app: ASGIApp, name: str) -> dict[str, Any]:
    """The response to a request, and what the audit log would have of it."""
    method, target, content_type, body = REQUESTS[name]
    path, _, query = target.partition("?")
    headers = [(b"host", b"localhost"), (b"content-type", content_type.encode())]
    if name == "foreign page":
        headers.append((b"origin", b"http://elsewhere"))
    scope: Scope = {
        "type": "http", "method": method, "scheme": "http", "http_version": "1.1", "path": unquote(path),
        "raw_path": path.encode(), "query_string": query.encode(), "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 5), "server": None, "state": {},
    }  # fmt: skip
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    record = scope["state"]["audit_record"]
    text = b"".join(message.get("body", b"") for message in sent[1:])
    return {
        "status": sent[0]["status"],
        "headers": sorted(key for key, _ in sent[0]["headers"]),
        "is_over": not sent[-1].get("more_body"),
        "text": text if sent[0]["status"] != 200 else text.count(b"\n"),
        "audit": (record.route, record.writes, record.resource, record.reason, record.is_recorded),
    }


async def answers(path: Path, name: str) -> dict[str, Any]:
    path.mkdir()
    node = Node(parse_site(CONFIG, path / "site.yaml"))
    await node.start()
    try:
        return await answer(application(node), name)
    finally:
        await node.stop()


@pytest.mark.parametrize("name", REQUESTS)
def test_a_request_is_answered_as_behind_the_router(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    directly = asyncio.run(answers(tmp_path / "directly", name))
    monkeypatch.setattr(DirectRoutes, "__call__", lambda self, *args: self._app(*args))
    assert directly == asyncio.run(answers(tmp_path / "routed", name))
    if name in ("form", "operation"):
        assert directly["status"] == 200
        assert directly["audit"][1:3] == (True, "n")
