"""The upstream HTTP client: one request to a service or another gateway, and its response. HTTP/1.1 by h11.

The body is sent while the response is awaited, so a service may respond before it has read everything. The response
is read at the pace of its reader. A stale pooled connection is replaced once, if the request may be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import h11

from cheops.config.gateway import GatewayConfig
from cheops.gateway.connection import ConnectionPool, UpstreamAddress, Wire
from cheops.gateway.headers import ForwardingInfo, Headers, RequestHead, end_to_end, is_idempotent
from cheops.gateway.interfaces import Body, GatewayRequestError, Response, UpstreamError
from cheops.peers.client import Credentials


class RequestBody(Protocol):
    """What a call sends after its head."""

    size: int | None  # None: only its end will tell
    trailers: Headers

    @property
    def can_restart(self) -> bool: ...

    def at_once(self) -> bytes | None:
        """The whole body, if it is here already."""
        ...

    def pieces(self) -> AsyncIterator[bytes]:
        """From its beginning."""
        ...


class PreparedBody:
    """A body that somebody in this program made."""

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


_MOST_HEAD_BYTES = 128 * 1024
_LOOK_S = 1.0  # how often to look whether waiting makes sense

OnInformational: TypeAlias = Callable[[int, bytes, Headers], Awaitable[None]]
BodyEvent: TypeAlias = h11.Data | h11.EndOfMessage


@dataclass(frozen=True, slots=True)
class ResponseHead:
    """The head of an answer. 101 means that the connection belongs to another protocol from here on."""

    status: int
    reason: bytes
    headers: Headers


@dataclass(frozen=True, slots=True)
class ResponseTimeout:
    """How long an answer may take, and how to see before that it will not come (its site is down)."""

    answer_s: float
    is_hopeless: Callable[[], bool] = lambda: False


class Exchange:
    """A request under way. `begin` it, read it with `event_now` and `event`, and `finish` it in any case."""

    def __init__(
        self, wire: Wire, head: RequestHead, upload: RequestBody, settings: GatewayConfig, patience: ResponseTimeout
    ) -> None:
        self.wire = wire
        self.heard = False  # whether anything came back
        self.upload = upload
        self._head = head
        self._settings = settings
        self._patience = patience
        self._http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MOST_HEAD_BYTES)
        self._sending: asyncio.Task[None] | None = None
        self._sent = asyncio.Event()

    # -- sending -----------------------------------------------------------------------------------------

    async def begin(self, informed: OnInformational) -> ResponseHead:
        """Send the request, and wait for its answer to begin. Raises UpstreamError, or what the sender of
        the body did wrong (GatewayRequestError, GoneError)."""
        self._send_head()
        while True:
            event = await self._awaited_head()
            match event:
                case h11.InformationalResponse(status_code=101) | h11.Response():
                    return self._answer(event)
                case h11.InformationalResponse():
                    await informed(event.status_code, bytes(event.reason), _decoded(event.headers))
                case _:
                    raise self._broke("closed the connection without an answer")

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
            self._sent.set()  # it does not listen any more; what it says, if anything, counts
        except BaseException:
            self.wire.abort()  # an incomplete request must not look like a complete one
            raise

    def _failed_sender(self) -> BaseException | None:
        """What the client did wrong while its body was sent on."""
        task = self._sending
        if task is None or not task.done() or task.cancelled():
            return None
        return task.exception()

    # -- receiving ---------------------------------------------------------------------------------------

    def event_now(self) -> BodyEvent | None:
        """The next piece of the answer's body, or its end, if that is here already."""
        while True:
            event = self._parsed()
            if event is not h11.NEED_DATA:
                return self._body_event(event)
            more = self.wire.read_now()
            if not more:
                return None
            self._http.receive_data(more)

    async def event(self) -> BodyEvent:
        """The next piece of the answer's body, or its end."""
        while True:
            event = self._parsed()
            if event is not h11.NEED_DATA:
                return self._body_event(event)
            self._http.receive_data(await self._read(self._settings.silence_timeout_s))

    def _body_event(self, event: object) -> BodyEvent:
        if isinstance(event, h11.Data | h11.EndOfMessage):
            return event
        raise self._broke("broke off its answer")

    async def _awaited_head(self) -> object:
        while True:
            event = self._parsed()
            if event is not h11.NEED_DATA:
                return event
            more = await self._read(self._patience.answer_s)
            self.heard = self.heard or bool(more)
            self._http.receive_data(more)

    async def _read(self, limit_s: float) -> bytes:
        """In short naps: while the request is being sent the answer has time, and a dead site has none."""
        waited_s = 0.0
        while True:
            nap_s = min(_LOOK_S, limit_s)
            try:
                return await self.wire.read(nap_s)
            except TimeoutError:
                waited_s = waited_s + nap_s if self._sent.is_set() else 0.0
            if waited_s >= limit_s:
                raise self._broke(f"no answer within {limit_s:g} s", 504) from None
            if waited_s and self._patience.is_hopeless():
                raise self._broke("went down while it was asked", 504)

    def _parsed(self) -> object:
        if failure := self._failed_sender():
            raise failure
        try:
            return self._http.next_event()
        except h11.RemoteProtocolError as error:
            if failure := self._failed_sender():
                raise failure from None
            if self.wire.has_ended:
                raise self._broke("broke off its answer" if self.heard else "closed the connection") from None
            raise self._broke(f"did not answer in HTTP: {error}".replace(",", ";")) from None

    def _broke(self, why: str, status: int = 502) -> UpstreamError:
        return UpstreamError(f"the service was asked, but: {why}", why, may_have_had_effect=True, status=status)

    def _answer(self, event: h11.Response | h11.InformationalResponse) -> ResponseHead:
        headers = _decoded(event.headers)
        names = [name.lower() for name, _ in headers]
        if "transfer-encoding" in names and "content-length" in names:
            raise self._broke("its answer has both a length and chunks")
        return ResponseHead(event.status_code, bytes(event.reason), headers)

    @property
    def beyond(self) -> bytes:
        """What came after a 101: the first bytes of the other protocol."""
        return bytes(self._http.trailing_data[0])

    # -- the end -----------------------------------------------------------------------------------------

    async def finish(self) -> bool:
        """Whether the connection can serve another request. If not, it is closed."""
        if self._sending:
            self._sending.cancel()
            await asyncio.wait({self._sending})
            self._failed_sender()  # whoever had to know of it does
        done = self._http.our_state is h11.DONE and self._http.their_state is h11.DONE
        if done and not self._http.trailing_data[0] and self.wire.is_quiet:
            return True
        self.wire.abort()
        return False


