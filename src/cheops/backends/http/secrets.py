"""Members of requests and responses that are never written down: `secret` of a service.

A replicated request is kept in the log of every site, so one with a secret in it is refused while it is read, before
anything of it is stored. In the response of a service a secret is replaced by a fixed text in what is kept and sent to
other sites; the client itself gets the response as it is (see `credentials.Tickets`).

JSON, forms, multipart forms and XML are looked into. JSON is recognized by its first character, too: clients send it
with other content types. Any other content (an image, an archive, a file) is opaque.
"""

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, Protocol
from urllib.parse import unquote_plus

import msgspec

from cheops.backends.http.ids import MetaIdTranslator
from cheops.backends.http.payload import is_json, media_type
from cheops.config.request_rules import SecretMembers
from cheops.errors import CheopsError, ClientError
from cheops.gateway.interfaces import close_body
from cheops.text import printable, shortened

MARK = "(secret: not kept)"
_BLANK = b" \t\r\n\xef\xbb\xbf"  # and the mark that some programs write before UTF-8
_HOLD = 512  # bytes of a piece that are looked at again with the next one: a name may be in both
_MAX_NAME = 200
_CUSTOMER_KEY = "-encryption-customer-key"  # of S3: other sites could not use the object without it
_FORM = "application/x-www-form-urlencoded"
# Each ends with what ends a name: a piece may end within one.
_FORM_NAME = re.compile(rb"(?:^|[&;?])([^=&;?\x00-\x20<>{}\"]{1,200})=")
_PART_NAME = re.compile(
    rb"""content-disposition:[^\r\n]{0,200}?[;\s]name\*?\s*=\s*["']?([^"';\r\n]{1,200})["';\r\n]""", re.IGNORECASE
)
_XML_NAME = re.compile(rb"<(?:[\w.-]{1,100}:)?([A-Za-z_][\w.-]{0,199})[\s/>]")
_LAST_PART = re.compile(r"[^\[\].]+(?=\]?$)")  # of a name in a form: `server[adminPass]`, `server.adminPass`
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Scanner(Protocol):
    def feed(self, piece: bytes) -> object: ...

    def finish(self) -> object: ...


def secret_error(where: str, name: str) -> ClientError:
    shown = printable(shortened(name))
    return ClientError(
        f"{where} has a secret, '{shown}', which is never written down, and a replicated request is kept in the log "
        "of each site. Send it to one site: a scope without '&'. Or see 'secret' of the service",
        status=422,
    )


def check_query(query: str, secrets: SecretMembers) -> None:
    """Raises ClientError for a query with a secret."""
    for part in re.split("[&;]", query):
        _check_form_name(unquote_plus(part.partition("=")[0]), secrets, "the query of the request")


def check_headers(headers: Iterable[tuple[str, str]], secrets: SecretMembers) -> None:
    """Raises ClientError for a header with a secret. Those with credentials are not among these headers."""
    for name, _ in headers:
        if secrets.includes((name.lower().removeprefix("x-"),)) or name.lower().endswith(_CUSTOMER_KEY):
            raise secret_error("a header of the request", name)


def _scanner(content_type: str, start: bytes, secrets: SecretMembers) -> "_Scanner | None":
    """What looks into a body that starts like this; None for content that is opaque."""
    kind = media_type(content_type)
    looks_like_json = start.lstrip(_BLANK)[:1] in (b"{", b"[")
    if is_json(kind) or (looks_like_json and kind in ("", "text/plain", _FORM)):
        return _JsonNames(secrets)
    if kind in ("", _FORM):
        return _Names(secrets, _FORM_NAME)
    if kind.startswith("multipart/"):
        return _Names(secrets, _PART_NAME)
    return _Names(secrets, _XML_NAME) if kind.endswith(("/xml", "+xml")) else None


