"""A service with uploads, as a process of its own: `python -m tests.gateway.replicas.upload_service PORT`.

POST /o/NAME?uploads                <Id>HANDLE</Id>: a handle that no other instance knows
PUT /o/NAME?upload=HANDLE&part=N    POST /o/NAME?upload=HANDLE     DELETE /o/NAME?upload=HANDLE
                                    parts are joined by their numbers, with the header X-Note of the opening before them
POST /b                             202, Location: /b/u/HANDLE?state=0
PATCH /b/u/HANDLE?state=N           appends; the Location has the next state, and an old state is refused (400)
PUT /b/u/HANDLE?state=N&name=NAME   completes
PUT /o/NAME, GET /_state, POST /_fail {"next": "METHOD", "after": bool}
                                    the next request with this method gets no response: it is done, or is not

A client with the header X-Stranger is told that there is no such upload, as by services that hide what is not its own.
"""

import json
import sys
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

STATE: dict[str, str] = {}
UPLOADS: dict[str, dict[str, Any]] = {}
FAILS: dict[str, bool] = {}
LOCK = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        path, _, query = self.path.partition("?")
        members = {name: values[0] for name, values in parse_qs(query, keep_blank_values=True).items()}
        with LOCK:
            lost = FAILS.pop(self.command, None) if path != "/_fail" else None
            if lost is False:
                self.close_connection = True
                return
            status, content, location = self._answer(path.strip("/").split("/"), members, body)
        if lost:
            self.close_connection = True
            return
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any  # noqa: N815 - the names that http.server calls

    def _answer(  # noqa: C901, PLR0911 - one case per request
        self, parts: list[str], query: dict[str, str], body: str
    ) -> tuple[int, str, str]:
        upload = None if "X-Stranger" in self.headers else UPLOADS.get(query.get("upload", parts[-1]))
        match self.command, parts:
            case "GET", ["_state"]:
                return 200, json.dumps({"o": STATE, "open": len(UPLOADS)}), ""
            case "POST", ["_fail"]:
                FAILS[json.loads(body)["next"]] = json.loads(body)["after"]
                return 200, "", ""
            case "POST", ["o", name] if "uploads" in query:
                handle = self._opened(name)
                return 200, f"<Opened><Id>{handle}</Id></Opened>", ""
            case "POST", ["b"]:
                return 202, "", f"/b/u/{self._opened('')}?state=0"
            case "PUT", ["o", name] if not query:
                STATE[name] = body
                return 200, "", ""
        if upload is None:
            return 404, "no such upload", ""
        match self.command, parts:
            case "PUT", ["o", name] if name == upload["name"]:
                upload["parts"][int(query["part"])] = body
                return 200, "", ""
            case "POST", ["o", name] if name == upload["name"]:
                STATE[name] = upload["note"] + "".join(text for _, text in sorted(upload["parts"].items())) + body
                del UPLOADS[query["upload"]]
                return 200, "done", ""
            case "DELETE", _:
                del UPLOADS[query.get("upload", parts[-1])]
                return 204, "", ""
        if query.get("state") != str(len(upload["parts"])):
            return 400, "another state", ""
        upload["parts"][len(upload["parts"])] = body
        if self.command == "PATCH":
            return 202, "", f"/b/u/{parts[-1]}?state={len(upload['parts'])}"
        STATE[query["name"]] = "".join(upload["parts"].values())
        del UPLOADS[parts[-1]]
        return 201, "", f"/b/{query['name']}"

    def _opened(self, name: str) -> str:
        handle = str(uuid.uuid4())
        UPLOADS[handle] = {"name": name, "parts": {}, "note": self.headers.get("X-Note", "")}
        return handle

    def log_message(self, *_: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
