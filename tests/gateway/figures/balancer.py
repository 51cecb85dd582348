"""A load balancer as in figure 7 of the second paper: each request goes to the next instance in turn.

python -m tests.gateway.figures.balancer PORT INSTANCE_PORT…
"""

import contextlib
import http.client
import itertools
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_FRAMING = ("connection", "transfer-encoding", "content-length", "keep-alive")


def balancing(ports: list[int]) -> type[BaseHTTPRequestHandler]:
    turns = itertools.cycle(ports)

    class Balancer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def balance(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            connection = http.client.HTTPConnection("127.0.0.1", next(turns), timeout=30)
            with contextlib.closing(connection):
                connection.request(self.command, self.path, body or None, dict(self.headers.items()))
                answer = connection.getresponse()
                content = answer.read()
            self.send_response_only(answer.status, answer.reason)
            for name, value in answer.getheaders():
                if name.lower() not in _FRAMING:
                    self.send_header(name, value)
            if answer.status != 204:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = balance  # noqa: N815 - so they are called

        def log_message(self, *_: Any) -> None:
            """The instances say what they were asked."""

    return Balancer


if __name__ == "__main__":
    own, *instances = map(int, sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", own), balancing(instances))
    server.daemon_threads = True
    server.serve_forever()