def _decoded(headers: h11._headers.Headers) -> Headers:
    return tuple((n.decode("latin-1"), v.decode("latin-1")) for n, v in headers.raw_items())


class UpstreamResponse:
    """A call whose answer has begun."""

    def __init__(self, call: Exchange, answer: ResponseHead, place: UpstreamAddress, pool: ConnectionPool) -> None:
        self.call = call
        self.answer = answer
        self._place = place
        self._pool = pool

    async def finish(self) -> None:
        """In any case, whether the answer was read to its end or not."""
        if await self.call.finish():
            self._pool.give_back(self._place, self.call.wire)


async def streamed_response(response: UpstreamResponse, on_end: Callable[[], None] | None = None) -> Response:
    """A response whose body is read from the upstream while somebody reads it from here. `on_end` is called when
    its last byte is read, or when nobody wants it any more."""
    head = response.answer
    if head.status == 101:
        await _finish(response, on_end)
        raise UpstreamError(
            "the service changed the protocol, which nobody asked for", "a bad 101", may_have_had_effect=True
        )
    headers = end_to_end(head.headers)
    event = response.call.event_now()
    if isinstance(event, h11.EndOfMessage):
        await _finish(response, on_end)
        return Response(head.status, headers, b"")
    return Response(head.status, headers, _body_of(response, on_end, event))


async def _body_of(
    response: UpstreamResponse, on_end: Callable[[], None] | None, event: h11.Data | None
) -> AsyncIterator[bytes]:
    try:
        found = event or await response.call.event()
        while isinstance(found, h11.Data):
            yield bytes(found.data)
            found = await response.call.event()
    finally:
        await _finish(response, on_end)


async def _finish(response: UpstreamResponse, on_end: Callable[[], None] | None) -> None:
    await response.finish()
    if on_end:
        on_end()


async def ignore_informational(_status: int, _reason: bytes, _headers: Headers) -> None:
    """For requests whose client cannot be sent what comes before the response."""


class DisconnectWatch:
    """The connection to a service that works for a client just now: a client that leaves ends it."""

    def __init__(self) -> None:
        self._wire: Wire | None = None
        self.is_gone = False

    def works(self, wire: Wire | None) -> None:
        self._wire = wire
        if wire is not None and self.is_gone:
            wire.abort()

    def gone(self) -> None:
        self.is_gone = True
        if self._wire is not None:
            self._wire.abort()


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """A request to be sent, and who looks on. Without a passage it is our own, not passed on for somebody."""

    head: RequestHead
    upload: RequestBody
    informed: OnInformational
    watched: DisconnectWatch
    passage: ForwardingInfo | None = None


class UpstreamClient:
    """Sends requests to places."""

    def __init__(self, settings: GatewayConfig, credentials: Credentials | None = None) -> None:
        self._settings = settings
        self.pool = ConnectionPool(settings, credentials)

    async def ask(self, place: UpstreamAddress, errand: UpstreamRequest, patience: ResponseTimeout) -> UpstreamResponse:
        """Send a request, its head as it is, and wait for its answer to begin. Raises UpstreamError."""
        head, upload, watched = errand.head, errand.upload, errand.watched
        repeatable = is_idempotent(head)
        wire = self.pool.warm(place, sure=not repeatable)
        if wire is not None:
            call = Exchange(wire, head, upload, self._settings, patience)
            try:
                return await self._begun(call, place, errand)
            except UpstreamError:
                stale = wire.has_ended and not call.heard and not watched.is_gone
                if not (stale and repeatable and upload.can_restart):
                    raise
        wire = await self.pool.fresh(place)
        call = Exchange(wire, head, upload, self._settings, patience)
        return await self._begun(call, place, errand)

    async def _begun(self, call: Exchange, place: UpstreamAddress, errand: UpstreamRequest) -> UpstreamResponse:
        errand.watched.works(call.wire)
        try:
            answer = await call.begin(errand.informed)
        except BaseException:
            await call.finish()
            errand.watched.works(None)
            raise
        return UpstreamResponse(call, answer, place, self.pool)
