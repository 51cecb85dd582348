"""One client's connection: its requests, one after the other, their bodies, and the responses. HTTP/1.1 by h11.

`server` creates it for each connection; `handler` gets each head from `next_head`, and `responses` writes to it.

If two programs disagree where a request ends, it can carry a second request past the checks of the first ("request
smuggling"). So the raw bytes of a head are checked before h11, which is more lenient, parses them: what is not plain
is refused, not repaired. Every request gets a new h11 connection, so no head escapes these checks; bytes that arrive
beyond a request are handed to the next.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterable

import h11

from cheops.config.gateway import GatewayConfig
from cheops.gateway.connection import Wire
from cheops.gateway.headers import Headers, RequestHead
from cheops.gateway.interfaces import ClientGoneError, GatewayRequestError
from cheops.text import printable, shortened

# Control characters but the tab; a carriage return or a line feed outside of a line's end.
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_BARE = re.compile(rb"\r(?!\n)|(?<!\r)\n")
_FOLD = re.compile(rb"\r\n[ \t]")
_BLANK_BEFORE_COLON = re.compile(rb"\r\n[^:\r]*[ \t]+:")
_REQUEST_LINE = re.compile(rb"[^ \t\r\n]+ [^ \t\r\n]+ HTTP/(\d\.\d)\r\n")
_LENGTH = re.compile(r"[0-9]{1,18}")  # 18 digits: fits in 64 bits, so no program reads it as another number
_TCHAR = re.compile(r"[-!#$%&'*+.^_`|~0-9a-zA-Z]+")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9_.~!$&'()*+;=%-]*)(:[0-9]{0,5})?")
_VERSIONS = (b"1.0", b"1.1")
_LONE_LINE_FEED = re.compile(rb"(?<!\r)\n")
_STARTS = re.compile(rb"[-!#$%&'*+.^_`|~0-9A-Za-z]")
_FRAMING = ("content-length", "transfer-encoding", "host")
_HEAD_END = b"\r\n\r\n"
_LEFT_OVER_BYTES = 256 * 1024  # so much of an unread body is read, to keep the connection usable
_LINGER_S = 2.0


def refuse_early(data: bytes, most: int) -> None:
    """Refuse what cannot become a valid head, without waiting for its end."""
    if len(data) >= most:
        raise GatewayRequestError(f"the head of the request is larger than {most:,} bytes", 431)
    if _LONE_LINE_FEED.search(data):
        raise GatewayRequestError("a line of the request does not end with CR LF")
    if data and not _STARTS.match(data):
        raise GatewayRequestError("this is not HTTP/1.1 (this address does not speak TLS)")


def parse_headers(raw: bytes) -> Headers:
    """Headers as they were sent, with their spelling; h11 refuses invalid ones after this."""
    lines = raw.decode("latin-1").split("\r\n")[1:-2]
    pairs = (line.partition(":") for line in lines)
    return tuple((name, value.strip(" \t")) for name, _, value in pairs)


def check_raw_head(raw: bytes) -> str:
    """Refuse what h11 would let pass; returns the version. `raw` ends with the empty line."""
    if _BARE.search(raw):
        raise GatewayRequestError("a line of the request does not end with CR LF")
    if _CONTROL.search(raw):
        raise GatewayRequestError("the head of the request holds a control character")
    line = _REQUEST_LINE.match(raw)
    if not line:
        raise GatewayRequestError("the first line is not 'METHOD TARGET HTTP/1.1'")
    if line[1] not in _VERSIONS:
        version = line[1].decode()
        raise GatewayRequestError(f"HTTP/{version} is not supported; use HTTP/1.1", 505)
    if _FOLD.search(raw):
        raise GatewayRequestError("a header is continued on a second line, which is not allowed any more")
    if _BLANK_BEFORE_COLON.search(raw):
        raise GatewayRequestError("there is a blank between the name of a header and its colon")
    return line[1].decode()


def check_headers(headers: Iterable[tuple[str, str]], version: str) -> None:
    """Refuse an ambiguous length, and headers that would hide one from the next program."""
    lengths, codings, hosts = [], [], []
    for name, value in headers:
        lower = name.lower()
        # CGI and WSGI give both spellings the same variable (HTTP_CONTENT_LENGTH).
        if "_" in lower and lower.replace("_", "-") in _FRAMING:
            raise GatewayRequestError(f"some programs read the header {name} as {name.replace('_', '-')}")
        if lower == "content-length":
            lengths.append(value)
        elif lower == "transfer-encoding":
            codings.append(value)
        elif lower == "host":
            hosts.append(value)
        elif lower == "connection":
            _check_connection(value)
    _check_framing(lengths, codings, version)
    _check_host(hosts, version)


def _check_framing(lengths: list[str], codings: list[str], version: str) -> None:
    if len(lengths) > 1:
        raise GatewayRequestError("Content-Length is given more than once")
    if lengths and not _LENGTH.fullmatch(lengths[0]):
        raise GatewayRequestError(f"Content-Length is not a number: '{_shown(lengths[0])}'")
    if lengths and codings:
        raise GatewayRequestError("both Content-Length and Transfer-Encoding are given; only one can be right")
    if codings and version == "1.0":
        raise GatewayRequestError("HTTP/1.0 has no Transfer-Encoding")
    if codings and (len(codings) > 1 or codings[0].lower() != "chunked"):
        raise GatewayRequestError(f"Transfer-Encoding can only be 'chunked', not '{_shown(', '.join(codings))}'")


def _check_host(hosts: list[str], version: str) -> None:
    if len(hosts) > 1:
        raise GatewayRequestError("Host is given more than once")
    if not hosts and version == "1.1":
        raise GatewayRequestError("the header Host is missing")
    if hosts and not _HOST.fullmatch(hosts[0]):
        raise GatewayRequestError(f"Host is not a host name: '{_shown(hosts[0])}'")


def _check_connection(value: str) -> None:
    """A header that Connection names is removed: that must not be one that frames the request."""
    for token in (part.strip().lower() for part in value.split(",")):
        if token in _FRAMING:
            raise GatewayRequestError(f"Connection names {token}, which cannot be left out")
        if token and not _TCHAR.fullmatch(token):
            raise GatewayRequestError(f"Connection holds '{_shown(token)}', which is not the name of a header")


def check_trailers(trailers: Iterable[tuple[bytes, bytes]]) -> None:
    """A trailer must not change how the body was read."""
    for name, value in trailers:
        if _CONTROL.search(value) or name.lower().decode() in (*_FRAMING, "connection", "scope"):
            raise GatewayRequestError(f"{_shown(name.decode())} cannot come after the body")


def _shown(text: str) -> str:
    return printable(shortened(text))


class HeadReader:
    """Reads one head after the other. `beyond` holds the bytes after the last one."""

    __slots__ = ("_settings", "_wire", "beyond", "has_begun")

    def __init__(self, wire: Wire, settings: GatewayConfig) -> None:
        self._wire = wire
        self._settings = settings
        self.beyond = b""
        self.has_begun = False  # a part of the next head has arrived

    async def next(self) -> bytes | None:
        """The next head; None if the client sends no more, or nothing for too long."""
        data, self.beyond = self.beyond, b""
        loop, most = asyncio.get_running_loop(), self._settings.head_size_bytes
        end_s = loop.time() + self._settings.head_timeout_s if data else None
        while True:
            # RFC 9112, section 2.2: ignore empty lines before a request; some clients end a body with one.
            data = data.lstrip(b"\r\n") if data[:1] in (b"\r", b"\n") else data
            self.has_begun = bool(data)
            place = data.find(_HEAD_END)
            if 0 <= place < most:
                self.beyond = data[place + 4 :]
                return data[: place + 4]
            refuse_early(data, most)
            wait_s = self._settings.keep_alive_s if end_s is None else max(end_s - loop.time(), 0.0)
            try:
                more = await self._wire.read(wait_s)
            except TimeoutError:
                if end_s is None:
                    return None
                raise GatewayRequestError("the head of the request did not come in time", 408) from None
            if not more:
                return None
            # From the first byte on, the whole head has one deadline: a client that sends a byte now and then
            # ("slowloris") must not keep its connection for ever.
            end_s = end_s or loop.time() + self._settings.head_timeout_s
            data += more


class ClientConnection:
    """A connection from a client, and the one request in progress on it."""

    def __init__(self, wire: Wire, settings: GatewayConfig) -> None:
        self.wire = wire
        self._settings = settings
        self._heads = HeadReader(wire, settings)
        self._http: h11.Connection | None = None
        self._out: list[bytes] = []
        self.method = ""
        self.has_response_head = False  # the head of the final response is sent
        self.is_tunnel = False  # it was switched to another protocol
        self.is_last = False  # send `Connection: close` with the next response

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self.wire.peer

    @property
    def is_idle(self) -> bool:
        """Whether no request is in progress, and no byte of the next one has arrived."""
        return self._http is None and not self._heads.has_begun and self.wire.is_quiet

    # -- requests ----------------------------------------------------------------------------------------

    async def next_head(self) -> RequestHead | None:
        """The head of the next request; None if the client sends no more. Raises GatewayRequestError."""
        self._http = None
        self.has_response_head = False
        raw = await self._heads.next()
        if raw is None:
            return None
        version = check_raw_head(raw)
        headers = parse_headers(raw)
        check_headers(headers, version)
        self._http = http = h11.Connection(h11.SERVER, max_incomplete_event_size=self._settings.head_size_bytes)
        http.receive_data(raw)
        try:
            request = http.next_event()
        except h11.RemoteProtocolError as error:
            raise GatewayRequestError(f"not a request: {error}") from None
        if not isinstance(request, h11.Request):
            raise GatewayRequestError("not a request")
        if self._heads.beyond:
            http.receive_data(self._heads.beyond)
            self._heads.beyond = b""
        self.method = request.method.decode("ascii")
        return RequestHead(self.method, request.target.decode("latin-1"), headers)

    @property
    def http(self) -> h11.Connection:
        if self._http is None:
            raise AssertionError("there is no request")
        return self._http

    @property
    def is_modern(self) -> bool:
        """Whether it understands informational responses: HTTP/1.0 has none."""
        return self.http.their_http_version == b"1.1"

    @property
    def waits_for_100(self) -> bool:
        return self.http.they_are_waiting_for_100_continue

    # -- the body of a request ---------------------------------------------------------------------------

    def body_now(self) -> h11.Data | h11.EndOfMessage | None:
        """The next piece of the body, or its end, if it has arrived already."""
        while True:
            event = self._next_event()
            if event is not None:
                return event
            more = self.wire.read_now()
            if not more:
                return None
            self.http.receive_data(more)

    async def body(self) -> h11.Data | h11.EndOfMessage:
        """The next piece of the body, or its end."""
        while True:
            event = self.body_now()
            if event is not None:
                return event
            try:
                more = await self.wire.read(self._settings.stall_timeout_s)
            except TimeoutError:
                raise GatewayRequestError("the body of the request did not go on in time", 408) from None
            if not more:
                raise ClientGoneError("the client disconnected before its request was complete")
            self.http.receive_data(more)

    def _next_event(self) -> h11.Data | h11.EndOfMessage | None:
        try:
            event = self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise GatewayRequestError(f"the body of the request is broken: {error}") from None
        if isinstance(event, h11.EndOfMessage):
            check_trailers(event.headers.raw_items())
            return event
        return event if isinstance(event, h11.Data) else None

    # -- responses ---------------------------------------------------------------------------------------

    def inform(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send an informational response, such as 103; the final one follows."""
        event = h11.InformationalResponse(status_code=status, headers=_encoded(headers), reason=reason)
        self._send(event)

    def begin(self, status: int, reason: bytes, headers: Headers) -> None:
        """Send the head of the final response."""
        # A client that still waits for 100 may send its body now, or never (botocore): what comes next could be either.
        self.is_last = self.is_last or self.waits_for_100
        if self.is_last:
            headers = (*headers, ("Connection", "close"))
        event = h11.Response(status_code=status, headers=_encoded(headers), reason=reason)
        self._send(event)
        self.has_response_head = True

    def data(self, piece: bytes) -> None:
        self._out.extend(self.http.send_with_data_passthrough(h11.Data(data=piece)) or ())

    def end(self, trailers: Headers = ()) -> None:
        """End the response. HTTP/1.0 has no trailers."""
        self._send(h11.EndOfMessage(headers=_encoded(trailers if self.is_modern else ())))

    def send_tunnel_data(self, data: bytes) -> None:
        """Send bytes of the other protocol, after 101."""
        if data:
            self._out.append(data)

    def early_tunnel_data(self) -> bytes:
        """Bytes of the other protocol that the client sent before it had the 101."""
        return bytes(self.http.trailing_data[0])

    def _send(self, event: h11.Event) -> None:
        self._out.append(self.http.send(event) or b"")

    async def flush(self) -> None:
        """Write what was prepared, at the pace of the client."""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        if data:
            self.wire.write(data)
        try:
            await self.wire.drain(self._settings.stall_timeout_s)
        except (OSError, TimeoutError) as error:
            raise ClientGoneError(f"the client does not read its response: {error or 'no progress'}") from None

    async def continue_if_awaited(self) -> None:
        if self.waits_for_100 and not self.has_response_head:
            self.inform(100, b"Continue", ())
            await self.flush()

    # -- the end -----------------------------------------------------------------------------------------

    async def can_continue(self) -> bool:
        """Whether the connection can take another request; reads the unread rest of this one, if it is short."""
        http = self.http
        if http.our_state is not h11.DONE or self.wire.is_lost:
            return False
        left = _LEFT_OVER_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while http.their_state is h11.SEND_BODY and left > 0:
                    event = await self.body()
                    left -= len(event.data) if isinstance(event, h11.Data) else 0
        except (GatewayRequestError, ClientGoneError, TimeoutError):
            return False
        self._heads.beyond = bytes(http.trailing_data[0])
        return http.their_state is h11.DONE

    async def close_gently(self) -> None:
        """Close after the client could read its response: closing while data arrives would reset the connection, and
        the client could lose the response."""
        if not self.wire.is_lost and not self.wire.transport.is_closing():
            self.wire.write_end()
            end_s = asyncio.get_running_loop().time() + _LINGER_S
            left = _LEFT_OVER_BYTES
            try:
                while left > 0 and (wait_s := end_s - asyncio.get_running_loop().time()) > 0:
                    more = await self.wire.read(wait_s)
                    if not more:
                        break
                    left -= len(more)
            except TimeoutError:
                pass
        self.wire.close()


