"""Model services for the simulator: small HTTP APIs as real ones are, each with a state that can be compared.

    notes    ids that the service gives, parts (`tags/x`), comments below a note, references between notes
    store    what clients name: buckets, objects in them, and the tagging of an object, which the query selects
    files    collections that clients name: a deletion takes away all that is in them, and they can be made again
    kv       one path for all keys: the body of a POST names the key
    ledger   transactions, which are not idempotent: everything that the service does has one order
    images   repositories that begin with their first tag: all changes of the tags of one have one order

A service keeps what it did, whatever happens to the agent. It may be down, and it may stop between doing and answering.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import msgspec

Reply = tuple[int, object]  # a status, and the JSON of the body
_FIRST_IDS = (1, 41, 501, 7001, 90001)  # one thing has another id at each site

CONFIG = """
site: {name}
security: none
services:
  notes:
    url: http://127.0.0.1:9001
    items: {{"/notes/*/comments": "/notes/*/comments/{{id}}"}}
    refs: {{ref: /notes}}
  store:
    url: http://127.0.0.1:9002
    rules: s3
  files:
    url: http://127.0.0.1:9005
  kv:
    url: http://127.0.0.1:9003
    rules:
      - {{match: POST /kv/put, is: put, of: "$.key"}}
      - {{match: POST /kv/delete, is: delete, of: "$.key"}}
      - {{match: POST /kv/range, is: read}}
  ledger:
    url: http://127.0.0.1:9004
    rules:
      - {{match: POST /txn, is: action txn, of: service, ok: {{$.succeeded: true}}}}
      - {{match: POST /set, is: put, of: "$.account"}}
  images:
    url: http://127.0.0.1:9006
    rules:
      - {{match: "PUT /{{name}}/tags/{{tag}}", is: patch, of: "/{{name}}"}}
      - {{match: "DELETE /{{name}}/tags/{{tag}}", is: patch, of: "/{{name}}"}}
"""


@dataclass
class ModelService:
    """One site's instance. `entries` is its whole state: paths, and what is there."""

    number: int  # of the site
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    down_until_ms: int = 0

    def __post_init__(self) -> None:
        self._ids = count(_FIRST_IDS[self.number % len(_FIRST_IDS)])

    def handle(self, method: str, target: str, body: bytes) -> Reply:
        """Do what a request says."""
        path, _, query = target.partition("?")
        content = msgspec.json.decode(body) if body else {}
        return self.do(method, [part for part in path.split("/") if part], query, content)

    def do(self, method: str, parts: list[str], query: str, content: dict[str, Any]) -> Reply:
        raise NotImplementedError

    def registers(self) -> Iterator[tuple[str, object]]:
        """What can be written and read by itself: a name that begins with a path, and its value."""
        for path, entry in self.entries.items():
            for member, value in entry.items():
                yield f"{path}#{member}", value

    def forget(self, path: str) -> None:
        """As an operator would: take away what is at a path, and below it."""
        for one in [one for one in self.entries if one == path or one.startswith((f"{path}/", f"{path}?"))]:
            del self.entries[one]

    def _put(self, path: str, content: dict[str, Any]) -> Reply:
        is_new = path not in self.entries
        self.entries[path] = content
        return (201 if is_new else 200), content

    def _create(self, collection: str, content: dict[str, Any]) -> Reply:
        id_ = next(self._ids)
        self.entries[f"{collection}/{id_}"] = content
        return 201, {"id": id_, **content}


class Notes(ModelService):
    def do(  # noqa: C901, PLR0911 - one per kind of request
        self, method: str, parts: list[str], query: str, content: dict[str, Any]
    ) -> Reply:
        path = f"/{'/'.join(parts)}"
        note = f"/{'/'.join(parts[:2])}"
        if query or len(parts) > 4:
            return 400, {}
        if "ref" in content and f"/notes/{content['ref']}" not in self.entries:
            return 409, {"why": "there is no such note"}
        if len(parts) > 1 and note not in self.entries:
            return 404, {}
        match method, parts[2:3], len(parts):
            case "POST", [], 1:
                return self._create("/notes", content)
            case "POST", ["comments"], 3:
                return self._create(path, content)
            case "PUT", ["tags"], 4:
                return self._put(path, content)
            case _ if path not in self.entries:
                return 404, {}
            case "GET", _, _:
                return 200, self.entries[path]
            case "PUT", _, _:
                return self._put(path, content)
            case "PATCH", _, _:
                return self._put(path, self.entries[path] | content)
            case "DELETE", _, _:
                self.forget(path)
                return 204, {}
        return 405, {}