async def without_secrets(
    body: AsyncIterator[bytes], content_type: str, secrets: SecretMembers
) -> AsyncIterator[bytes]:
    """The pieces of a body, each after it was looked into. Raises ClientError before the piece with a secret."""
    scanner: _Scanner | None = None
    has_begun = False
    try:
        async for piece in body:
            if not has_begun and piece.lstrip(_BLANK):
                has_begun, scanner = True, _scanner(content_type, piece, secrets)
            if scanner:
                scanner.feed(piece)
            yield piece
        if scanner:
            scanner.finish()
    finally:
        await close_body(body)


class _NoIds:
    """An `ids.IdLookup` that finds nothing."""

    def in_text(self, _text: str, _place: tuple[str | None, ...]) -> None:
        return None

    def of_number(self, _number: int, _place: tuple[str | None, ...]) -> None:
        return None

    def of_name(self, _name: str, _place: tuple[str | None, ...]) -> None:
        return None


class _JsonNames(MetaIdTranslator):
    """Looks at the name of every member of a JSON text, in pieces."""

    def __init__(self, secrets: SecretMembers) -> None:
        super().__init__(_NoIds())
        self._secrets = secrets
        self.found: tuple[str, ...] = ()

    def feed(self, piece: bytes) -> bytes:
        done = super().feed(piece)
        self._check()
        return done

    def finish(self) -> bytes:
        done = super().finish()
        self._check()
        return done

    def _check(self) -> None:
        if self.found:
            raise secret_error("the body of the request", ".".join(("$", *self.found)))

    def _token(self, found: re.Match[bytes]) -> bytes:
        done = super()._token(found)
        if found["colon"] is not None and not self.found:
            place = tuple(name for name in self._here() if name is not None)
            if self._secrets.includes(place):
                self.found = place
        return done


class _Names:
    """Looks for names by a pattern: of forms, of parts of a multipart form, and of XML elements."""

    def __init__(self, secrets: SecretMembers, pattern: re.Pattern[bytes]) -> None:
        self._secrets = secrets
        self._pattern = pattern
        self._held = b""

    def feed(self, piece: bytes) -> None:
        data = self._held + piece
        for found in self._pattern.finditer(data):
            _check_form_name(unquote_plus(found[1].decode("latin-1")), self._secrets, "the body of the request")
        # A separator is kept before what is looked at again: not every piece begins with a name.
        self._held = b"\x00" + data[-_HOLD:] if len(data) > _HOLD else data

    def finish(self) -> None:
        """All was looked at."""


def _check_form_name(name: str, secrets: SecretMembers, where: str) -> None:
    name = name.strip()[:_MAX_NAME]
    last = _LAST_PART.search(name)
    if secrets.includes((name,)) or (last and secrets.includes((last[0],))):
        raise secret_error(where, name)


def masked(body: bytes, content_type: str, secrets: SecretMembers) -> bytes | None:
    """A response's body with the fixed text in place of secrets; the same bytes if it has none. None if it has some,
    but not in JSON that can be read: then nothing of it may be kept."""
    scanner = _scanner(content_type, body, secrets)
    if scanner is None:
        return body
    try:
        scanner.feed(body)
        scanner.finish()
    except ClientError:
        pass
    except CheopsError:  # nested too deeply
        return None
    else:
        return body
    try:
        content = msgspec.json.decode(body)
        for holder, name in list(_members(content, secrets, ())):
            holder[name] = MARK
        return msgspec.json.encode(content)
    except _UNREADABLE:
        return None


def _members(found: Any, secrets: SecretMembers, place: tuple[str, ...]) -> Iterator[tuple[dict[str, Any], str]]:
    """The members that are secret, each with the object that holds it."""
    if isinstance(found, list):
        for item in found:
            yield from _members(item, secrets, place)
    elif isinstance(found, dict):
        for name, value in found.items():
            if secrets.includes((*place, name)):
                yield found, name
            else:
                yield from _members(value, secrets, (*place, name))
