"""The files of the web interface, read once, and what each page preloads."""

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import NamedTuple

PAGE = "index.html"
_FOLDER = Path(__file__).parent / "web"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STYLES = ("tokens.css", "base.css", "parts.css", "lanes.css")  # served as one
_PRELOADS = b"<!-- modules -->"
_IMPORT = re.compile(r'^import [^;]*? from "([^"]+)";$', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class File:
    kind: str
    body: bytes
    packed: bytes  # gzip
    etag: str


@lru_cache(1)
def files() -> dict[str, File]:
    """By their path below the folder, such as `views/sites.js`; but for the page itself."""
    bodies = {name: body for name, body in _bodies().items() if name != PAGE and not name.endswith(".css")}
    bodies["style.css"] = b"\n".join(_bodies()[name] for name in _STYLES)
    return {name: _file(name, body) for name, body in bodies.items()}


@lru_cache(256)
def page(view: str, questions: tuple[str, ...] = ()) -> File:
    """The page, which names the scripts that its view needs, and what it will ask of the API first: told of
    all at once, a browser need not find out step by step."""
    links = [f'<link rel="modulepreload" href="/ui/static/{name}">' for name in _scripts(view)]
    links += [f'<link rel="preload" as="fetch" crossorigin href="{escape(one)}">' for one in questions]
    return _file(PAGE, _bodies()[PAGE].replace(_PRELOADS, "\n".join(links).encode()))


@lru_cache(16)
def _scripts(view: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_imported("main.js"), *_imported(f"views/{view}.js"))))


@lru_cache(1)
def _bodies() -> dict[str, bytes]:
    found = (path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _KINDS)
    return {str(path.relative_to(_FOLDER)): path.read_bytes() for path in found}


def _imported(name: str) -> list[str]:
    """A script and all that it imports, and these in turn."""
    found, left = [name], [name]
    while left:
        script = left.pop()
        for match in _IMPORT.finditer(_bodies()[script].decode()):
            other = normpath(f"{PurePosixPath(script).parent}/{match[1]}")
            if other not in found:
                found.append(other)
                left.append(other)
    return found


def _file(name: str, body: bytes) -> File:
    packed = gzip.compress(body, 9, mtime=0)
    etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return File(_KINDS[Path(name).suffix], body, packed, etag)


_API = "/api/v1"
_VIEWS = {
    "": "sites",
    "sites": "site",
    "resources": "site",
    "new": "new",
    "scope": "scope",
    "replicants": "replicants",
    "requests": "requests",
}
_ID = re.compile(r"[A-Za-z0-9%._~!*()-]{1,800}")  # one segment as browsers send it, and nothing that ends an attribute


class Preloads(NamedTuple):
    view: str
    questions: tuple[str, ...] = ()


def preloads(path: str, query: str) -> Preloads:
    """Of an address below /ui, percent-encoded as it was sent."""
    first, _, rest = path.strip("/").partition("/")
    if first == "resources" and rest:
        return Preloads("resource", (f"{_API}/resources/{rest}/lanes?fresh=0.3",) if _ID.fullmatch(rest) else ())
    view = _VIEWS.get(first, "sites")
    if first == "":
        return Preloads(view, (f"{_API}/sites", f"{_API}/demo/wires"))
    if first == "resources" and not query:
        return Preloads(view, (f"{_API}/resources?limit=50&fresh=0.3", f"{_API}/types"))
    return Preloads(view)
