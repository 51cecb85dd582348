"""Adds headers to every request of a client that cannot: `python -m tests.apps.rules.scope_proxy PORT HOST:PORT FILE`.

The headers are lines of FILE, NAME=VALUE; a test changes them while the client runs. Responses are passed on as they
arrive, so that a watch works.
"""

import http.client
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

_OWN = ("connection", "transfer-encoding", "host", "content-length", "keep-alive")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(pieces)

    def handle_any(self) -> None:
        body = self.body()
        connection = http.client.HTTPConnection(sys.argv[2], timeout=60)
        names = dict.fromkeys(name for name in self.headers if name.lower() not in _OWN)
        headers = {name: ", ".join(self.headers.get_all(name, [])) for name in names}
        headers |= dict(line.split("=", 1) for line in Path(sys.argv[3]).read_text().splitlines() if line)
        connection.request(self.command, self.path, body or None, headers)
        answer = connection.getresponse()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _OWN or (self.command == "HEAD" and name.lower() == "content-length"):
                self.send_header(name, value)
        if self.command == "HEAD" or answer.status in (204, 304):  # these have no body
            self.end_headers()
            connection.close()
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(65536):
            self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")
        connection.close()

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
