"""Cross-origin requests of browsers (CORS): Cheops' own headers, where the service allows the origin. Pure.

A browser asks first (a preflight) which headers a request may have, and shows a page only those of the response that
are listed. The service knows nothing of Cheops, and many refuse a preflight with a header that they do not know. So
the gateway takes its own names out of the question, and adds them to an answer that allows the origin. It never
allows an origin, a method or any other header that the service does not.
"""

from cheops.gateway.headers import (
    CREDENTIALS,
    CUT,
    EFFECT,
    FALLBACK,
    FOR_CLIENTS,
    NOTE,
    OPERATION,
    PARTS,
    REPLICAS,
    SCOPE,
    SITE,
    Header,
    Headers,
    RequestHead,
    every,
    first,
    without,
)

_OWN_REQUEST_HEADERS = frozenset({SCOPE.lower(), *FOR_CLIENTS})
_EXPOSED = ", ".join((SITE, FALLBACK, EFFECT, OPERATION, REPLICAS, CREDENTIALS, NOTE, CUT, PARTS))
ALLOW_ORIGIN, EXPOSE_HEADERS = "Access-Control-Allow-Origin", "Access-Control-Expose-Headers"
EXPOSE_HEADER: Header = (EXPOSE_HEADERS, _EXPOSED)
_ALLOW_HEADERS, _ASKED = "Access-Control-Allow-Headers", "Access-Control-Request-Headers"


def is_preflight(head: RequestHead) -> bool:
    is_asked = first(head, "Access-Control-Request-Method") is not None
    return head.method == "OPTIONS" and is_asked and first(head, "Origin") is not None


def for_service(head: RequestHead) -> RequestHead:
    """A preflight without the question for Cheops' own headers."""
    if not _own_asked(head):
        return head
    left = [name for name in _asked(head) if name.lower() not in _OWN_REQUEST_HEADERS]
    headers = without(head.headers, _ASKED)
    return RequestHead(head.method, head.target, (*headers, (_ASKED, ",".join(left))) if left else headers)


def preflight_answer(head: RequestHead, status: int, headers: Headers) -> Headers:
    """The headers of the answer to a preflight, `head` as the browser sent it."""
    own = _own_asked(head)
    if not own or not 200 <= status < 300 or not _allows(headers, first(head, "Origin") or ""):
        return headers
    return (*headers, (_ALLOW_HEADERS, ", ".join(own)))


def with_exposed(headers: Headers) -> Headers:
    """The headers of a response, with those of Cheops listed if it is for a page of another origin."""
    names = {name.lower() for name, _ in headers}
    if ALLOW_ORIGIN.lower() not in names or EXPOSE_HEADER in headers:  # another gateway may have done it
        return headers
    return (*headers, EXPOSE_HEADER)


def _asked(head: RequestHead) -> list[str]:
    return [name for value in every(head, _ASKED) for part in value.split(",") if (name := part.strip())]


def _own_asked(head: RequestHead) -> list[str]:
    return [name for name in _asked(head) if name.lower() in _OWN_REQUEST_HEADERS]


def _allows(headers: Headers, origin: str) -> bool:
    allowed = every(RequestHead("", "", headers), ALLOW_ORIGIN)
    return allowed in (["*"], [origin])
