"""A service whose requests no path explains, as a process of its own: `python -m tests.gateway.replicas.rpc_service PORT`.

POST /kv/put {key, value}           POST /kv/get {key}
POST /kv/swap {key, old, new}       200 always; {"done": false} if the value was another one
PUT /o/NAME, PUT|DELETE /o/NAME?tagging
PATCH /o/NAME {"to": NEW}           a rename; it replaces what is there
POST /s {"text": …}                 {"sid": …}; with "id" it changes that one, which gets another id (404 if unknown)
PUT /f/NAME                         a folder; PUT /f/NAME/FILE needs it (409)
POST /things {"metadata": {"name": …}}, PUT /things/NAME
                                    the server sets metadata.uid, and refuses another one (409)
PUT /n/NAME, PUT /in/NAME/THING     a thing needs the name, which is not above it (404)
PUT /_hold [NAME, …]                PUT /n/NAME and /f/NAME are answered with 503 for these names, from now on
GET /_state                         all of it, without uids
GET /_refused                       how often a thing was refused
"""

import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STATE: dict[str, dict[str, Any]] = {"kv": {}, "o": {}, "tags": {}, "f": {}, "things": {}, "n": {}, "in": {}, "s": {}}
HELD: list[str] = []
REFUSED: list[str] = []
UIDS: dict[str, str] = {}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path, _, query = self.path.partition("?")
        parts = path.strip("/").split("/")
        with LOCK:
            status, answer = self._answer(parts, query, json.loads(body) if body else None)
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

    def _answer(  # noqa: C901, PLR0911, PLR0912 - one case per request
        self, parts: list[str], query: str, body: Any
    ) -> tuple[int, Any]:
        match parts:
            case ["_state"]:
                return 200, STATE
            case ["_refused"]:
                return 200, REFUSED
            case ["_hold"]:
                HELD[:] = body
                return 200, {}
            case ["n" | "f", name] if self.command == "PUT" and name in HELD:
                return 503, {"error": "not now"}
            case ["n", name] if self.command == "PUT":
                return 201, STATE["n"].setdefault(name, {})
            case ["in", name, thing] if self.command == "PUT":
                if name not in STATE["n"]:
                    REFUSED.append(thing)
                    return 404, {"error": "no such name"}
                STATE["in"][thing] = body
                return 201, {}
            case ["kv", "put"]:
                STATE["kv"][body["key"]] = body["value"]
                return 200, {}
            case ["kv", "get"]:
                return 200, {"value": STATE["kv"].get(body["key"])}
            case ["kv", "swap"]:
                done = STATE["kv"].get(body["key"]) == body["old"]
                if done:
                    STATE["kv"][body["key"]] = body["new"]
                return 200, {"done": done}
            case ["s"] if self.command == "POST":
                return self._silence(body)
            case ["o", name] if self.command == "PATCH":
                if name not in STATE["o"]:
                    return 404, {}
                STATE["o"][body["to"]] = STATE["o"].pop(name)
                return 200, {}
            case ["o", name]:
                return self._object(STATE["tags" if query.startswith("tagging") else "o"], name, body)
            case ["f", name] if self.command == "PUT":
                return 201, STATE["f"].setdefault(name, {})
            case ["f", name, file] if self.command == "PUT":
                if name not in STATE["f"]:
                    return 409, {"error": "no such folder"}
                STATE["f"][name][file] = body
                return 201, {}
            case ["things"] if self.command == "POST":
                name = body["metadata"]["name"]
                return (409, {"error": "it exists"}) if name in STATE["things"] else self._thing(name, body, 201)
            case ["things", name]:
                if name not in STATE["things"]:
                    return 404, {}
                return self._thing(name, body, 200) if self.command == "PUT" else self._shown(name)
        return 404, {}

    def _object(self, kept: dict[str, Any], name: str, body: Any) -> tuple[int, Any]:
        if self.command == "PUT":
            kept[name] = body
        elif self.command == "DELETE":
            kept.pop(name, None)
        return 200, kept.get(name)

    @staticmethod
    def _silence(body: Any) -> tuple[int, Any]:
        if body.get("id", "") and STATE["s"].pop(body["id"], None) is None:
            return 404, {}
        sid = uuid.uuid4().hex
        STATE["s"][sid] = body["text"]
        return 200, {"sid": sid}

    def _thing(self, name: str, body: Any, status: int) -> tuple[int, Any]:
        uid = UIDS.setdefault(name, uuid.uuid4().hex)
        if body["metadata"].pop("uid", uid) != uid:
            return 409, {"error": "another uid"}
        STATE["things"][name] = body
        return status, self._shown(name)[1]

    @staticmethod
    def _shown(name: str) -> tuple[int, Any]:
        thing = STATE["things"][name]
        return 200, {**thing, "metadata": {**thing["metadata"], "uid": UIDS[name]}}

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
