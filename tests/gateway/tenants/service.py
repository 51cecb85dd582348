"""A service with tenants and the habits of OpenStack, one instance per site, in the process of the test.

    POST /v3/auth/tokens    a login: the token is in X-Subject-Token
    GET  /v3/auth/tokens    whose token X-Subject-Token is
    /servers, /servers/ID   GET lists what the tenant may see; POST answers with an adminPass; PUT, PATCH, DELETE
    /notes/NAME             PUT creates under the name that the client chose

401 for no token, an expired one, and one of another site. 404 for what belongs to another tenant. 403 for a tenant's
reader that changes something. The tenant `admin` may do everything. The first part of a path (`/own/servers`) chooses
one of several databases, so that one process serves several configurations.
"""

import json
import threading
import uuid
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

MARK = "SECRET"


class Token(NamedTuple):
    """What a token stands for; its text has a mark by which it is found wherever it is written down."""

    site: str
    tenant: str
    role: str = "member"
    is_expired: bool = False

    @property
    def text(self) -> str:
        return f"{MARK}-{self.site}-{self.tenant}-{self.role}-{'expired' if self.is_expired else 'valid'}"


def admin_password(id_: str) -> str:
    return f"{MARK}-adminpass-{id_}"


class Database:
    def __init__(self) -> None:
        self.servers: dict[str, dict[str, Any]] = {}
        self.notes: dict[str, dict[str, Any]] = {}
        self.seen: list[tuple[str, str, str, str]] = []  # tenant (empty: nobody), method, path, body


class Tenants(ThreadingHTTPServer):
    """The service of one site."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, site: str, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.site = site
        self.databases: dict[str, Database] = defaultdict(Database)
        self.revoked: set[str] = set()
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def state(self, database: str) -> dict[str, Any]:
        found = self.databases[database]
        with self.lock:
            copied: dict[str, Any] = json.loads(json.dumps({"servers": found.servers, "notes": found.notes}))
            return copied

    def close(self) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Tenants
    timeout = 60

    def log_message(self, *_: Any) -> None:
        pass

    def _any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        _, name, *parts = self.path.partition("?")[0].split("/")
        with self.server.lock:
            database = self.server.databases[name]
            token = self._token(self.headers.get("X-Auth-Token"))
            database.seen.append((token.tenant if token else "", self.command, "/".join(parts), body.decode()))
            if parts == ["v3", "auth", "tokens"]:
                self._identity(token, body)
            elif token is None:
                self._answer(401, {"error": "unauthorized"})
            elif parts[0] == "servers":
                self._servers(database, token, parts[1:], body)
            elif parts[0] == "notes" and len(parts) == 2:
                self._note(database, token, parts[1], body)
            else:
                self._answer(404, {"error": "no such path"})

    def _token(self, text: str | None) -> Token | None:
        mark, *rest = (text or "").split("-")
        if mark != MARK or len(rest) != 4 or text in self.server.revoked:
            return None
        site, tenant, role, state = rest
        return Token(site, tenant, role) if (site, state) == (self.server.site, "valid") else None

    def _identity(self, token: Token | None, body: bytes) -> None:
        if self.command == "POST":
            given = json.loads(body)["auth"]
            made = Token(self.server.site, given["user"])
            self._answer(201, {"token": {"project": {"id": made.tenant}}}, {"X-Subject-Token": made.text})
            return
        subject = self._token(self.headers.get("X-Subject-Token"))
        if token is None or subject is None:
            self._answer(401 if token is None else 404, {"error": "unauthorized"})
        else:
            self._answer(200, {"token": {"project": {"id": subject.tenant}}})

    def _servers(self, database: Database, token: Token, parts: list[str], body: bytes) -> None:
        if not parts:
            if self.command == "GET":
                seen = [one for one in database.servers.values() if token.tenant in ("admin", one["owner"])]
                self._answer(200, {"servers": seen})
            elif token.role == "reader":
                self._answer(403, {"error": "forbidden"})
            else:
                id_ = str(uuid.uuid4())
                database.servers[id_] = {**json.loads(body)["server"], "id": id_, "owner": token.tenant}
                self._answer(201, {"server": {**database.servers[id_], "adminPass": admin_password(id_)}})
            return
        found = database.servers.get(parts[0])
        if found is None or token.tenant not in ("admin", found["owner"]):
            self._answer(404, {"error": "no such server"})
        elif self.command == "GET":
            self._answer(200, {"server": found})
        elif token.role == "reader":
            self._answer(403, {"error": "forbidden"})
        elif self.command == "DELETE":
            del database.servers[parts[0]]
            self._answer(204, None)
        else:
            kept = {key: found[key] for key in ("id", "owner")}
            before = {} if self.command == "PUT" else found
            database.servers[parts[0]] = {**before, **json.loads(body)["server"], **kept}
            self._answer(200, {"server": database.servers[parts[0]]})

    def _note(self, database: Database, token: Token, name: str, body: bytes) -> None:
        found = database.notes.get(name)
        if found is not None and token.tenant not in ("admin", found["owner"]):
            self._answer(404, {"error": "no such note"})
        elif self.command == "GET":
            self._answer(200 if found else 404, found or {"error": "no such note"})
        elif token.role == "reader":
            self._answer(403, {"error": "forbidden"})
        elif self.command == "DELETE":
            self._answer(204 if database.notes.pop(name, None) else 404, None)
        else:
            owner = found["owner"] if found else token.tenant
            database.notes[name] = {**json.loads(body), "owner": owner}
            self._answer(200 if found else 201, database.notes[name])

    def _answer(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        raw = b"" if content is None else json.dumps(content).encode()
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        if raw:
            self.send_header("Content-Type", "application/json")
        if status != 204:
            self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(raw)


for _method in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"):
    setattr(_Handler, f"do_{_method}", _Handler._any)
