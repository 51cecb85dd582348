"""A service that reads requests as the most lenient ones do: `python -m tests.gateway.replicas.lenient_service PORT`.

Paths are decoded completely, slashes merged, and what is behind a `;` is dropped. Of two members with one name the first
counts, whatever its case; of two headers the last. Bodies may be compressed, and JSON may be UTF-16. A header, or a
member of the query, may ask for another method.

PUT|DELETE /notes/NAME          POST /kv/put {key, value}           POST /kv/get {key}
POST /by-header                 X-Key says which value is set       POST /delete?many <Key>NAME</Key>…
POST /s {"text": …}             {"sid": …}; with "id" it changes that one
GET /_state                     all of it
"""

import gzip
import json
import re
import sys
import threading
import uuid
import xml.etree.ElementTree as ET
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

STATE: dict[str, dict[str, Any]] = {"notes": {}, "kv": {}, "s": {}}
LOCK = threading.Lock()


def _first(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        found.setdefault(name.lower(), value)
    return found


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        path, _, query = self.path.partition("?")
        members = parse_qs(query, keep_blank_values=True)
        method = self.headers.get("X-HTTP-Method-Override") or members.get("_method", [self.command])[0]
        parts = re.sub("/{2,}", "/", unquote(re.sub(";[^/]*", "", path))).strip("/").split("/")
        with LOCK:
            status, answer = self._answer(method, parts, body)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

    def _answer(self, method: str, parts: list[str], body: bytes) -> tuple[int, Any]:  # noqa: PLR0911 - one per request
        match method, parts:
            case "GET", ["_state"]:
                return 200, STATE
            case "PUT", ["notes", *name]:
                STATE["notes"]["/".join(name)] = body.decode()
                return 200, {}
            case "DELETE", ["notes", *name]:
                return (200, {}) if STATE["notes"].pop("/".join(name), None) is not None else (404, {})
            case "GET", ["notes", *name]:
                return (200, {}) if "/".join(name) in STATE["notes"] else (404, {})
            case "POST", ["by-header"]:
                STATE["kv"][self.headers.get_all("X-Key", [""])[-1]] = body.decode()
                return 200, {}
            case "POST", ["delete"]:
                for key in ET.fromstring(body).iter("Key"):  # noqa: S314 - the test's own
                    STATE["notes"].pop(key.text or "", None)
                return 200, {}
            case "POST", ["kv" | "s", *_]:
                return self._with_json(parts, json.loads(body, object_pairs_hook=_first))
        return 404, {}

    @staticmethod
    def _with_json(parts: list[str], body: Any) -> tuple[int, Any]:
        match parts:
            case ["kv", "put"]:
                STATE["kv"][body["key"]] = body["value"]
                return 200, {}
            case ["kv", "get"]:
                return 200, {"value": STATE["kv"].get(body["key"])}
            case ["s"]:
                sid = body.get("id") or uuid.uuid4().hex
                STATE["s"][sid] = body["text"]
                return 200, {"sid": sid}
        return 404, {}

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