class Store(ModelService):
    def do(  # noqa: PLR0911 - one per kind of request
        self, method: str, parts: list[str], query: str, content: dict[str, Any]
    ) -> Reply:
        bucket, path = f"/{parts[0]}", f"/{'/'.join(parts)}"
        if query not in ("", "tagging"):
            return 400, {}
        if bucket not in self.entries and (method != "PUT" or len(parts) > 1):
            return 404, {}
        if len(parts) == 1:
            return self._bucket(method, bucket, content)
        if query and path not in self.entries:
            return 404, {}
        name = f"{path}?{query}" if query else path
        match method:
            case "PUT":
                if not query:
                    self.forget(f"{path}?tagging")  # a new object has no tags
                return self._put(name, content)
            case "DELETE":
                self.forget(name)
                self.forget(f"{name}?tagging")
                return 204, {}
            case "GET":
                return (200, self.entries[name]) if name in self.entries else (404, {})
        return 405, {}

    def _bucket(self, method: str, bucket: str, content: dict[str, Any]) -> Reply:
        if method == "PUT":
            return self._put(bucket, content)
        if method == "DELETE":
            if any(path.startswith(f"{bucket}/") for path in self.entries):
                return 409, {"why": "it is not empty"}
            self.forget(bucket)
            return 204, {}
        return 200, {}


class Files(ModelService):
    """WebDAV, as far as the clients of the model use it."""

    def do(  # noqa: PLR0911 - one per kind of request
        self, method: str, parts: list[str], query: str, content: dict[str, Any]
    ) -> Reply:
        del query
        folder, path = f"/{parts[0]}", f"/{'/'.join(parts)}"
        if folder not in self.entries and (method != "MKCOL" or len(parts) > 1):
            return (409 if method == "PUT" else 404), {}
        match method:
            case "MKCOL":
                return (405, {}) if path in self.entries else self._put(path, {"made": True})
            case "PUT":
                return self._put(path, content)
            case "DELETE" if path in self.entries:
                self.forget(path)
                return 204, {}
            case "PROPFIND" if path in self.entries:
                return 207, {}
            case "GET" if path in self.entries:
                return 200, self.entries[path]
        return 404, {}


class KeyValues(ModelService):
    def do(self, method: str, parts: list[str], query: str, content: dict[str, Any]) -> Reply:
        key = f"/$.key/{content.get('key')}"
        match method, parts, query:
            case "POST", ["kv", "put"], "":
                self.entries[key] = {"value": content["value"]}
                return 200, {"header": {}}
            case "POST", ["kv", "delete"], "":
                self.entries.pop(key, None)
                return 200, {"deleted": 1}
            case "POST", ["kv", "range"], _:
                return 200, {"kvs": [self.entries[key]] if key in self.entries else []}
        return 405, {}


class Ledger(ModelService):
    def do(self, method: str, parts: list[str], query: str, content: dict[str, Any]) -> Reply:
        del query
        account = f"/{content.get('account')}"
        match method, parts:
            case "POST", ["set"]:
                self.entries[account] = {"value": content["value"]}
                return 200, {}
            case "POST", ["txn"]:
                value = self.entries.get(account, {"value": 0})["value"] + content["add"]
                if value < 0:
                    return 200, {"succeeded": False}
                self.entries[account] = {"value": value}
                return 200, {"succeeded": True}
        return 405, {}


class Images(ModelService):
    def do(self, method: str, parts: list[str], query: str, content: dict[str, Any]) -> Reply:
        del query
        path = f"/{'/'.join(parts)}"
        match method:
            case "PUT" if len(parts) == 3:
                return self._put(path, content)
            case "DELETE" if path in self.entries:
                self.forget(path)
                return 202, {}
            case "GET" if path in self.entries:
                return 200, self.entries[path]
        return 404, {}


SERVICES: dict[str, Callable[[int], ModelService]] = {
    "notes": Notes,
    "store": Store,
    "files": Files,
    "kv": KeyValues,
    "ledger": Ledger,
    "images": Images,
}
