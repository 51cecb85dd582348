"""Small services that know nothing of Cheops: what each got, it says; and one that calls another."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Seen:
    """A request as a service got it."""

    def __init__(self, handler: BaseHTTPRequestHandler) -> None:
        self.method = handler.command
        self.path = handler.path
        self.headers = handler.headers
        self.body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))


Answering = Callable[[Seen], tuple[int, dict[str, Any]]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1_000

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may leave as it likes."""


class Service:
    """One instance, in threads of the test. It answers with its name, and with what `answering` adds."""

    def __init__(
        self, name: str, port: int, answering: Answering | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.name = name
        self.seen: list[Seen] = []
        self._connections: set[socket.socket] = set()
        self.answering = answering or (lambda _seen: (200, {}))
        self._server = _Server(("127.0.0.1", port), self._handler())
        if tls:  # the handshake is the thread's affair: a client that says nothing must not stop others
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """As when its process ends: connections that somebody keeps warm end too."""
        self._server.shutdown()
        for one in tuple(self._connections):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30
            wbufsize = 65536  # head and body in one piece, or each would wait for the other to be confirmed

            def setup(self) -> None:
                service._connections.add(self.request)
                super().setup()

            def finish(self) -> None:
                super().finish()
                service._connections.discard(self.request)

            def answer(self) -> None:
                seen = Seen(self)
                service.seen.append(seen)
                status, told = service.answering(seen)
                told = {
                    "served_by": service.name,
                    "path": seen.path,
                    "headers": dict(seen.headers.items()),
                    **told,
                }
                body = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = answer  # noqa: N815 - so they are called

            def log_message(self, *_: object) -> None:
                """The tests ask for what they want to know."""

        return Handler


def calling(address: tuple[str, int], passes_on: tuple[str, ...], *, proxied_host: str = "") -> Answering:
    """An application that, to answer, asks another service: with those headers of the request that it knows."""

    def answering(seen: Seen) -> tuple[int, dict[str, Any]]:
        kept = {name: value for name, value in seen.headers.items() if name.lower() in passes_on}
        connection = http.client.HTTPConnection(*address, timeout=30)
        try:
            target = f"http://{proxied_host}{seen.path}" if proxied_host else seen.path
            connection.request("GET", target, headers=kept)
            answer = connection.getresponse()
            return 200, {"called": {"status": answer.status, **json.loads(answer.read())}}
        finally:
            connection.close()

    return answering
