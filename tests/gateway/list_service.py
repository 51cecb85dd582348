"""Services with long lists, in every form of paging, and with every fault that a test wants."""

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass
class Asked:
    method: str
    path: str
    query: dict[str, str]
    headers: Any


@dataclass
class Given:
    """A response: its body in pieces, chunked unless a length is given."""

    body: Iterable[bytes] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    is_cut: bool = False  # the connection ends without the end of the body


Respond = Callable[[Asked], Given]


def as_json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Given:
    return Given([json.dumps(value).encode()], status, {"Content-Type": "application/json", **(headers or {})})


def problem(status: int) -> Given:
    return as_json({"error": status}, status)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client may leave as it likes."""


class ListService:
    """One instance, in threads of the test."""

    def __init__(  # noqa: C901 - the service is in it
        self, port: int, respond: Respond, patience_s: float = 30
    ) -> None:
        self.respond = respond
        self.asked: list[Asked] = []
        self._open: set[socket.socket] = set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = patience_s

            def setup(self) -> None:
                service._open.add(self.request)
                super().setup()

            def answer(self) -> None:
                parts = urlsplit(self.path)
                query = dict(parse_qsl(parts.query, keep_blank_values=True))
                asked = Asked(self.command, parts.path, query, self.headers)
                service.asked.append(asked)
                given = service.respond(asked)
                self.send_response(given.status)
                for name, value in given.headers.items():
                    self.send_header(name, value)
                is_chunked = given.length is None
                if is_chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                else:
                    self.send_header("Content-Length", str(given.length))
                self.end_headers()
                if self.command == "HEAD":
                    return
                for piece in given.body:
                    if piece:
                        self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if is_chunked else piece)
                if given.is_cut:
                    self.close_connection = True
                elif is_chunked:
                    self.wfile.write(b"0\r\n\r\n")

            do_GET = do_HEAD = do_POST = do_DELETE = do_PUT = answer  # noqa: N815 - so they are called

            def log_message(self, *_: object) -> None:
                """The tests ask for what they want to know."""

        self._server = _Server(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        for one in tuple(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self._server.server_close()
        self._thread.join()


def things(site: str, count: int) -> list[dict[str, Any]]:
    return [{"id": f"{site}-{number}", "name": f"thing {number} of {site}"} for number in range(count)]


def whole(items: list[Any], name: str = "") -> Respond:
    return lambda _asked: as_json({name: items} if name else items)


def streamed(items: Iterator[dict[str, Any]]) -> Iterator[bytes]:
    """The pieces of an array that is made while it is sent."""
    between, piece = b"[", []
    for item in items:
        piece.append(between + json.dumps(item).encode())
        between = b","
        if len(piece) == 200:
            yield b"".join(piece)
            piece = []
    yield b"".join(piece) + (b"]" if between == b"," else b"[]")


def _after(items: list[dict[str, Any]], marker: str) -> int:
    places = [place for place, item in enumerate(items) if str(item["id"]) == marker]
    return places[0] + 1 if places else 0


def by_marker(items: list[dict[str, Any]], *, links: str = "next", usual: int = 3) -> Respond:
    """Pages as those of OpenStack: `limit` and `marker`, with a next link in the body, a list of links, or none."""

    def respond(asked: Asked) -> Given:
        limit = min(int(asked.query.get("limit", usual)), 5)
        start = _after(items, asked.query.get("marker", ""))
        page = items[start : start + limit]
        more = start + limit < len(items)
        query = "&".join(f"{k}={v}" for k, v in asked.query.items() if k != "marker")
        url = f"{asked.path}?{query}&marker={page[-1]['id']}" if page else ""
        body: dict[str, Any] = {"things": page, "first": asked.path}
        if links == "next" and more:
            body["next"] = url
        if links == "things_links":
            body["things_links"] = [{"rel": "next", "href": f"http://{asked.headers['Host']}{url}"}] if more else []
        return as_json(body)

    return respond


def by_number(items: list[dict[str, Any]], *, has_link: bool = True, is_strict: bool = False) -> Respond:
    """Pages with numbers, as those of GitHub: `page` and `per_page`, and the header Link."""

    def respond(asked: Asked) -> Given:
        size, number = int(asked.query.get("per_page", 4)), int(asked.query.get("page", 1))
        page = items[(number - 1) * size : number * size]
        if is_strict and number > 1 and not page:
            return problem(404)
        query = "&".join(f"{k}={v}" for k, v in asked.query.items() if k != "page")
        link = f'<{asked.path}?{query}&page={number + 1}>; rel="next", <{asked.path}?{query}&page=1>; rel="first"'
        return as_json(page, headers={"Link": link} if has_link and number * size < len(items) else {})

    return respond
