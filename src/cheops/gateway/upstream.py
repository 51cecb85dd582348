"""The upstream HTTP client: one request to a service or another gateway, and its response. HTTP/1.1 by h11.

`dispatcher` sends requests with `UpstreamClient`, on connections from the pool of `connection`; `responses` reads the
response from its `Exchange` while it relays it to the client. Replication uses the same client for its own requests.

The body is sent while the response is awaited, so a service may respond before it has read everything. The response
is read at the pace of its reader. A stale pooled connection is replaced once, if the request may be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol, TypeAlias

import h11
from msgspec import Struct

from cheops.config.gateway import GatewayConfig
from cheops.gateway.connection import ConnectionPool, UpstreamAddress, Wire
from cheops.gateway.headers import ForwardingInfo, Headers, RequestHead, end_to_end, is_idempotent
from cheops.gateway.interfaces import Body, GatewayRequestError, Response, StreamedBody, UpstreamError
from cheops.peers.client import Credentials


class RequestBody(Protocol):
    """The body of a request to an upstream."""

    size: int | None  # None: not known before its end
    trailers: Headers

    @property
    def can_restart(self) -> bool: ...

    def at_once(self) -> bytes | None:
        """The whole body, if it is here already."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """The body from its beginning; a second time only if `can_restart`."""
        ...


class PreparedBody:
    """A body that does not come from a client's connection: replication's own."""

    trailers: Headers = ()

    def __init__(self, body: Body | None, size: int | None) -> None:
        self._body = body or b""
        self.size = len(self._body) if isinstance(self._body, bytes) else size

    @property
    def can_restart(self) -> bool:
        return isinstance(self._body, bytes)

    def at_once(self) -> bytes | None:
        return self._body if isinstance(self._body, bytes) else None

    async def pieces(self) -> AsyncIterator[bytes]:
        if isinstance(self._body, bytes):
            yield self._body
            return
        async for piece in self._body:
            yield piece


_MAX_HEAD_BYTES = 128 * 1024
_LOOK_S = 1.0  # how often to check whether the site is still up

OnInformational: TypeAlias = Callable[[int, bytes, Headers], Awaitable[None]]
BodyEvent: TypeAlias = h11.Data | h11.EndOfMessage


class ResponseHead(Struct, frozen=True):
    """The head of a response. After a 101 the connection belongs to another protocol."""

    status: int
    reason: bytes
    headers: Headers


class ResponseTimeout(Struct, frozen=True):
    """How long to wait for the head of a response, and how to see earlier that none will come."""

    head_s: float
    is_site_down: Callable[[], bool] = lambda: False


class Exchange:
    """One request and its response on a connection: `begin`, then read with `event_now` and `event`, then `finish`."""

    def __init__(
        self, wire: Wire, head: RequestHead, upload: RequestBody, settings: GatewayConfig, timeout: ResponseTimeout
    ) -> None:
        self.wire = wire
        self.has_response = False  # a byte of it, at least
        self.upload = upload
        self._head = head
        self._settings = settings
        self._timeout = timeout
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()

    # -- sending -----------------------------------------------------------------------------------------

    async def begin(self, on_informational: OnInformational) -> ResponseHead:
        """Send the request, and wait for the head of its response. Raises UpstreamError, or the error of the client
        whose body is passed on (GatewayRequestError, ClientGoneError)."""
        self._send_head()
        while True:
            event = await self._awaited_head()
            match event:
                case h11.InformationalResponse(status_code=101) | h11.Response():
                    return self._response_head(event)
                case h11.InformationalResponse():
                    await on_informational(event.status_code, bytes(event.reason), _decoded(event.headers))
                case _:
                    raise self._error("closed the connection without a response")

    def _send_head(self) -> None:
        head = self._head
        try:
            request = h11.Request(
                method=head.method.encode("latin-1"),
                target=head.target.encode("latin-1"),
                headers=[(n.encode("latin-1"), v.encode("latin-1")) for n, v in head.headers],
            )
            out = [self._http.send(request)]
            whole = self.upload.at_once()
            if whole is not None:
                out += self._last(whole)
        except h11.LocalProtocolError as error:
            raise GatewayRequestError(f"the request cannot be passed on: {error}") from None
        self.wire.write(b"".join(out))
        if whole is None:
            self._sending = asyncio.get_running_loop().create_task(self._send_body())
        else:
            self._sent.set()

    def _last(self, piece: bytes) -> list[bytes]:
        out = [self._http.send(h11.Data(data=piece))] if piece else []
        trailers = [(n.encode("latin-1"), v.encode("latin-1")) for n, v in self.upload.trailers]
        out.append(self._http.send(h11.EndOfMessage(headers=trailers)))
        return out

    async def _send_body(self) -> None:
        try:
            async for piece in self.upload.pieces():
                for data in self._http.send_with_data_passthrough(h11.Data(data=piece)) or ():
                    self.wire.write(data)
                await self.wire.drain(self._settings.stall_timeout_s)
            for data in self._last(b""):
                self.wire.write(data)
            self._sent.set()
        except (OSError, TimeoutError, h11.LocalProtocolError):
            self._sent.set()  # the service reads no more, but may have responded already: that response counts
        except BaseException:
            self.wire.abort()  # an incomplete request must not look like a complete one
            raise

    def _failed_sender(self) -> BaseException | None:
        """The error with which sending the body ended: the client's, not the service's."""
        task = self._sending
        if task is None or not task.done() or task.cancelled():
            return None
        return task.exception()

    # -- receiving ---------------------------------------------------------------------------------------

    def event_now(self) -> BodyEvent | None:
        """The next piece of the response's body, or its end, if that is here already."""
        while True:
            event = self._next_event()
            if event is not h11.NEED_DATA:
                return self._body_event(event)
            more = self.wire.read_now()
            if not more:
                return None
            self._http.receive_data(more)

    async def event(self) -> BodyEvent:
        """The next piece of the response's body, or its end."""
        while True:
            event = self._next_event()
            if event is not h11.NEED_DATA:
                return self._body_event(event)
            self._http.receive_data(await self._read(self._settings.silence_timeout_s))

    def _body_event(self, event: object) -> BodyEvent:
        if isinstance(event, h11.Data | h11.EndOfMessage):
            return event
        raise self._error("broke off its response")

    async def _awaited_head(self) -> object:
        while True:
            event = self._next_event()
            if event is not h11.NEED_DATA:
                return event
            more = await self._read(self._timeout.head_s)
            self.has_response = self.has_response or bool(more)
            self._http.receive_data(more)

    async def _read(self, limit_s: float) -> bytes:
        """Wait in short steps: time counts only once the whole request is sent, and a site may go down meanwhile."""
        waited_s = 0.0
        while True:
            step_s = min(_LOOK_S, limit_s)
            try:
                return await self.wire.read(step_s)
            except TimeoutError:
                waited_s = waited_s + step_s if self._sent.is_set() else 0.0
            if waited_s >= limit_s:
                raise self._error(f"sent nothing for {limit_s:g} s", 504) from None
            if waited_s and self._timeout.is_site_down():
                raise self._error("went down before it responded", 504)

    def _next_event(self) -> object:
        if failure := self._failed_sender():
            raise failure
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            # If the client broke off its body, the sender closed this connection: report the client's error.
            if failure := self._failed_sender():
                raise failure from None
            if self.wire.tls_failure:
                raise self._error(f"closed the connection: {self.wire.tls_failure}") from None
            if self.wire.has_ended:
                raise self._error("broke off its response" if self.has_response else "closed the connection") from None
            raise self._error(f"sent a response that is not HTTP: {error}".replace(",", ";")) from None

    def _error(self, why: str, status: int = 502) -> UpstreamError:
        # Whatever happens after the first byte was sent may have had an effect.
        text = f"the service {why}; the request may have been executed"
        return UpstreamError(text, why, may_have_had_effect=True, status=status)

    def _response_head(self, event: h11.Response | h11.InformationalResponse) -> ResponseHead:
        headers = _decoded(event.headers)
        names = [name.lower() for name, _ in headers]
        # Ambiguous framing, as in a request: the bytes after it could be taken for a second response.
        if "transfer-encoding" in names and "content-length" in names:
            raise self._error("sent a response with both a length and chunks")
        return ResponseHead(event.status_code, bytes(event.reason), headers)

    @property
    def trailing_data(self) -> bytes:
        """The bytes after a 101: the beginning of the other protocol."""
        return bytes(self._http.trailing_data[0])

    # -- the end -----------------------------------------------------------------------------------------

    async def finish(self) -> bool:
        """Whether the connection can serve another request. If not, it is closed."""
        if self._sending:
            self._sending.cancel()
            await asyncio.wait({self._sending})
            self._failed_sender()  # retrieved, so that asyncio does not log it as lost
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if done and not self._http.trailing_data[0] and self.wire.is_quiet:
            return True
        self.wire.abort()
        return False


