"""A few lines of HTTP for the two services: routes, JSON, problems. Standard library only."""

import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import urlsplit

_PIECE = 64 * 1024


class ProblemError(Exception):
    """What is wrong with a request."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Request:
    method: str
    path: str
    names: dict[str, str]  # the values of {id} and other parts of the path
    headers: Any
    stream: Any  # the body, to be read once

    def pieces(self) -> Iterator[bytes]:
        """The body, piece by piece."""
        if "chunked" in self.headers.get("Transfer-Encoding", "").lower():
            while size := int(self.stream.readline().split(b";")[0], 16):
                yield self.stream.read(size)
                self.stream.readline()
            while self.stream.readline().strip():
                pass
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left and (piece := self.stream.read(min(left, _PIECE))):
            left -= len(piece)
            yield piece

    def json(self) -> dict[str, Any]:
        body = b"".join(self.pieces())
        try:
            content = json.loads(body or b"{}")
        except ValueError:
            raise ProblemError(400, "the body is not JSON") from None
        if not isinstance(content, dict):
            raise ProblemError(400, "expected a JSON object")
        return content


@dataclass
class Response:
    status: int = 200
    body: Any = None  # JSON, or an iterator of bytes, with its Content-Length among the headers
    headers: dict[str, str] = field(default_factory=dict)


Handle = Callable[[Request], Response]
Route = tuple[str, str, Handle]  # method, path, handler


def etag(value: Any) -> str:
    return f'"{sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]}"'


def check_match(request: Request, value: Any) -> None:
    """Refuse a change of a state that the client has not seen."""
    wanted = request.headers.get("If-Match")
    if wanted and wanted != "*" and etag(value) not in [one.strip() for one in wanted.split(",")]:
        raise ProblemError(412, "it was changed in the meantime")


class Handler(BaseHTTPRequestHandler):
    """Finds the route of a request, and sends the response."""

    protocol_version = "HTTP/1.1"
    service = ""
    routes: ClassVar[list[tuple[str, re.Pattern[str], Handle]]] = []

    def version_string(self) -> str:
        """The header Server: without the version of Python, so that examples show the same everywhere."""
        return f"minicloud-{self.service}"

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):  # http.server calls do_GET, do_PUT and so on; any method is a matter of the routes
            return self._answer
        raise AttributeError(name)

    def _answer(self) -> None:
        try:
            response = self._handled()
        except ProblemError as problem:
            response = Response(problem.status, {"error": str(problem)})
            self.close_connection = True  # its body may not have been read
        self._send(response)

    def _handled(self) -> Response:
        path = urlsplit(self.path).path
        method = "GET" if self.command == "HEAD" else self.command
        matches = [
            (wanted, match, handle) for wanted, pattern, handle in self.routes if (match := pattern.fullmatch(path))
        ]
        if not matches:
            raise ProblemError(404, f"there is no {path}")
        for wanted, match, handle in matches:
            if wanted == method:
                return handle(Request(method, path, match.groupdict(), self.headers, self.rfile))
        possible = ", ".join(sorted({wanted for wanted, _, _ in matches}))
        raise ProblemError(405, f"only {possible} can be done to {path}")

    def _send(self, response: Response) -> None:
        pieces, headers = _body(response)
        self.send_response(response.status)
        for header, value in headers.items():
            self.send_header(header, value)
        self.end_headers()
        if self.command != "HEAD":
            for piece in pieces:
                self.wfile.write(piece)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        sys.stderr.write(f"{self.service}: {format % args}\n")


def _body(response: Response) -> tuple[Iterator[bytes], dict[str, str]]:
    body, headers = response.body, dict(response.headers)
    if response.status == 204:
        return iter(()), headers
    if hasattr(body, "__next__"):
        return body, headers
    data = json.dumps(body).encode() + b"\n"
    return iter((data,)), {"Content-Type": "application/json", **headers, "Content-Length": str(len(data))}


def serve(service: str, port: int, routes: list[Route], host: str = "127.0.0.1") -> None:
    """Answer until stopped. Prints one line when it listens."""
    Handler.service = service
    Handler.routes = [
        (method, re.compile(re.sub(r"\{(\w+)\}", r"(?P<\1>[^/]+)", path)), handle) for method, path, handle in routes
    ]
    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    sys.stdout.write(f"{service} listens on http://{host}:{server.server_address[1]}\n")
    sys.stdout.flush()
    with contextlib.suppress(KeyboardInterrupt):
        server.serve_forever()
    server.server_close()
