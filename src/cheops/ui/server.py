"""Serves the interface at /ui: one page for every address below, and the files that it needs.

It stands before the guard, because it tells nothing of the site: whoever asks gets the same files. What the
page shows it asks of the API, as any other client. So it comes up for a browser that has yet to sign in, also
where a link on a page of somewhere else leads to it.

The page may run and load what comes from this agent, and nothing else: no script in the page itself, no
style, no frame around it. So a resource whose id is a piece of HTML is a strange name and no more.
"""

from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cheops.ui.pages import File, files, page, preloads

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
    "Cache-Control": "no-cache",  # ask each time: what has not changed is a short answer
    "Vary": "Accept-Encoding",
}


class WebInterface:
    """Answers what is below /ui, and hands everything else on."""

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
            return _file(scope, page(*preloads(_sent(scope).removeprefix(ROOT), _query(scope))))
        found = files().get(path.removeprefix(_STATIC))
        return _file(scope, found) if found else PlainTextResponse("no such file", 404, _HEADERS)


def _sent(scope: Scope) -> str:
    """The path as it was sent, percent-encoded."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def _query(scope: Scope) -> str:
    query: bytes = scope.get("query_string", b"")
    return query.decode("latin-1")


def _file(scope: Scope, file: File) -> Response:
    told = dict(scope["headers"])
    headers = {**_HEADERS, "ETag": file.etag, "Content-Type": file.kind}
    if file.etag.encode() in (one.strip() for one in told.get(b"if-none-match", b"").split(b",")):
        return Response(status_code=304, headers=headers)
    if b"gzip" in told.get(b"accept-encoding", b""):
        return Response(file.packed, headers={**headers, "Content-Encoding": "gzip"})
    return Response(file.body, headers=headers)