def _decoded(headers: h11._headers.Headers) -> Headers:
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers.raw_items())


class UpstreamResponse:
    """A response whose head has arrived. `finish` it in any case, whether its body was read to the end or not."""

    def __init__(self, exchange: Exchange, head: ResponseHead, address: UpstreamAddress, pool: ConnectionPool) -> None:
        self.exchange = exchange
        self.head = head
        self._address = address
        self._pool = pool

    async def finish(self) -> None:
        if await self.exchange.finish():
            self._pool.release(self._address, self.exchange.wire)


async def streamed_response(response: UpstreamResponse, on_end: Callable[[], None] | None = None) -> Response:
    """A response whose body is read from the upstream at the pace of its reader. `on_end` is called when the last
    byte is read, or when the reader closes the body before."""
    head = response.head

    async def finish() -> None:
        try:
            await response.finish()
        finally:
            if on_end:
                on_end()

    try:
        if head.status == 101:
            raise UpstreamError(  # noqa: TRY301 - finished like any other response that cannot be read
                "the service changed the protocol without a request for it", "a bad 101", may_have_had_effect=True
            )
        event = response.exchange.event_now()
    except BaseException:
        await finish()
        raise
    headers = end_to_end(head.headers)
    if isinstance(event, h11.EndOfMessage):
        await finish()
        return Response(head.status, headers, b"")
    return Response(head.status, headers, StreamedBody(_pieces_of(response.exchange, event), finish))


