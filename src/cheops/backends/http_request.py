"""An HTTP request as the payload of an operation: compact canonical JSON, the same at every site.

Ids in it are meta-ids. It holds no credentials and nothing that belongs to one connection. A small body
stands in it; a larger one is a file, `body`, that sites fetch from each other by its hash.
"""

import base64
import re
from collections.abc import Iterable

import msgspec

from cheops.config.replication import PATCH, PUT, STEPS, ReplicationConfig
from cheops.errors import ClientError
from cheops.log.operation import Command

BODY = "body"  # the name of the file
MAX_INLINE_BYTES = 32 * 1024
MAX_LINE_BYTES = 128 * 1024
CREATE, DELETE = "create", "delete"
COLLECTING = frozenset(("MKCOL", "MKCALENDAR"))  # what makes a collection under a name that the client chose
NAMING = COLLECTING | {"PUT"}  # what makes something under such a name
_MAX_TYPE_CHARACTERS = 100
_REPLAYABLE = ("PUT", "DELETE")
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,200}")
_PATH = re.compile(r"/[^\s\x00-\x1f\x7f?#]*")
_QUERY = re.compile(r"[^\s\x00-\x1f\x7f#]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")

# What belongs to one connection, to the caller alone, or to the mesh.
_DROPPED = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "content-length", "expect", "accept-encoding", "range", "max-forwards", "via", "forwarded"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"),
        *("scope", "prefer", "content-md5", "digest", "content-digest", "repr-digest", "idempotency-key"),
    )
)

Header = tuple[str, str]


class PayloadError(ClientError):
    """An operation's payload is not a request."""


class RequestTooLargeError(ClientError):
    status = 431


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a site sends to its service. `item` is where the resource is found once it is there: with `{id}`
    for what the service names, as it stands for what the client named."""

    method: str = ""
    path: str = ""
    query: str = ""
    headers: tuple[Header, ...] = ()
    text: str = ""
    base64: str = ""
    file_bytes: int | None = None
    item: str = ""
    named: bool = False
    exists: str = ""
    key: str = ""  # the Idempotency-Key
    ticket: str = ""  # under which the site that took it remembers the client's credentials, for a while
    base: bool = False  # runs nothing: see config.replication
    within: str = ""  # the replicated collection that what it creates is in: it must be there first
    scope: str = ""  # for the calls that the application makes to other services

    @property
    def creates(self) -> bool:
        return bool(self.item) and self.method != "DELETE"

    @property
    def creates_collection(self) -> bool:
        return self.creates and self.method in COLLECTING

    @property
    def deletes(self) -> bool:
        """Whether nothing is left of the resource after it: not so for a DELETE of something below it."""
        return bool(self.item) and self.method == "DELETE"

    @property
    def inline(self) -> bytes:
        return base64.b64decode(self.base64, validate=True) if self.base64 else self.text.encode()

    @property
    def is_json(self) -> bool:
        return is_json(header(self.headers, "content-type"))

    @property
    def is_form(self) -> bool:
        return media_type(header(self.headers, "content-type")) == "application/x-www-form-urlencoded"

    @property
    def is_repeatable(self) -> bool:
        """Whether to run it again, in its order, leads to the same state."""
        if self.method == "PATCH":
            return not _is_stepwise(header(self.headers, "content-type"))
        return self.base or self.method in _REPLAYABLE


def command_of(request: Request, file_hash: str = "") -> Command:
    line = msgspec.json.encode(request)  # fields in the order above, so one spelling
    if len(line) > MAX_LINE_BYTES:
        raise RequestTooLargeError(
            f"the request has {len(line)} bytes without its body; to be replicated, {MAX_LINE_BYTES} at most"
        )
    return Command(line.decode(), ((BODY, file_hash),) if file_hash else ())


def request_of(command: Command) -> Request:
    try:
        request = msgspec.json.decode(command.line, type=Request)
        _ = request.inline
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PayloadError(f"this is no HTTP request, so it cannot be run for a service: {error}") from None
    if not request.base and not _is_sendable(request):
        raise PayloadError("this is no HTTP request: its method, path or headers cannot be sent")
    return request


def _is_sendable(request: Request) -> bool:
    """It may come from another site: nothing in it may become a second request."""
    texts = (*(value for _, value in request.headers), request.key, request.scope)
    return bool(
        _TOKEN.fullmatch(request.method)
        and _PATH.fullmatch(request.path)
        and _QUERY.fullmatch(request.query)
        and all(_TOKEN.fullmatch(name) and not _is_dropped(name) for name, _ in request.headers)
        and not any(_CONTROL.search(text) for text in texts)
    )


def with_body(request: Request, body: bytes) -> Request:
    """A small body as part of the request."""
    try:
        return msgspec.structs.replace(request, text=body.decode())
    except UnicodeDecodeError:
        return msgspec.structs.replace(request, base64=base64.b64encode(body).decode())


def end_to_end(headers: Iterable[Header], config: ReplicationConfig) -> tuple[Header, ...]:
    """The headers that go to all sites."""
    kept = (pair for pair in headers if not _is_dropped(pair[0]))
    return tuple(pair for pair in kept if config.credentials == "pass" or not config.is_credential(pair[0]))


def credentials_of(headers: Iterable[Header], config: ReplicationConfig) -> tuple[Header, ...]:
    return tuple(pair for pair in headers if config.is_credential(pair[0]))


def header(headers: Iterable[Header], name: str) -> str:
    return next((value for given, value in headers if given.lower() == name), "")


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    found = media_type(content_type)
    return found.endswith(("/json", "+json", "/x-ndjson", "/json-seq"))


def operation_type(method: str, sub_path: str, content_type: str) -> str:
    """What the matrix calls a request to an item, or to something below it (`put tags/x`)."""
    if sub_path:
        name = f"{method.lower()} {sub_path}"
        return name if len(name) <= _MAX_TYPE_CHARACTERS else name[: _MAX_TYPE_CHARACTERS - 1] + "…"
    if method == "PATCH":
        return STEPS if _is_stepwise(content_type) else PATCH
    known = {"PUT": PUT, "DELETE": DELETE, **dict.fromkeys(COLLECTING, CREATE)}
    return known.get(method, method.lower())


BASE_REQUEST = Request(base=True)


def _is_dropped(name: str) -> bool:
    lower = name.lower()
    return lower in _DROPPED or lower.startswith(("cheops-", "proxy-"))


def _is_stepwise(content_type: str) -> bool:
    """Whether a PATCH of this kind is a list of steps, or anything else that must not be applied twice. One
    that says what members become (RFC 7396, and plain JSON) may."""
    found = media_type(content_type)
    return "json-patch" in found or not (is_json(found) or found == "application/x-www-form-urlencoded")
