"""What HAProxy itself answers, as files that it reads: problem details, as the agent has them."""

from http import HTTPStatus

import msgspec

from cheops.gateway.headers import EFFECT, SITE, site_name
from cheops.gateway.problems import MEDIA_TYPE

# By the status that HAProxy has for it: what is answered and said, and whether nothing can have happened.
_SAID = {
    400: (400, "the request is not HTTP/1.1, or could be understood in two ways", True),
    408: (408, "the request did not come in time", True),
    413: (413, "the request is too large", True),
    500: (500, "the fast path of the gateway failed; its log is haproxy.log", False),
    502: (502, "the service was asked, but: it closed the connection, or did not answer in HTTP", False),
    503: (503, "this needs the agent, which does not answer now; it may be starting", True),
    504: (504, "the service was asked, but: no answer in time", False),
}


def error_files(here: str) -> dict[str, bytes]:
    """Their names and contents."""
    return {f"{status}.http": _answer(here, *said) for status, said in _SAID.items()}


def _answer(here: str, status: int, detail: str, had_no_effect: bool) -> bytes:
    phrase = HTTPStatus(status).phrase
    fault = "client" if status < 500 else "us" if status in (500, 503) else "application"
    told = {"type": "about:blank", "title": phrase, "status": status, "detail": detail, "fault": fault}
    body = msgspec.json.encode({**told, "definite": status < 500})
    lines = [
        f"HTTP/1.1 {status} {phrase}",
        f"Content-Type: {MEDIA_TYPE}",
        "Cache-Control: no-store",
        f"{SITE}: {site_name(here)}",
        *([f"{EFFECT}: none"] if had_no_effect else []),
        *(["Connection: close"] if status < 500 else []),
        f"Content-Length: {len(body)}",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + body