async def _pieces_of(exchange: Exchange, event: BodyEvent | None) -> AsyncIterator[bytes]:
    event = event or await exchange.event()
    while isinstance(event, h11.Data):
        yield bytes(event.data)
        event = await exchange.event()


async def ignore_informational(_status: int, _reason: bytes, _headers: Headers) -> None:
    """For requests without a client to which informational responses could be relayed."""


class Abortable(Protocol):
    def abort(self) -> None: ...


class DisconnectWatch:
    """Ends the upstream connection that serves a client when that client disconnects."""

    def __init__(self) -> None:
        self._wire: Abortable | None = None
        self.is_gone = False

    def attach(self, wire: Abortable | None) -> None:
        self._wire = wire
        if wire is not None and self.is_gone:
            wire.abort()

    def client_left(self) -> None:
        self.is_gone = True
        if self._wire is not None:
            self._wire.abort()


class UpstreamRequest(Struct, frozen=True):
    """A request to an upstream. `Dispatcher` fills in the client's head; `Forwarder` replaces it by the head that goes
    over the wire."""

    head: RequestHead
    upload: RequestBody
    on_informational: OnInformational
    disconnect_watch: DisconnectWatch
    forwarding: ForwardingInfo | None = None  # None: the agent's own request, not one that it passes on


class UpstreamClient:
    """Sends requests to services and other gateways; for the gateway and for replication."""

    def __init__(self, settings: GatewayConfig, credentials: Credentials | None = None) -> None:
        self._settings = settings
        self.pool = ConnectionPool(settings, credentials)

    async def send(
        self, address: UpstreamAddress, request: UpstreamRequest, timeout: ResponseTimeout
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its response. Raises UpstreamError."""
        is_repeatable = is_idempotent(request.head)
        # A server may close an idle connection at the moment it is used again. Then it is unknown whether the request
        # arrived, so one that must not run twice gets a connection that was in use just before, or a new one.
        wire = self.pool.take_idle(address, recent_only=not is_repeatable)
        if wire is not None:
            exchange = Exchange(wire, request.head, request.upload, self._settings, timeout)
            try:
                return await self._begin(exchange, address, request)
            except UpstreamError:
                is_stale = wire.has_ended and not exchange.has_response and not request.disconnect_watch.is_gone
                if not (is_stale and is_repeatable and request.upload.can_restart):
                    raise
        wire = await self.pool.connect(address)
        exchange = Exchange(wire, request.head, request.upload, self._settings, timeout)
        return await self._begin(exchange, address, request)

    async def _begin(self, exchange: Exchange, address: UpstreamAddress, request: UpstreamRequest) -> UpstreamResponse:
        request.disconnect_watch.attach(exchange.wire)
        try:
            head = await exchange.begin(request.on_informational)
        except BaseException:
            await exchange.finish()
            request.disconnect_watch.attach(None)
            raise
        return UpstreamResponse(exchange, head, address, self.pool)
