"""What a service answered, as it is kept with an operation, and what it means for the engine. No I/O.

2xx, 303                          OK
404 and 410 to a DELETE           OK: it is not there
408, 425, 429, 503                RETRY: not done, and may be asked again
401 to this site's own credentials  RETRY: they are what must change, not the request
any other 3xx and 4xx, 501, 505   KO: a definite failure
any other 5xx, a timeout, a broken connection after the request went out
                                  RETRY where it can be repeated (PUT, DELETE, with an Idempotency-Key),
                                  else MAYBE: it may have had an effect
"""

import base64

import msgspec

from cheops.engine.events import Result

_KEPT_HEADERS = frozenset(
    (
        *("content-type", "content-language", "location", "link", "etag", "last-modified", "cache-control"),
        *("allow", "retry-after", "www-authenticate", "vary", "content-location", "warning"),
    )
)
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_TRY_AGAIN = (408, 425, 429, 503)
_NEVER = (501, 505)
Header = tuple[str, str]


class Said(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer in short. Ids in it are meta-ids. `cut_bytes`: it had a body, too large to be kept."""

    status: int
    headers: tuple[Header, ...] = ()
    text: str = ""
    base64: str = ""
    cut_bytes: int = 0
    note: str = ""

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()


def result_of(method: str, status: int, *, may_repeat: bool, own_credentials: bool) -> Result:
    """What a status means. `may_repeat`: the client gave a key by which the service knows a repetition."""
    if 200 <= status < 300 or status == 303 or (method == "DELETE" and status in (404, 410)):
        return Result.OK
    if status in _TRY_AGAIN or (status == 401 and own_credentials):
        return Result.RETRY
    if status < 500 or status in _NEVER:
        return Result.KO
    return in_doubt(method, may_repeat=may_repeat)


def in_doubt(method: str, *, may_repeat: bool) -> Result:
    """The request went out, and nobody knows what became of it."""
    return Result.RETRY if may_repeat or method in ("PUT", "DELETE") else Result.MAYBE


def said(status: int, headers: tuple[Header, ...], body: bytes, most_bytes: int, size: int) -> Said:
    """An answer as it is kept; `size` is that of the whole body, of which `body` may be the beginning."""
    kept = tuple((name, value) for name, value in headers if name.lower() in _KEPT_HEADERS)
    if size > most_bytes or size != len(body):
        return Said(status=status, headers=kept, cut_bytes=size)
    try:
        return Said(status=status, headers=kept, text=body.decode())
    except UnicodeDecodeError:
        return Said(status=status, headers=kept, base64=base64.b64encode(body).decode())


def written(answer: Said) -> str:
    return msgspec.json.encode(answer).decode()


def read_said(output: str) -> Said | None:
    """An answer that was kept, or None where the text is something else, such as why nothing was asked."""
    try:
        return msgspec.json.decode(output, type=Said)
    except (msgspec.MsgspecError, RecursionError):
        return None


def id_in(body: bytes, path: tuple[str, ...]) -> str | int | None:
    """What stands in a JSON body at a path of names."""
    try:
        found = msgspec.json.decode(body)
    except _UNREADABLE:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    is_id = isinstance(found, str | int) and not isinstance(found, bool) and found != ""
    return found if is_id else None


def first_id_in(body: bytes, path: tuple[str, ...]) -> str | int | None:
    """The id of the one item of a list, wherever that stands in the JSON; None for no item, or several."""
    try:
        items = _items(msgspec.json.decode(body), 3)
    except _UNREADABLE:
        return None
    if items is None or len(items) != 1:
        return None
    item = msgspec.json.encode(items[0])
    return id_in(item, path) or id_in(item, path[-1:])


def _items(found: object, depth: int) -> list[object] | None:
    if isinstance(found, list):
        return found
    if isinstance(found, dict) and depth:
        return next(
            (items for value in found.values() if (items := _items(value, depth - 1)) is not None), None
        )
    return None
