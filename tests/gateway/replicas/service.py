"""A small REST service that knows nothing of Cheops, as a process of its own.

    /images            GET lists, POST creates (409 for a name that is taken)
    /images/ID         GET, PUT, PATCH (merge), DELETE; tags for If-Match
    /images/ID/file    PUT and GET of content of any size
    /images/ID/reboot  POST counts
    /images/ID/console speaks another protocol: it says where it is, and then what it is told
    /servers/ID/disks  a collection below an item
    /notes/NAME        PUT and MKCOL create under a name that the client chose; PROPFIND knows whether it is there
    /notes/NAME/NAME   the same in what is there
    /servers           as images; `image` holds the id of an image
    /_told, /_fault    what it was asked, and how it is to misbehave: for tests

Parts of an answer can be asked for (Range), and one that is called text/plain (Accept). An answer has
the headers that X-Answer asks for. Ids are numbers, or random (--ids). With --token each request needs it in X-Auth-Token.
"""

import argparse
import contextlib
import hashlib
import json
import re
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COLLECTIONS = ("images", "servers")


class State:
    def __init__(self, ids: str, token: str, first: int) -> None:
        self.ids, self.token = ids, token
        self.next = first
        self.items: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in (*COLLECTIONS, "notes")}
        self.files: dict[str, tuple[int, str]] = {}
        self.told: list[dict[str, Any]] = []
        self.fault: dict[str, Any] = {}
        self.lock = threading.RLock()

    def new_id(self) -> str | int:
        self.next += 1
        return self.next if self.ids == "number" else str(uuid.uuid4())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: State
    timeout = 60

    def log_message(self, *_: Any) -> None:
        pass

    def handle_any(self) -> None:
        path, _, query = self.path.partition("?")
        parts = [part for part in path.split("/") if part]
        if parts and parts[0].startswith("_"):
            self._control(parts[0])
            return
        if len(parts) == 3 and parts[2] == "file":
            self._file(parts)
            return
        if len(parts) == 3 and parts[2] == "console" and self.headers.get("Upgrade") == "echo":
            self._console()
            return
        body = self._body()
        with self.state.lock:
            told = {
                "method": self.command,
                "path": self.path,
                "headers": dict(self.headers),
                "body": body.decode("latin-1"),
            }
            self.state.told.append(told)
        if self._misbehave():
            return
        if self.state.token and self.headers.get("X-Auth-Token") != self.state.token:
            self._answer(401, {"error": "who are you?"})
            return
        with self.state.lock:
            self._serve(parts, query, body)

    def _misbehave(self) -> bool:
        fault = self.state.fault
        if not fault or fault.get("method", self.command) != self.command:
            return False
        if "times" in fault:
            fault["times"] -= 1
            if fault["times"] < 0:
                return False
        if "slow_s" in fault:  # does it, in its own time
            time.sleep(fault["slow_s"])
            return False
        if fault.get("after"):  # does it, and then breaks off
            with self.state.lock:
                self._serve([p for p in self.path.split("?")[0].split("/") if p], "", self._last, answer=False)
        if "hang_s" in fault:
            time.sleep(fault["hang_s"])
        if "status" in fault:
            self._answer(fault["status"], {"error": "as told"})
        else:
            self.close_connection = True
        return True

    # -- items ---------------------------------------------------------------------------------------------

    def _serve(self, parts: list[str], query: str, body: bytes, *, answer: bool = True) -> None:
        self._silent = not answer
        collection = self.state.items.get(parts[0]) if parts else None
        if collection is None:
            self._answer(404, {"error": "no such collection"})
        elif len(parts) == 1:
            self._collection(parts[0], collection, query, body)
        elif len(parts) == 3 and parts[0] == "notes":
            if parts[1] in collection:
                self._item("notes", collection, "/".join(parts[1:]), body)
            else:
                self._answer(409, {"error": f"no folder {parts[1]}"})
        elif len(parts) >= 3 and parts[2] == "disks" and parts[1] in collection:
            disks = collection[parts[1]].setdefault("disks", {})
            name = "/".join(parts[:3])
            if len(parts) == 3:
                self._collection(name, disks, query, body)
            else:
                self._item(name, disks, parts[3], body)
        elif len(parts) == 3 and self.command == "POST" and parts[1] in collection:
            item = collection[parts[1]]
            item[parts[2]] = item.get(parts[2], 0) + 1
            self._answer(200, {"done": parts[2], "times": item[parts[2]]})
        elif len(parts) == 2:
            self._item(parts[0], collection, parts[1], body)
        else:
            self._answer(404, {"error": "no such thing"})

    def _collection(self, name: str, items: dict[str, dict[str, Any]], query: str, body: bytes) -> None:
        if self.command in ("GET", "HEAD"):
            wanted = re.search(r"name=([^&]*)", query)
            found = [item for item in items.values() if not wanted or item.get("name") == wanted[1]]
            self._answer(200, {name: found, "count": len(found)})
            return
        given = json.loads(body or b"{}")
        if any(item.get("name") == given.get("name") for item in items.values() if given.get("name")):
            self._answer(409, {"error": f"{given['name']} exists"})
            return
        if "image" in given and given["image"] not in {item["id"] for item in self.state.items["images"].values()}:
            self._answer(422, {"error": f"no such image: {given['image']}"})
            return
        id_ = self.state.new_id()
        item = {**given, "id": id_, "self": f"/{name}/{id_}"}
        items[str(id_)] = item
        said = {"Link": f"</{name}/{id_}>; title={self.headers['X-Title']}"} if "X-Title" in self.headers else {}
        self._answer(201, item, {"Location": f"http://{self.headers['Host']}/{name}/{id_}", **said})

    def _item(self, name: str, items: dict[str, dict[str, Any]], id_: str, body: bytes) -> None:
        if self.command == "PUT" and name == "notes":
            status = 200 if id_ in items else 201
            if self.headers.get("If-None-Match") == "*" and id_ in items:
                self._answer(412, {"error": "it is there"})
                return
            items[id_] = {**json.loads(body), "id": id_}
            self._answer(status, items[id_])
        elif self.command == "MKCOL" and name == "notes":
            status = 405 if id_ in items else 201
            items.setdefault(id_, {"id": id_})
            self._answer(status, {})
        elif self.command == "PROPFIND":
            self._answer(207 if id_ in items else 404, {})
        elif id_ not in items:
            self._answer(404, {"error": f"no {name} {id_}"})
        elif self.command in ("GET", "HEAD"):
            self._answer(200, items[id_], {"ETag": tag(items[id_])})
        elif self.command == "DELETE":
            del items[id_]
            self._answer(204, None)
        else:
            kept: dict[str, Any] = {key: items[id_][key] for key in ("id", "self") if key in items[id_]}
            before = {} if self.command == "PUT" else items[id_]
            items[id_] = {**before, **json.loads(body), **kept}
            self._answer(200, items[id_], {"ETag": tag(items[id_])})

    def _file(self, parts: list[str]) -> None:
        """Content, of which only size and hash are kept: it may be larger than memory."""
        if self.command == "PUT":
            size, digest = 0, hashlib.sha256()
            for piece in self._pieces():
                size += len(piece)
                digest.update(piece)
            with self.state.lock:
                self.state.told.append({"method": "PUT", "path": self.path, "headers": dict(self.headers), "body": ""})
                known = parts[1] in self.state.items[parts[0]]
                self.state.files[parts[1]] = (size, digest.hexdigest())
            self._answer(204 if known else 404, None)
            return
        size, hash_ = self.state.files.get(parts[1], (0, ""))
        self._answer(200 if hash_ else 404, {"size": size, "sha256": hash_})

    def _console(self) -> None:
        self.send_response(101)
        self.send_header("Connection", "upgrade")
        self.send_header("Upgrade", "echo")
        self.end_headers()
        self.wfile.write(f"{self.path}\n".encode())
        with contextlib.suppress(OSError):
            while piece := self.connection.recv(65536):
                self.wfile.write(piece)
        self.close_connection = True

    # -- for tests -----------------------------------------------------------------------------------------

    def _control(self, name: str) -> None:
        body = self._body()
        with self.state.lock:
            if name == "_fault":
                self.state.fault = json.loads(body)
            elif name == "_token":
                self.state.token = json.loads(body)
        self._answer(200, self.state.told if name == "_told" else {})

    def _body(self) -> bytes:
        self._last = b"".join(self._pieces())
        return self._last

    def _pieces(self) -> Any:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline().strip() or b"0", 16):
                yield self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return
        left = int(self.headers.get("Content-Length") or 0)
        while left > 0 and (piece := self.rfile.read(min(left, 1 << 20))):
            left -= len(piece)
            yield piece

    _silent = False

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        if self._silent:
            self._silent = False
            return
        raw = b"" if content is None else json.dumps(content).encode()
        kind = {"Content-Type": "text/plain" if self.headers.get("Accept") == "text/plain" else "application/json"}
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked and (self.command, status) == ("GET", 200):
            start, end = int(asked[1]), int(asked[2])
            kind["Content-Range"] = f"bytes {start}-{end}/{len(raw)}"
            status, raw = 206, raw[start : end + 1]
        with contextlib.suppress(OSError):
            self.send_response(status)
            wanted = json.loads(self.headers.get("X-Answer", "{}"))
            for key, value in {**kind, **(headers or {}), **wanted}.items():
                self.send_header(key, value)
            if status != 204:
                self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)


for _method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "MKCOL", "PROPFIND"):
    setattr(Handler, f"do_{_method}", Handler.handle_any)


def tag(item: dict[str, Any]) -> str:
    return f'"{hashlib.sha256(json.dumps(item, sort_keys=True).encode()).hexdigest()[:16]}"'


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("--ids", choices=("number", "random"), default="number")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--token", default="")
    given = parser.parse_args()
    Handler.state = State(given.ids, given.token, given.first)
    Server(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
