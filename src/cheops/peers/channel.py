"""One connection between two agents, which both use: requests and responses of either side, at the same time.

A `Channel` is an asyncio protocol: it takes over a connection once both sides have agreed on it (upgrade.py). Its
`owner` (channel_pool.py) answers what the other side asks.

    status, body = await channel.request("identity", b"site3", …)           collected; many at a time
    async with channel.open(Opening("files", hash_)) as response:           streamed, with back-pressure
        async for piece in response.body: …
    channel.post("messages", envelope)                                      one-way: no answer

**Back-pressure.** A sender may have WINDOW_BYTES of a body on their way that the receiver has not taken, and
`_MOST_UNHANDLED` bytes of one-way requests that it has not handled. So a reader that falls behind stops its sender, on
that stream only: heartbeats and other requests go on. Everything that a peer can cause to grow has a limit.

**Silence.** While anything waits for an answer, a silent connection is checked with a PING after a few ticks, and given
up after a few more. Ticks, not seconds: an agent that stood still for a minute reads first what came meanwhile. At rest
TCP's own keep-alive goes every 20 s, so that no firewall forgets the connection.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Protocol, cast

import msgspec

from cheops.errors import CheopsError
from cheops.peers import frames
from cheops.peers.frames import HEAD_BODY_BYTES, Answer, Flag, Frame, FrameError, FrameKind, FrameReader, Opening
from cheops.peers.inbox import Inbox
from cheops.peers.outbox import Outbox, Priority
from cheops.peers.pace import WRITE_BYTES, Pace, adapt_retries, tune
from cheops.peers.requests import FOR_CLIENTS, Peer, priority_of
from cheops.peers.streams import CancelledByPeerError, ChannelError, IncomingBody, IncomingRequest, Response, SendBody

_WRITER_BYTES = 64 * 1024  # of a body that wait to be sent; beyond this its writer waits
_MOST_UNHANDLED = 4 * 1024 * 1024  # bytes of one-way requests
_MOST_STREAMS = 128  # requests of the other side at a time, until their responses are written
_MOST_FOR_CLIENTS = 96  # of these; or clients of one site could keep it from fetching files from another one
_MOST_URGENT = 16  # heartbeats beyond these: a site that is busy is not down
_MOST_REFUSED = 128  # refusals that wait to be written; beyond these a stream is cancelled, which stops reading in time
_MOST_CONTROL = 1_000  # frames that wait; then this side reads no more
_PING_TICKS, _DEAD_TICKS = 2, 5  # of silence, while something is waited for
_STALLED_TICKS = 30  # while the other side reads nothing
_CLOSE_TICKS = 30  # after CLOSE, without a byte of the streams that are open
_PING = frames.encode_frame(FrameKind.PING, 0, b"")
_LAST_NUMBER = 2**31  # of a stream: then another channel takes over


class Owner(Protocol):
    """What a channel reports to, and who answers the other side."""

    async def answer(self, request: IncomingRequest) -> None:
        """Answer a request of the other side."""

    async def take(self, channel: "Channel", kind: str, body: bytes) -> None:
        """Handle a one-way request. The next one waits for it."""

    def may_post(self, channel: "Channel") -> None:
        """One-way requests can be sent again."""

    def refused(self, channel: "Channel", error: CheopsError) -> None:
        """The other side broke a rule."""

    def closing(self, channel: "Channel", why: str) -> None:
        """The other side begins no more streams."""

    def closed(self, channel: "Channel") -> None: ...


class Channel(asyncio.Protocol):
    """One connection. Belongs to one event loop."""

    def __init__(  # noqa: PLR0913 - who is at its ends
        self, site: str, peer: Peer, owner: Owner, *, is_opener: bool, address: str = "", via: str = ""
    ) -> None:
        """`site` is the name of the other one; `is_opener`, whether this side has opened the connection; `via`, the
        site that relays it, by what its opener says; empty if it is direct."""
        self.site = site
        self.peer = peer
        self.is_opener = is_opener
        self.via = via
        self.address = address  # of the other end, for the audit log
        self.is_open = False  # new streams may begin
        self.why_closed = ""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.used_s = self._loop.time()  # when its last stream began
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._outbox = Outbox()
        self._pace = Pace()
        self._next = 1 if is_opener else 2
        self._responses: dict[int, Response] = {}  # that this side waits for
        self._requests: dict[int, IncomingBody] = {}  # of the other side, until answered
        self._handlers: dict[int, asyncio.Task[None]] = {}
        self._for_clients: set[int] = set()  # of the handlers
        self._writers: dict[int, asyncio.Future[None]] = {}  # that wait for room
        self._inbox = Inbox(partial(owner.take, self), self._credit, self._end_if_done)
        self._unhandled = 0  # bytes that this side has posted and the other side has not reported as handled
        self._was_full = False  # somebody waits to post
        self._is_deaf = False  # this side reads nothing, because too many answers wait
        self._is_paused = False  # the socket takes no more
        self._is_flushing = False
        self._is_closing = self._has_said_close = self._has_heard_close = False
        self._silent_ticks = self._stalled_ticks = self._close_ticks = 0

    # -- the connection ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(self._transport)
        self.is_open = True
        self._inbox.start()

    def data_received(self, data: bytes) -> None:
        self._silent_ticks = 0
        try:
            for frame in self._reader.feed(data):
                self._received(frame)
        except FrameError as error:
            self._owner.refused(self, error)
            self.abort(str(error))
            return
        if self._outbox.control_frames > _MOST_CONTROL and self._transport is not None:
            self._is_deaf = True
            self._transport.pause_reading()
        self._flush_soon()
        self._offer_post()

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused, self._stalled_ticks = False, 0
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._transport = None
        self.why_closed = self.why_closed or (str(exc) if exc else "the connection was closed")
        error = ChannelError(f"the connection to {self.site} was lost: {self.why_closed}")
        for response in self._responses.values():
            if not response.head.done():
                response.head.set_exception(error)
                response.head.exception()  # somebody may have stopped waiting: then nobody fetches it
            response.body.fail(error)
        for body in self._requests.values():
            body.fail(error)
        for writer in self._writers.values():
            if not writer.done():
                writer.set_exception(error)
        self._inbox.close()
        for task in self._handlers.values():
            task.cancel()
        self._responses.clear()
        self._requests.clear()
        self._owner.closed(self)

    def close(self, why: str) -> None:
        """Begin no more streams, and end when those that are open have."""
        if not self._is_closing:
            self._is_closing = True
            self.is_open = False
            self.why_closed = self.why_closed or why
            self._flush()
            self._end_if_done()

    def _say_close(self) -> None:
        """After the beginnings of all streams: the other side may end the connection when it sees none open."""
        if self._is_closing and not self._has_said_close and not self._outbox.has_heads(self._next % 2):
            self._has_said_close = True
            self._outbox.put_control(FrameKind.CLOSE, 0, frames.encode_reason(self.why_closed))

    def abort(self, why: str) -> None:
        """End at once."""
        self.why_closed = self.why_closed or why
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def _end_if_done(self) -> None:
        is_agreed = self._has_said_close and self._has_heard_close
        # Whoever hears CLOSE last sees this first. All that the other one has begun came before its CLOSE.
        if is_agreed and self.is_idle and not self._outbox.can_send and self._transport is not None:
            self._transport.close()

    @property
    def is_idle(self) -> bool:
        """Whether no stream is open, and nothing waits to be handled, or to be written."""
        return not (self._responses or self._handlers or self._inbox.has_any or self._outbox.has_bodies)

    @property
    def is_lost(self) -> bool:
        """Whether the connection has ended, or is about to."""
        return self._transport is None or self._transport.is_closing()

    def tick(self) -> None:
        """About once a second."""
        self._stalled_ticks = self._stalled_ticks + 1 if self._is_paused else 0
        self._silent_ticks = self._silent_ticks + 1 if self._responses else 0
        self._close_ticks += self._is_closing
        if self._transport is not None:
            adapt_retries(self._transport)
        if self._stalled_ticks >= _STALLED_TICKS:
            self.abort("it reads nothing that is sent to it")
        elif self._silent_ticks >= _DEAD_TICKS:
            self.abort("it has not answered for several seconds")
        elif self._close_ticks >= _CLOSE_TICKS:
            self.abort(self.why_closed)
        elif self._silent_ticks == _PING_TICKS:
            self._pace.asked(self._loop.time())
            self._outbox.put_control(FrameKind.PING, 0)
            self._flush()
        if self._next > _LAST_NUMBER:
            self.close("it has used up its numbers")

    # -- requests of this side -----------------------------------------------------------------------------------

    async def request(self, kind: str, body: bytes = b"", *, timeout_s: float, most_bytes: int) -> tuple[int, bytes]:
        """The status and the body of the response; raises ChannelError and TimeoutError."""
        async with asyncio.timeout(timeout_s), self.open(Opening(kind, body)) as response:
            return response.status, await response.body.read(most_bytes)

    @contextlib.asynccontextmanager
    async def open(self, opening: Opening, send_more: SendBody | None = None) -> AsyncIterator[Response]:
        """A request, once its response begins. `send_more` writes the rest of its body. Raises ChannelError."""
        if not self.is_open:
            raise ChannelError(f"the connection to {self.site} was closed: {self.why_closed}")
        number = self._number()
        response = self._responses[number] = Response(IncomingBody(lambda amount: self._credit(number, amount)))
        self._send_opening(number, opening, end=send_more is None)
        sending = self._loop.create_task(self._send_body(number, send_more)) if send_more else None
        try:
            await response.head
            yield response
        finally:
            if sending is not None:
                sending.cancel()
            if self._responses.pop(number, None) is not None:
                self._cancel(number, "no longer wanted")
            self._end_if_done()

    def _number(self) -> int:
        self.used_s = self._loop.time()
        self._next += 2
        return self._next - 2

    async def _send_body(self, number: int, send_more: SendBody) -> None:
        try:
            await send_more(partial(self.write, number))
            await self.write(number, b"", end=True)
        except ChannelError:
            pass  # the response says so
        except Exception as error:  # the client that sends it is gone
            if number in self._responses:
                self._fail_response(number, ChannelError(f"the request was not sent completely: {error}"))
                self._cancel(number, "the request ended early")

    @property
    def can_post(self) -> bool:
        """Whether a one-way request may be sent now: the one before is written, and the other side keeps up."""
        can_post = self.is_open and not self._outbox.has_one_way and self._unhandled < _MOST_UNHANDLED
        self._was_full = self._was_full or not can_post
        return can_post

    def post(self, kind: str, body: bytes) -> None:
        """Send a request that gets no response. Ask `can_post` before."""
        number = self._number()
        self._unhandled += len(body)
        self._send_opening(number, Opening(kind, body), end=True, one_way=True)

    def _send_opening(self, number: int, opening: Opening, *, end: bool, one_way: bool = False) -> None:
        body, rest = opening.body, b""
        if len(body) > HEAD_BODY_BYTES:
            body, rest = body[:HEAD_BODY_BYTES], opening.body[HEAD_BODY_BYTES:]
            opening = msgspec.structs.replace(opening, body=body)
        priority = priority_of(opening.kind)
        payload = frames.encode_payload(opening)
        self._outbox.put_head(FrameKind.REQUEST, number, payload, priority, end=end and not rest, one_way=one_way)
        if rest:
            self._outbox.put_data(number, rest, end=end)
        self._flush_for(priority)

    # -- responses of this side ----------------------------------------------------------------------------------

    def send_answer(self, number: int, kind: str, answer: Answer, *, end: bool) -> None:
        """The response to a request, or its beginning."""
        body, rest = answer.body, b""
        if len(body) > HEAD_BODY_BYTES:
            body, rest = body[:HEAD_BODY_BYTES], answer.body[HEAD_BODY_BYTES:]
            answer = Answer(answer.status, body, answer.size, answer.headers)
        priority = priority_of(kind)
        payload = frames.encode_payload(answer)
        self._outbox.put_head(FrameKind.RESPONSE, number, payload, priority, end=end and not rest)
        if rest:
            self._outbox.put_data(number, rest, end=end)
        self._flush_for(priority)

    async def write(self, number: int, data: bytes, *, end: bool = False) -> None:
        """More of a body. Waits until most of it is with the socket; raises ChannelError."""
        if self._transport is None:
            raise ChannelError(f"the connection to {self.site} was lost: {self.why_closed}")
        self._outbox.put_data(number, data, end=end)
        self._close_ticks = 0
        self._flush_soon()
        while self._outbox.waiting(number) > _WRITER_BYTES:
            waiter = self._writers[number] = self._loop.create_future()
            try:
                await waiter
            finally:
                self._writers.pop(number, None)

    # -- frames that arrive ----------------------------------------------------------------------------------------

    def _received(self, frame: Frame) -> None:  # noqa: C901 - one case per kind
        number = frame.number
        if frame.kind in (FrameKind.DATA, FrameKind.CREDIT):
            self._close_ticks = 0  # what is under way goes on
        match frame.kind:
            case FrameKind.REQUEST:
                self._begin_request(frame)
            case FrameKind.RESPONSE:
                self._begin_response(frame)
            case FrameKind.DATA:
                self._take_data(frame)
            case FrameKind.CREDIT:
                amount = frames.decode_amount(frame.payload)
                if number:
                    self._outbox.add_credit(number, amount)
                elif amount > self._unhandled:
                    raise FrameError("more one-way requests are handled than were sent")
                else:
                    self._unhandled -= amount
            case FrameKind.CANCEL:
                self._cancelled(number, frames.decode_reason(frame.payload))
            case FrameKind.PING:
                self._outbox.put_control(FrameKind.PONG, 0)
            case FrameKind.PONG:
                self._pace.answered(self._loop.time())
            case FrameKind.CLOSE:
                self._hear_close(frames.decode_reason(frame.payload))

    def _begin_request(self, frame: Frame) -> None:
        number = frame.number
        # Not in order: an urgent request overtakes others.
        if number % 2 == self._next % 2 or number in self._handlers or self._outbox.has(number):
            raise FrameError(f"a request with the number {number}")
        self.used_s = self._loop.time()
        opening, end = frames.decode_opening(frame.payload), bool(frame.flags & Flag.END)
        if frame.flags & Flag.ONE_WAY:
            self._inbox.begin(number, opening, end=end)
            return
        body = IncomingBody(lambda amount: self._credit(number, amount))
        body.feed(opening.body, end=end)
        request = IncomingRequest(self, number, opening, body)
        is_urgent, is_for_client = priority_of(opening.kind) is Priority.HEARTBEAT, opening.kind in FOR_CLIENTS
        unwritten = self._outbox.unwritten(number % 2)
        open_streams = len(self._handlers.keys() | unwritten)
        are_too_many = open_streams >= _MOST_STREAMS + (_MOST_URGENT if is_urgent else 0)
        if are_too_many or (is_for_client and len(self._for_clients) >= _MOST_FOR_CLIENTS):
            if open_streams < _MOST_STREAMS + _MOST_URGENT + _MOST_REFUSED:
                request.respond(Answer(429, b"too many requests at a time"))
            else:
                self._cancel(number, "too many requests at a time")
            return
        self._requests[number] = body
        if is_for_client:
            self._for_clients.add(number)
        task = self._handlers[number] = self._loop.create_task(self._answer(request))
        # Not in the task: one that is cancelled before its first step never begins.
        task.add_done_callback(lambda _: self._end_answer(number, request))

    async def _answer(self, request: IncomingRequest) -> None:
        with contextlib.suppress(ChannelError):  # the other side, or the connection, is gone
            await self._owner.answer(request)

    def _end_answer(self, number: int, request: IncomingRequest) -> None:
        self._handlers.pop(number, None)
        self._for_clients.discard(number)
        if self._requests.pop(number, None) is not None:  # otherwise nobody waits for it any more
            request.respond(Answer(500, b"this is a bug in Cheops; the agent's log has the details"))
            if not request.is_complete:
                self._cancel(number, "the response ended early")
        self._end_if_done()

    def _begin_response(self, frame: Frame) -> None:
        answer = frames.decode_answer(frame.payload)
        response = self._responses.get(frame.number)
        if response is None:
            return  # nobody wants it any more
        if response.head.done():
            raise FrameError(f"a second response to request {frame.number}")
        end = bool(frame.flags & Flag.END)
        response.body.feed(answer.body, end=end)
        response.head.set_result(answer)
        if end:
            self._end_response(frame.number)

    def _end_response(self, number: int) -> None:
        """The response is complete. The request need not be."""
        self._responses.pop(number, None)
        self._outbox.cancel(number)

    def _take_data(self, frame: Frame) -> None:
        number, end = frame.number, bool(frame.flags & Flag.END)
        if self._inbox.is_collecting(number):
            self._inbox.collect(frame.payload, end=end)
        elif (body := self._requests.get(number)) is not None:
            body.feed(frame.payload, end=end)
        elif (response := self._responses.get(number)) is not None:
            if not response.head.done():
                raise FrameError(f"a body without a response to request {number}")
            response.body.feed(frame.payload, end=end)
            if end:
                self._end_response(number)

    def _cancelled(self, number: int, why: str) -> None:
        self._outbox.cancel(number)
        error = CancelledByPeerError(f"{self.site} has cancelled it: {why}")
        if number in self._responses:
            self._fail_response(number, error)
        if (writer := self._writers.get(number)) and not writer.done():
            writer.set_exception(error)
        if body := self._requests.pop(number, None):
            body.fail(error)
        if handler := self._handlers.get(number):
            handler.cancel()

    def _fail_response(self, number: int, error: ChannelError) -> None:
        response = self._responses.pop(number)
        if not response.head.done():
            response.head.set_exception(error)
            response.head.exception()
        response.body.fail(error)

    def _hear_close(self, why: str) -> None:
        self._has_heard_close = True
        self.why_closed = self.why_closed or why
        self.is_open = False
        self._owner.closing(self, why)
        self.close(why)
        self._end_if_done()

    # -- writing -------------------------------------------------------------------------------------------------

    def _credit(self, number: int, amount: int) -> None:
        if self._transport is not None:
            self._outbox.put_control(FrameKind.CREDIT, number, frames.encode_amount(amount))
            self._flush_soon()

    def _cancel(self, number: int, why: str) -> None:
        self._outbox.cancel(number)
        if self._transport is not None:
            self._outbox.put_control(FrameKind.CANCEL, number, frames.encode_reason(why))
            self._flush_soon()

    def _flush_for(self, priority: Priority) -> None:
        if priority is Priority.HEARTBEAT:
            self._flush()  # its round trip is measured
        else:
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Write when everything that is ready now has been put: together, and without a timer."""
        if not self._is_flushing and self._outbox.can_send:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        transport = self._transport
        self._say_close()
        while transport is not None and not self._is_paused and not transport.is_closing():
            if not self._outbox.can_send_in(self._pace.room):
                break
            data, paced_bytes = self._outbox.take(WRITE_BYTES, self._pace.room)
            transport.write(data)
            self._pace.wrote(paced_bytes)
            if self._pace.is_echo_due:
                self._pace.asked(self._loop.time())
                transport.write(_PING)
            self._say_close()
        if self._is_deaf and transport is not None and self._outbox.control_frames <= _MOST_CONTROL // 2:
            self._is_deaf = False
            transport.resume_reading()
        for number, writer in list(self._writers.items()):
            if not writer.done() and self._outbox.waiting(number) <= _WRITER_BYTES:
                writer.set_result(None)
        self._offer_post()
        if self._is_closing:
            self._end_if_done()

    def _offer_post(self) -> None:
        if self._was_full and self.can_post:
            self._was_full = False
            self._owner.may_post(self)
