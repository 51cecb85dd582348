"""HTTP requests and responses as the log keeps them: compact canonical JSON, the same at every site.

Ids in both are meta-ids. A request holds no credentials and nothing that belongs to one connection. A small
body is part of it; a larger one is a file, `body`, that sites fetch from each other by its hash.

What a response means for the engine:

2xx, 303                            OK
404 and 410 to a DELETE             OK: it is not there. KO with a client's own credentials: services answer so if the
                                    client may not see it. If an attempt before may have deleted it, this site looks
                                    with its own credentials whether it is gone
408, 425, 429, 503                  RETRY: not done, and may be sent again
401 to credentials of this site     RETRY: the credentials must change, not the request. KO with a client's own
any other 3xx and 4xx, 501, 505     KO: a definite failure
any other 5xx, a timeout, a broken connection after the request went out
                                    RETRY if it can be repeated (PUT, DELETE, with an Idempotency-Key),
                                    else MAYBE: it may have had an effect
"""

import base64
import hashlib
import re
from collections.abc import Iterable
from urllib.parse import unquote

import msgspec

from cheops.config.request_rules import SAFE_METHODS
from cheops.config.services import CREATE, PATCH, PUT, STEPS, ReplicationConfig
from cheops.engine.events import Result
from cheops.errors import ClientError
from cheops.gateway.headers import IDEMPOTENT_METHODS
from cheops.log.operation import Command, FileRef
from cheops.text import printable, shortened

# Of a response with more headers than are kept, these are the last to go.
_FIRST_HEADERS = frozenset(
    (
        *("content-type", "content-language", "location", "link", "etag", "last-modified", "cache-control"),
        *("allow", "retry-after", "www-authenticate", "vary", "content-location", "warning"),
    )
)
# The response to the client is a message of its own, with its own date and framing, and not compressed.
_NEW_IN_RESPONSES = frozenset(("date", "content-length", "content-encoding", "trailer", "transfer-encoding"))
# These are about the bytes of a body, and wrong for any others.
_OF_BYTES = frozenset(("content-md5", "digest", "content-digest", "repr-digest", "content-range", "accept-ranges"))
_SESSIONS = frozenset(("set-cookie", "set-cookie2", "authentication-info"))  # secrets that services send to clients
MAX_KEPT_HEADERS = 100
MAX_KEPT_HEADER_BYTES = 16 * 1024
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
_TRY_AGAIN = (408, 425, 429, 503)
_UNSUPPORTED = (501, 505)
Header = tuple[str, str]