def _encoded(headers: Headers) -> list[tuple[bytes, bytes]]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]


class ClientBody:
    """The body of a client's request. Its beginning is kept, so that it can be sent to a second target."""

    def __init__(self, client: ClientConnection, size: int | None, keep_bytes: int) -> None:
        self.size = size
        self.trailers: Headers = ()
        self._client = client
        self._keep_bytes = keep_bytes
        self._kept: list[bytes] | None = []
        self._kept_bytes = 0
        self._is_complete = False

    @property
    def can_restart(self) -> bool:
        """Whether the part that was read is still in memory."""
        return self._kept is not None

    def at_once(self) -> bytes | None:
        if self.size is None or self.size > self._keep_bytes:
            return None
        while not self._is_complete:
            event = self._client.body_now()
            if event is None:
                return None
            self._take(event)
        return b"".join(self._kept or ())

    async def pieces(self) -> AsyncIterator[bytes]:
        if self._kept is None:
            raise AssertionError("the beginning is not in memory any more: check can_restart first")
        for piece in tuple(self._kept):
            yield piece
        while not self._is_complete:
            if piece := self._take(await self._client.body()):
                yield piece

    def _take(self, event: h11.Data | h11.EndOfMessage) -> bytes:
        if isinstance(event, h11.EndOfMessage):
            self._is_complete = True
            pairs = event.headers.raw_items()
            self.trailers = tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in pairs)
            return b""
        piece = bytes(event.data)
        self._kept_bytes += len(piece)
        if self._kept is not None:
            self._kept.append(piece)
        if self._kept_bytes > self._keep_bytes:
            self._kept = None
        return piece
