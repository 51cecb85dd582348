"""Targets that serve: an agent's whole application, its gateway, and a form, fed in memory, without sockets.

One site, made once per process. What it logs as an error is a finding, and so is an answer 500: both say that
something was not foreseen. A request that waits for something (a long poll, a stream) is cancelled after a
moment, as if its client had gone.
"""

import asyncio
import atexit
import contextlib
import logging
import re
import tempfile
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from cheops.api.app import application
from cheops.api.forms import read_form
from cheops.api.peers import peer_endpoint
from cheops.api.submission import RequestError
from cheops.backends.http.replication import HttpReplication
from cheops.config.site import parse_site
from cheops.gateway.connection import Wire
from cheops.gateway.request import Listener, ListenerKind
from cheops.gateway.server import Gateway
from cheops.node.node import Node
from tests.security.fuzz import samples
from tests.security.fuzz.asked import REQUESTS
from tests.security.fuzz.targets import HTTP_TOKENS, JSON_TOKENS, Target
from tests.security.fuzz.wires import Pipe, Service

_PATIENCE_S = 10.0
_MOMENT_S = 0.3  # for what may wait for ever
_METHOD = re.compile(rb"[A-Z]{1,20}")
_PATH = re.compile(rb"/[!-~]*")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ?([^\r\n\0]*)")
_CONFIG = """
site: here
security: none
listen: 127.0.0.1:1
data: data
types:
  t: {allow: ["true"], matrix: [{before: set, after: set, result: take-one}]}
services:
  image: {url: "http://127.0.0.1:5", listen: "127.0.0.1:2", outbound: "127.0.0.1:3"}
gateway: {proxy: "127.0.0.1:4"}
"""


class MistakeError(AssertionError):
    """The agent says that it met something unforeseen."""


