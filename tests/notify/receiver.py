"""A receiver of web hooks: real HTTP on loopback, which can be down, slow, broken, and up again on the same port."""

import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = Callable[[BaseHTTPRequestHandler], None]


class Got:
    """One request that was taken."""

    def __init__(self, headers: dict[str, str], body: bytes, taken_s: float) -> None:
        self.headers = headers
        self.body = body
        self.taken_s = taken_s
        self.event: dict[str, Any] = json.loads(body)


def taken(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(204)
    handler.end_headers()


def status(code: int) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        handler.send_header("Location", "/elsewhere")
        handler.send_header("Content-Length", "3")
        handler.end_headers()
        handler.wfile.write(b"no\n")

    return answer


def garbage(handler: BaseHTTPRequestHandler) -> None:
    handler.wfile.write(b"\x00\xffthis is not HTTP\r\n\r\n")
    handler.close_connection = True


def hangs_up(handler: BaseHTTPRequestHandler) -> None:
    handler.close_connection = True


def endless(handler: BaseHTTPRequestHandler) -> None:
    """It takes the event, and then never stops talking."""
    handler.send_response(200)
    handler.end_headers()
    handler.close_connection = True
    try:
        for _ in range(10_000):
            handler.wfile.write(b"x" * 65_536)
    except OSError:
        return


class Receiver:
    """Answers as `script` says, request by request, and takes everything afterwards."""

    def __init__(self) -> None:
        self.port = 0
        self.script: list[Answer] = []
        self.got: list[Got] = []
        self.tries = 0
        self.held = threading.Event()  # what waits for it is slow
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.held.set()
        self.down()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What was taken, each once, in the order in which it came first."""
        taken = list(self.got)  # more may come meanwhile
        by_id = {got.event["id"]: got.event for got in reversed(taken)}
        first = dict.fromkeys(got.event["id"] for got in taken)
        return [by_id[id_] for id_ in first if not kinds or by_id[id_]["kind"] in kinds]

    def slow(self, handler: BaseHTTPRequestHandler) -> None:
        """No answer until it is released, and then none that anybody waits for."""
        self.held.wait(60)
        hangs_up(handler)

    def up(self) -> None:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.take(self, body)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name it has
                del format, args

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def down(self) -> None:
        if self._server and self._thread:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
        self._server = self._thread = None

    def take(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        if self._server is None:  # a connection from before it went down
            hangs_up(handler)
            return
        self.tries += 1
        answer = self.script.pop(0) if self.script else taken
        if answer in (taken, endless):
            headers = {name.lower(): value for name, value in handler.headers.items()}
            self.got.append(Got(headers, body, time.time()))
        answer(handler)