class KeptResponse(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of a response that the log keeps, with meta-ids. `cut_bytes`: its body was too large to keep."""

    status: int
    headers: tuple[Header, ...] = ()
    text: str = ""
    base64: str = ""
    cut_bytes: int = 0
    cut_headers: int = 0  # how many were too large to keep
    note: str = ""

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.base64) if self.base64 else self.text.encode()


def result_of(method: str, status: int, *, may_repeat: bool, of_client: bool) -> Result:
    """What a status means. `may_repeat`: the client gave a key by which the service knows a repetition. `of_client`:
    the request had the credentials of its client, and its service decides whether the client may do it."""
    if 200 <= status < 300 or status == 303 or (method == "DELETE" and status in (404, 410) and not of_client):
        return Result.OK
    if status in _TRY_AGAIN or (status == 401 and not of_client):
        return Result.RETRY
    return result_in_doubt(method, may_repeat=may_repeat) if is_in_doubt(status) else Result.KO


def is_in_doubt(status: int) -> bool:
    """Whether a response leaves open whether the request had an effect."""
    return status >= 500 and status not in (*_TRY_AGAIN, *_UNSUPPORTED)


def result_in_doubt(method: str, *, may_repeat: bool) -> Result:
    """The result of a request that was sent and whose effect is unknown."""
    return Result.RETRY if may_repeat or method in IDEMPOTENT_METHODS else Result.MAYBE


def kept_response(status: int, headers: tuple[Header, ...], body: bytes, most_bytes: int, size: int) -> KeptResponse:
    """A response as the log keeps it; `size` is that of the whole body, of which `body` may be the beginning."""
    is_cut = size > most_bytes or size != len(body)
    wanted = [pair for pair in headers if is_passed_on(pair[0], is_same_body=not is_cut)]
    kept = _bounded(wanted)
    response = KeptResponse(status=status, headers=kept, cut_headers=len(wanted) - len(kept))
    if is_cut:
        return msgspec.structs.replace(response, cut_bytes=size)
    try:
        return msgspec.structs.replace(response, text=body.decode())
    except UnicodeDecodeError:
        return msgspec.structs.replace(response, base64=base64.b64encode(body).decode())


def is_passed_on(name: str, *, is_same_body: bool) -> bool:
    """Whether a client gets this header of the service's response, from which those of one connection are gone."""
    plain = plain_name(name)
    if plain in _NEW_IN_RESPONSES or plain.startswith("cheops-"):  # an application must not pass for a gateway
        return False
    return is_same_body or plain not in _OF_BYTES


def _bounded(headers: list[Header]) -> tuple[Header, ...]:
    """Headers within the limits, in their order. Well-known ones, then short ones, are the last to go."""
    ranked = sorted(headers, key=lambda pair: (pair[0].lower() not in _FIRST_HEADERS, len(pair[0]) + len(pair[1])))
    kept, left_bytes = set(), MAX_KEPT_HEADER_BYTES
    for pair in ranked[:MAX_KEPT_HEADERS]:
        left_bytes -= len(pair[0]) + len(pair[1])
        if left_bytes < 0:
            break
        kept.add(pair)
    return tuple(pair for pair in headers if pair in kept)


def without_sessions(headers: Iterable[Header], config: ReplicationConfig) -> tuple[Header, ...]:
    """Headers of a response for the log: without cookies and other credentials, which only its client may have."""
    return tuple(pair for pair in headers if plain_name(pair[0]) not in _SESSIONS and not config.is_credential(pair[0]))


def encode_response(response: KeptResponse) -> str:
    return msgspec.json.encode(response).decode()


def decode_response(output: str) -> KeptResponse | None:
    """The kept response in this output; None if it is another text, such as why no request was sent."""
    try:
        return msgspec.json.decode(output, type=KeptResponse)
    except (msgspec.MsgspecError, RecursionError):
        return None


def id_in(body: bytes, path: tuple[str, ...]) -> str | int | None:
    """The id in a JSON body at a path of names."""
    try:
        found = msgspec.json.decode(body)
    except _UNREADABLE:
        return None
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    is_id = isinstance(found, str | int) and not isinstance(found, bool) and found != ""
    return found if is_id else None


def first_id_in(body: bytes, path: tuple[str, ...]) -> str | int | None:
    """The id of the only item of the list in a JSON body; None for no item, or several."""
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
        return next((items for value in found.values() if (items := _items(value, depth - 1)) is not None), None)
    return None


BODY = "body"  # the name of the file
MAX_INLINE_BYTES = 32 * 1024
MAX_LINE_BYTES = 128 * 1024
DELETE = "delete"
CREATE_METHOD = "POST"
COLLECTING = frozenset(("MKCOL", "MKCALENDAR"))  # methods that create a collection under a name of the client's choice
NAMING = COLLECTING | {"PUT"}  # methods that create anything under such a name
_MAX_TYPE_CHARACTERS = 100
_FORM = "application/x-www-form-urlencoded"
_TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]{1,200}")
_PATH = re.compile(r"/[^\s\x00-\x1f\x7f?#\\]*")
_QUERY = re.compile(r"[^\s\x00-\x1f\x7f#]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HOST = re.compile(r"[A-Za-z0-9_.~!$&'()*+;=%:\[\]-]{0,300}")

# What belongs to one connection, to the caller alone, or to the mesh.
_DROPPED = frozenset(
    (
        *("connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
        *("host", "content-length", "expect", "accept-encoding", "range", "max-forwards", "via", "forwarded"),
        *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
        *("if-match", "if-none-match", "if-modified-since", "if-unmodified-since", "if-range"),
        *("scope", "prefer", "idempotency-key"),
    )
)
# Wrong once ids in the body are translated; of other bodies they stay, since a client may have signed them.
_DIGESTS = frozenset(("content-md5", "digest", "content-digest", "repr-digest"))
# By these a service takes a request for another one than its method and path say, which rules are about.
_OVERRIDES = frozenset(
    (
        *("x-http-method-override", "x-http-method", "x-method-override"),
        *("x-original-url", "x-rewrite-url", "x-original-uri", "destination"),
    )
)
_NO_OPERATIONS = SAFE_METHODS | {"CONNECT", "MOVE", "COPY"}
_CONTROL_IN_PATH = re.compile(r"[\x00-\x1f\x7f]")
MAX_CLIENT_CHARACTERS = 200


class PayloadError(ClientError):
    """An operation's payload is not a request."""

    reason = "payload"


class After(msgspec.Struct, frozen=True, array_like=True):
    """How far an operation's origin was with another resource that the operation touches; see order.py."""

    resource: str
    ops: tuple[tuple[str, str, int], ...]  # site, incarnation, number
    sites: tuple[str, ...]  # of that resource


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A request that each site sends to its service. `item` is the path of the resource once it exists: with `{id}` if
    the service gives the id, complete if the client chose the name."""

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
    base: bool = False  # sends nothing: later PATCHes are replayed from here; see config.services.BASE
    within: str = ""  # the replicated collection that will contain it, which must exist first
    scope: str = ""  # for the calls that the application makes to other services
    host: str = ""  # the Host that the client sent
    client: str = ""  # who the client is, as the site that took it found out: for `replicate_as: mapped`
    kind: str = ""  # what it does to `part` of the resource, by a rule; see interpretation.py
    part: str = ""
    to: str = ""  # of a move: the new path
    after: tuple[After, ...] = ()
    contains: tuple[After, ...] = ()  # of a deletion: the replicants that it deletes, too; see deletions.py
    earlier: tuple[After, ...] = ()  # what it may refer to by a name; see order.py
    session: str = ""  # it completes a session of this name, and its body is all that was in it; see session_content.py
    state: bool = False  # sets the whole state, as a repair has read it at one site; see restoration.py
    made_at: str = ""  # with `state`: where a POST creates it, if there is none; empty if a PUT does that

    @property
    def creates(self) -> bool:
        if self.state:
            return False
        if self.kind:
            return self.kind == CREATE
        return bool(self.item) and self.method != "DELETE"

    @property
    def binds(self) -> bool:
        """Whether this site has a copy of the resource once it has run."""
        return bool(self.item) and not self.deletes

    @property
    def creates_collection(self) -> bool:
        return self.creates and self.method in COLLECTING

    @property
    def deletes(self) -> bool:
        """Whether nothing is left of the resource after it: not so for a DELETE of something below it."""
        if self.kind:
            return self.kind == DELETE and not self.part
        return bool(self.item) and self.method == "DELETE"

    @property
    def inline(self) -> bytes:
        return base64.b64decode(self.base64, validate=True) if self.base64 else self.text.encode()

    @property
    def is_json(self) -> bool:
        return is_json(header(self.headers, "content-type"))

    @property
    def is_form(self) -> bool:
        return media_type(header(self.headers, "content-type")) == _FORM

    @property
    def is_rewritten(self) -> bool:
        """Whether its body may be another one at each site, with the ids that things have there."""
        return is_rewritten_type(header(self.headers, "content-type"))

    @property
    def is_repeatable(self) -> bool:
        """Whether running it again, in its place in the order, gives the same state."""
        if self.method == "PATCH":
            return not _is_stepwise(header(self.headers, "content-type"))
        return self.base or self.may_repeat or self.method in IDEMPOTENT_METHODS

    @property
    def may_repeat(self) -> bool:
        """Whether it may be sent a second time, whatever its method: the service knows it by its key, or a rule says
        that it sets or deletes something."""
        return bool(self.key) or self.kind in (PUT, DELETE)


def command_of(request: Request, file_hash: str = "") -> Command:
    line = msgspec.json.encode(request)  # fields in the order above, so one spelling
    if len(line) > MAX_LINE_BYTES:
        raise ClientError(
            f"the request has {len(line)} bytes without its body; to be replicated, {MAX_LINE_BYTES} at most",
            status=431,
        )
    return Command(line.decode(), (FileRef(BODY, file_hash, request.file_bytes or 0),) if file_hash else ())


def request_of(command: Command) -> Request:
    try:
        request = msgspec.json.decode(command.line, type=Request)
        _ = request.inline
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PayloadError(f"not an HTTP request, so it cannot be sent to a service: {error}") from None
    if not request.base:
        check_sendable(request)
    return request


def check_sendable(request: Request) -> None:
    """Raises PayloadError for what cannot be sent to a service, or must not be."""
    check_request(request)
    if not _is_sendable(request):
        raise PayloadError("not an HTTP request: its method, path or headers cannot be sent")


def check_request(request: Request) -> None:
    """Raises PayloadError for what is no change of the service's resources, whichever site signed it."""
    if request.method in _NO_OPERATIONS:
        raise PayloadError(f"{request.method} is not an operation: only changes of one resource are replicated")
    if request.state and request.method != "PUT":
        raise PayloadError(f"{request.method} does not set a whole state")
    if any(map(leaves_service, (request.path, request.item, request.to, request.made_at))):
        raise PayloadError("its path leaves the service: it has '..', or control characters, or is no path")
    if named := next((name for name, _ in request.headers if plain_name(name) in _OVERRIDES), None):
        raise PayloadError(f"'{printable(shortened(named))}' makes another request of it than its method and path say")
    if len(request.client) > MAX_CLIENT_CHARACTERS or _CONTROL.search(request.client):
        raise PayloadError("what it says about its client is too long, or has control characters")


def leaves_service(path: str) -> bool:
    """Whether a service could take a path for one that is not below its root, or for two lines. Programs differ in how
    often they decode a path, so each way counts."""
    for _ in range(3):
        if _CONTROL_IN_PATH.search(path) or any(part in (".", "..") for part in re.split(r"[/\\]", path)):
            return True
        path = unquote(path)
    return False


def _is_sendable(request: Request) -> bool:
    """It may come from another site: nothing in it may become a second request."""
    texts = (*(value for _, value in request.headers), request.key, request.scope)
    return bool(
        _TOKEN.fullmatch(request.method)
        and _PATH.fullmatch(request.path)
        and (not request.made_at or _PATH.fullmatch(request.made_at))
        and _QUERY.fullmatch(request.query)
        and _HOST.fullmatch(request.host)
        and all(_TOKEN.fullmatch(name) for name, _ in request.headers)
        and not any(_is_dropped(name, is_rewritten=request.is_rewritten) for name, _ in request.headers)
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
    headers = tuple(headers)
    is_rewritten = is_rewritten_type(header(headers, "content-type"))
    return tuple(
        pair
        for pair in headers
        if not _is_dropped(pair[0], is_rewritten=is_rewritten) and not config.is_credential(pair[0])
    )


def credentials_of(headers: Iterable[Header], config: ReplicationConfig) -> tuple[Header, ...]:
    return tuple(pair for pair in headers if config.is_credential(pair[0]))


def header(headers: Iterable[Header], name: str) -> str:
    return next((value for given, value in headers if given.lower() == name), "")


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    found = media_type(content_type)
    return found.endswith(("/json", "+json", "/x-ndjson", "/json-seq"))


def is_rewritten_type(content_type: str) -> bool:
    """Whether ids are translated in bodies of this type."""
    return is_json(content_type) or media_type(content_type) == _FORM


def operation_type(method: str, sub_path: str, content_type: str) -> str:
    """What the matrix calls a request to an item, or to something below it (`put tags/x`)."""
    if sub_path:
        return part_name(method.lower(), sub_path)
    if method == "PATCH":
        return STEPS if _is_stepwise(content_type) else PATCH
    known = {"PUT": PUT, "DELETE": DELETE, **dict.fromkeys(COLLECTING, CREATE)}
    return known.get(method, method.lower())


def part_name(word: str, part: str) -> str:
    """The type of an operation on a part of a resource. Two parts must never have one name."""
    name = f"{word} {part}"
    if len(name) <= _MAX_TYPE_CHARACTERS:
        return name
    mark = hashlib.sha256(part.encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return f"{name[: _MAX_TYPE_CHARACTERS - len(mark) - 1]}…{mark}"


BASE_REQUEST = Request(base=True)


def _is_dropped(name: str, *, is_rewritten: bool) -> bool:
    plain = plain_name(name)
    if plain in _DIGESTS:
        return is_rewritten
    return plain in _DROPPED or plain.startswith(("cheops-", "proxy-"))


def plain_name(name: str) -> str:
    """The name of a header in one spelling: some programs read `_` as `-`."""
    return name.lower().replace("_", "-")


def _is_stepwise(content_type: str) -> bool:
    """Whether a PATCH of this kind is a list of steps, or anything else that must not be applied twice. One
    that says what members become (RFC 7396, and plain JSON) may."""
    found = media_type(content_type)
    return "json-patch" in found or not (is_json(found) or found == _FORM)