class _Mistakes(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        self.told.append(f"{text}: {error!r}" if error else text)


class World:
    """A site in memory, and an event loop that runs only while it is asked."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.mistakes = _Mistakes()
        logging.getLogger().addHandler(self.mistakes)
        logging.getLogger("python_multipart").setLevel(logging.ERROR)  # as the agent has it
        self.loop.set_exception_handler(self._unheard)
        self._folder = tempfile.TemporaryDirectory(prefix="cheops-fuzz-")
        self.wait(self._start())
        atexit.register(self.close)

    async def _start(self) -> None:
        path = Path(self._folder.name) / "site.yaml"
        self.node = Node(parse_site(_CONFIG, path))
        await self.node.start()
        self.gateway = Gateway(self.node)
        self.gateway.replicate_with(HttpReplication(self.node, self.gateway.services))
        self.service = Service()
        self.gateway._forwarder.client.pool.connect = self.service.fresh  # type: ignore[method-assign, assignment]
        self.app = peer_endpoint(self.node, application(self.node, self.gateway))

    def wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(coroutine)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.wait(self.gateway.stop())
            self.wait(self.node.stop())
        self._folder.cleanup()

    def _unheard(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self.mistakes.told.append(f"{context.get('message')}: {context.get('exception')!r}")

    def checked(self) -> None:
        told, self.mistakes.told = self.mistakes.told, []
        if told:
            raise MistakeError("; ".join(told[:3]))


@cache
def world() -> World:
    return World()


# -- the application ---------------------------------------------------------------------------------------


async def _asked(data: bytes) -> None:
    """A request as the HTTP server hands it on: a line, headers, an empty line, a body."""
    head, _, body = data.partition(b"\n\n")
    line, *lines = head.split(b"\n")
    method, _, target = line.partition(b" ")
    if not _METHOD.fullmatch(method) or not _PATH.fullmatch(target):
        return  # nothing for the application: the server refuses it
    path, _, query = target.partition(b"?")
    headers = [(found[1].lower(), found[2]) for found in map(_HEADER.fullmatch, lines) if found]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method.decode(), "scheme": "http",
        "path": unquote(path.decode("ascii")), "raw_path": path, "query_string": query, "root_path": "", "headers": headers,
        "client": ("127.0.0.1", 5), "server": ("127.0.0.1", 1), "state": {"peer": None, "local_uid": None},
    }  # fmt: skip
    statuses: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_MOMENT_S):
            await world().app(scope, _receiving(body), send)
    if 500 in statuses:
        raise MistakeError("it answered 500")


def _receiving(body: bytes) -> Callable[[], Coroutine[Any, Any, Any]]:
    pieces = [body[start : start + 1_000] for start in range(0, len(body), 1_000)] or [b""]
    messages = [
        {"type": "http.request", "body": piece, "more_body": n < len(pieces)} for n, piece in enumerate(pieces, 1)
    ]

    async def receive() -> Any:
        if messages:
            return messages.pop(0)
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    return receive


def _application(data: bytes) -> None:
    world().wait(_asked(data))
    world().checked()


# -- a form ------------------------------------------------------------------------------------------------


async def _read_form(data: bytes) -> None:
    is_multipart = data.startswith(b"--")
    kind = b"multipart/form-data; boundary=XX" if is_multipart else b"application/x-www-form-urlencoded"
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [(b"content-type", kind)],
    }
    form = await read_form(Request(scope, _receiving(data)), 1_000_000)
    await form.close()


def _form(data: bytes) -> None:
    world().wait(_read_form(data))


# -- the gateway -------------------------------------------------------------------------------------------


async def _conversed(data: bytes, listener: Listener) -> bytes:
    """All that a client says, and all that it is answered; its end comes when the gateway wants more."""
    gateway, wire = world().gateway, Wire()
    pipe = Pipe(wire)
    wire.connection_made(pipe)
    gateway._on_connection(wire, listener)
    task = next(task for task, client in gateway._client_tasks.items() if client.wire is wire)
    for start in range(0, len(data), 20_000):
        wire.data_received(data[start : start + 20_000])
    end_s = asyncio.get_running_loop().time() + _PATIENCE_S
    while not task.done():
        if asyncio.get_running_loop().time() > end_s:
            task.cancel()
            raise MistakeError("the gateway does not come to an end with this")
        await asyncio.sleep(0)
        if wire._reader is not None and not wire.has_ended:
            wire.eof_received()
    if error := task.exception():
        raise error
    return bytes(pipe.written)


_ENTRANCES = (
    Listener(ListenerKind.INBOUND, "image"),
    Listener(ListenerKind.OUTBOUND, "image"),
    Listener(ListenerKind.PROXY),
)


def _gateway(data: bytes) -> None:
    world().service.answer = samples.ANSWERS[0]
    listener = _ENTRANCES[len(data) % 3]
    said = world().wait(_conversed(data, listener))
    world().checked()
    if said and not said.startswith(b"HTTP/1.1 "):
        raise MistakeError(f"this is no answer: {said[:100]!r}")


def _gateway_answer(data: bytes) -> None:
    """A service that answers anything: the client gets an answer in HTTP, or the end of its connection."""
    world().service.answer = data
    said = world().wait(_conversed(b"GET /images HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", _ENTRANCES[0]))
    world().checked()
    if said and not said.startswith(b"HTTP/1.1 "):
        raise MistakeError(f"this is no answer: {said[:100]!r}")


SERVING: dict[str, Target] = {
    "multipart": Target(_form, samples.MULTIPART, (RequestError,), (b"--XX", b"\r\n", b'name="', b"filename*=utf-8''", b"&", b"="), 15),
    "application": Target(_application, REQUESTS, (), (*JSON_TOKENS, b"GET ", b"POST ", b"?", b"&", b"%2F", b"%00", b"%FF", b"/api/v1/", b"limit="), 12),
    "gateway": Target(_gateway, samples.HEADS, (), HTTP_TOKENS, 25),
    "gateway-answer": Target(_gateway_answer, samples.ANSWERS, (), HTTP_TOKENS, 15),
}  # fmt: skip
