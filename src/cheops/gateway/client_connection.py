"""One client's connection: its requests, one after the other, their bodies, and the responses. HTTP/1.1 by h11.

Every request gets a new h11 connection, and an idle client has none; bytes that arrive beyond a request are handed
to the next. So every head passes the checks of `request_head` before h11 sees it.
"""

import asyncio
from collections.abc import AsyncIterator

import h11

from cheops.config.gateway import GatewayConfig
from cheops.gateway.connection import Wire
from cheops.gateway.headers import Headers, RequestHead
from cheops.gateway.interfaces import GatewayRequestError, GoneError
from cheops.gateway.request_head import HeadReader, check_headers, check_raw_head, check_trailers, parse_headers

_LEFT_OVER_BYTES = 256 * 1024  # of an unread body, which is read for the sake of the connection
_LINGER_S = 2.0


class ClientConnection:
    """A connection from a client, and the one request that is under way on it."""

    def __init__(self, wire: Wire, settings: GatewayConfig) -> None:
        self.wire = wire
        self._settings = settings
        self._heads = HeadReader(wire, settings)
        self._http: h11.Connection | None = None
        self._out: list[bytes] = []
        self.method = ""
        self.is_answered = False  # the final answer has begun
        self.is_tunnel = False  # another protocol is spoken, of which nobody here knows where it ends
        self.is_last = False  # no request is to come after this one: the client is told so

    @property
    def peer(self) -> str:
        """The address of the client."""
        return self.wire.peer

    @property
    def is_idle(self) -> bool:
        """Whether nothing of a request is under way, nor has come in yet."""
        return self._http is None and not self._heads.has_begun and self.wire.is_quiet

    # -- requests ----------------------------------------------------------------------------------------

    async def next_head(self) -> RequestHead | None:
        """The next request; None where the client has no more. Raises GatewayRequestError."""
        self._http = None
        self.is_answered = False
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
        """Whether it understands informational answers: HTTP/1.0 has none."""
        return self.http.their_http_version == b"1.1"

    @property
    def waits_for_100(self) -> bool:
        return self.http.they_are_waiting_for_100_continue

    # -- the body of a request ---------------------------------------------------------------------------

    def body_now(self) -> h11.Data | h11.EndOfMessage | None:
        """The next piece of the body, or its end, if that is here already."""
        while True:
            event = self._parsed()
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
                raise GoneError("the client went away before its request was complete")
            self.http.receive_data(more)

    def _parsed(self) -> h11.Data | h11.EndOfMessage | None:
        try:
            event = self.http.next_event()
        except h11.RemoteProtocolError as error:
            raise GatewayRequestError(f"the body of the request is broken: {error}") from None
        if isinstance(event, h11.EndOfMessage):
            check_trailers(event.headers.raw_items())
            return event
        return event if isinstance(event, h11.Data) else None

    # -- answers -----------------------------------------------------------------------------------------

    def inform(self, status: int, reason: bytes, headers: Headers) -> None:
        """An informational answer, such as 103; the final one follows."""
        event = h11.InformationalResponse(status_code=status, headers=_encoded(headers), reason=reason)
        self._send(event)

    def begin(self, status: int, reason: bytes, headers: Headers) -> None:
        """The head of the final answer."""
        if self.is_last:
            headers = (*headers, ("Connection", "close"))
        event = h11.Response(status_code=status, headers=_encoded(headers), reason=reason)
        self._send(event)
        self.is_answered = True

    def data(self, piece: bytes) -> None:
        self._out.extend(self.http.send_with_data_passthrough(h11.Data(data=piece)) or ())

    def end(self, trailers: Headers = ()) -> None:
        """The end of the answer. HTTP/1.0 knows no trailers."""
        self._send(h11.EndOfMessage(headers=_encoded(trailers if self.is_modern else ())))

    def data_beyond(self, data: bytes) -> None:
        """Bytes of another protocol, after 101."""
        if data:
            self._out.append(data)

    def beyond(self) -> bytes:
        """The same from the client: what it sent before it knew."""
        return bytes(self.http.trailing_data[0])

    def _send(self, event: h11.Event) -> None:
        self._out.append(self.http.send(event) or b"")

    async def flush(self) -> None:
        """Have it written, at the pace of the client."""
        data = self._out[0] if len(self._out) == 1 else b"".join(self._out)
        self._out.clear()
        if data:
            self.wire.write(data)
        try:
            await self.wire.drain(self._settings.stall_timeout_s)
        except (OSError, TimeoutError) as error:
            raise GoneError(f"the client does not take its answer: {error or 'no progress'}") from None

    async def continue_if_awaited(self) -> None:
        if self.waits_for_100 and not self.is_answered:
            self.inform(100, b"Continue", ())
            await self.flush()

    # -- the end -----------------------------------------------------------------------------------------

    async def can_go_on(self) -> bool:
        """Whether the next request may come on this connection, what is left of this one read over."""
        http = self.http
        if http.our_state is not h11.DONE or self.wire.is_lost:
            return False
        left = _LEFT_OVER_BYTES
        try:
            async with asyncio.timeout(_LINGER_S):
                while http.their_state is h11.SEND_BODY and not self.waits_for_100 and left > 0:
                    event = await self.body()
                    left -= len(event.data) if isinstance(event, h11.Data) else 0
        except (GatewayRequestError, GoneError, TimeoutError):
            return False
        self._heads.beyond = bytes(http.trailing_data[0])
        return http.their_state is h11.DONE

    async def close_gently(self) -> None:
        """Close, but not before the client could read what it was sent: to close while data comes in would
        reset the connection, and the answer with it."""
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
    """What a client sends."""

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
        """Whether all that was read of it is still here."""
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
            raise AssertionError("what was read is gone: ask can_restart before")
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
