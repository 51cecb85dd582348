"""Serves the web interface at /ui: one page for every URL below it, and its scripts and styles.

It answers before authentication, because it reveals nothing about the site: every client gets the same files, and
the page gets its data from the API like any other client. So the page also loads for a browser that has to sign in
first, even when a link on another website leads to it.

The content security policy lets the page run and load only what comes from this agent: no inline script or style,
and no frame around it. A resource whose id is a piece of HTML is then a strange name and no more.
"""

import gzip
import hashlib
import re
from functools import lru_cache
from html import escape
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import NamedTuple

from msgspec import Struct
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

ROOT = "/ui"
_STATIC = f"{ROOT}/static/"
POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "img-src 'self' data:"),
        *("connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'self'"),
        *("require-trusted-types-for 'script'", "trusted-types 'none'"),
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidate each time: an unchanged file costs only a 304
    "Vary": "Accept-Encoding",
}

# -- the files ---------------------------------------------------------------------------------------------

PAGE = "index.html"
_FOLDER = Path(__file__).parent / "web"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_STYLES = ("tokens.css", "base.css", "components.css", "lanes.css")  # served as one
_PRELOADS = b"<!-- modules -->"
_IMPORT = re.compile(r'^import [^;]*? from "([^"]+)";$', re.MULTILINE)


class File(Struct, frozen=True):
    kind: str
    body: bytes
    gzipped: bytes
    etag: str


@lru_cache(1)
def files() -> dict[str, File]:
    """All files but the page, by their path below the folder, such as `views/sites.js`."""
    bodies = {name: body for name, body in _bodies().items() if name != PAGE and not name.endswith(".css")}
    bodies["style.css"] = b"\n".join(_bodies()[name] for name in _STYLES)
    return {name: _file(name, body) for name, body in bodies.items()}


@lru_cache(256)  # bounded, because clients choose the resource ids in `queries`
def page(view: str, queries: tuple[str, ...] = ()) -> File:
    """The page, with links that preload the scripts of its view and its first API queries.

    Otherwise a browser finds them one import after the other, each a round trip later.
    """
    links = [f'<link rel="modulepreload" href="/ui/static/{name}">' for name in _scripts(view)]
    links += [f'<link rel="preload" as="fetch" crossorigin href="{escape(one)}">' for one in queries]
    return _file(PAGE, _bodies()[PAGE].replace(_PRELOADS, "\n".join(links).encode()))


@lru_cache(16)
def _scripts(view: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*_imported("main.js"), *_imported(f"views/{view}.js"))))


@lru_cache(1)
def _bodies() -> dict[str, bytes]:
    paths = (path for path in sorted(_FOLDER.rglob("*")) if path.suffix in _KINDS)
    return {str(path.relative_to(_FOLDER)): path.read_bytes() for path in paths}


def _imported(name: str) -> list[str]:
    """A script and everything that it imports, directly or not."""
    scripts, left = [name], [name]
    while left:
        script = left.pop()
        for match in _IMPORT.finditer(_bodies()[script].decode()):
            other = normpath(f"{PurePosixPath(script).parent}/{match[1]}")
            if other not in scripts:
                scripts.append(other)
                left.append(other)
    return scripts


def _file(name: str, body: bytes) -> File:
    gzipped = gzip.compress(body, 9, mtime=0)  # without a time, equal files are equal bytes at all agents
    etag = f'"{hashlib.sha256(body).hexdigest()[:20]}"'
    return File(_KINDS[Path(name).suffix], body, gzipped, etag)


_API = "/api/v1"
_VIEWS = {
    "": "sites",
    "sites": "resources",
    "resources": "resources",
    "new": "new_resource",
    "scope": "scope",
    "replicants": "replicants",
    "requests": "requests",
}
_ID = re.compile(r"[A-Za-z0-9%._~!*()-]{1,800}")  # one URL segment, without characters that could end an HTML attribute


class Preloads(NamedTuple):
    view: str
    queries: tuple[str, ...] = ()


def preloads(path: str, query: str) -> Preloads:
    """What the page at a path below /ui preloads; the path is percent-encoded, as it was sent."""
    first, _, rest = path.strip("/").partition("/")
    if first == "resources" and rest:
        return Preloads("resource", (f"{_API}/resources/{rest}/lanes?fresh=0.3",) if _ID.fullmatch(rest) else ())
    view = _VIEWS.get(first, "sites")
    if first == "":
        return Preloads(view, (f"{_API}/sites", f"{_API}/demo/wires"))
    if first == "resources" and not query:
        return Preloads(view, (f"{_API}/resources?limit=50&fresh=0.3", f"{_API}/types"))
    return Preloads(view)


# -- the HTTP side -----------------------------------------------------------------------------------------


class WebInterface:
    """Serves every path below /ui, and passes all other requests on."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if scope["type"] != "http" or not (path == ROOT or path.startswith(f"{ROOT}/")):
            await self._app(scope, receive, send)
            return
        await self._answer(scope, path)(scope, receive, send)

    def _answer(self, scope: Scope, path: str) -> Response:
        if scope["method"] not in ("GET", "HEAD"):
            return PlainTextResponse("only GET", 405, {**_HEADERS, "Allow": "GET, HEAD"})
        if path == ROOT:
            return RedirectResponse(f"{ROOT}/", 308, _HEADERS)
        if not path.startswith(_STATIC):
            return _response(scope, page(*preloads(_raw_path(scope).removeprefix(ROOT), _query(scope))))
        file = files().get(path.removeprefix(_STATIC))
        return _response(scope, file) if file else PlainTextResponse("no such file", 404, _HEADERS)


def _raw_path(scope: Scope) -> str:
    """The path as the client sent it, percent-encoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def _query(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return query.decode("latin-1")


def _response(scope: Scope, file: File) -> Response:
    request = dict(scope["headers"])
    headers = {**_HEADERS, "ETag": file.etag, "Content-Type": file.kind}
    if file.etag.encode() in (one.strip() for one in request.get(b"if-none-match", b"").split(b",")):
        return Response(status_code=304, headers=headers)
    if b"gzip" in request.get(b"accept-encoding", b""):
        return Response(file.gzipped, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, headers=headers)
