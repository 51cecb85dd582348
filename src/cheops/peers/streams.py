"""The streams of a channel, as their users see them: a body that arrives, a response, a request to answer."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Protocol

from cheops.peers.frames import HEAD_BODY_BYTES, PIECE_BYTES, WINDOW_BYTES, Answer, FrameError, Opening
from cheops.peers.requests import Peer

Write = Callable[[bytes], Awaitable[None]]
SendBody = Callable[[Write], Awaitable[None]]


class ChannelError(ConnectionError):
    """There is no connection to a site, or not any more; the text says why."""


class CancelledByPeerError(ChannelError):
    """The other side has cancelled this stream; the connection is as it was."""


class TooLargeError(ChannelError):
    """A body has more bytes than the receiver takes."""


class Carrier(Protocol):
    """The channel, as a request that came through it sees it."""

    site: str
    peer: Peer
    address: str

    @property
    def is_lost(self) -> bool: ...

    def send_answer(self, number: int, kind: str, answer: Answer, *, end: bool) -> None: ...

    async def write(self, number: int, data: bytes, *, end: bool = False) -> None: ...


class IncomingBody:
    """The body of a request or of a response. Taking a piece lets the other side send more."""

    def __init__(self, grant: Callable[[int], None]) -> None:
        self._grant = grant
        self._pieces: deque[bytes] = deque()
        self._unread = 0
        self._taken = 0  # bytes that are not granted yet
        self._is_complete = False
        self._error: BaseException | None = None
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, piece: bytes, *, end: bool) -> None:
        """Raises FrameError if the other side sends more than it may."""
        if self._is_complete:
            raise FrameError("a body goes on after its end")
        self._unread += len(piece)
        if self._unread + self._taken > WINDOW_BYTES + HEAD_BODY_BYTES:
            raise FrameError("more of a body than there was credit for")
        if self._pieces and len(self._pieces[-1]) + len(piece) <= PIECE_BYTES:
            self._pieces[-1] += piece  # a sender may cut a body into single bytes, and each object takes fifty
        elif piece:
            self._pieces.append(piece)
        self._is_complete = end
        self._wake()

    def fail(self, error: BaseException) -> None:
        if not self._is_complete:
            self._error = self._error or error
            self._wake()

    @property
    def has_more(self) -> bool:
        """Whether a piece is here."""
        return bool(self._pieces)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The pieces; raises ChannelError if the stream ends before its body."""
        while True:
            if self._pieces:
                piece = self._pieces.popleft()
                self._unread -= len(piece)
                self._taken += len(piece)
                if self._taken >= WINDOW_BYTES // 4 and not self._is_complete:
                    self._grant(self._taken)
                    self._taken = 0
                yield piece
            elif self._is_complete:
                return
            elif self._error is not None:
                raise self._error
            else:
                self._waiter = asyncio.get_running_loop().create_future()
                await self._waiter

    async def read(self, most_bytes: int) -> bytes:
        """All of it; raises ChannelError, and TooLargeError."""
        if self._is_complete and len(self._pieces) <= 1:
            body = self._pieces.popleft() if self._pieces else b""
            if len(body) > most_bytes:
                raise TooLargeError(f"a body of more than {most_bytes:,} bytes")
            return body
        whole = bytearray()
        async for piece in self:
            whole += piece
            if len(whole) > most_bytes:
                raise TooLargeError(f"a body of more than {most_bytes:,} bytes")
        return bytes(whole)


class Response:
    """The response to a request of this side."""

    def __init__(self, body: IncomingBody) -> None:
        self.body = body
        self.head: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

    @property
    def answer(self) -> Answer:
        return self.head.result()

    @property
    def status(self) -> int:
        return self.answer.status

    async def pieces(self, most_bytes: int, timeout_s: float) -> AsyncIterator[bytes]:
        """The body in pieces of about this size, as they come; raises ChannelError, and TimeoutError if nothing comes
        for so long."""
        gathered, pieces = bytearray(), aiter(self.body)
        while True:
            try:
                async with asyncio.timeout(timeout_s):
                    gathered += await anext(pieces)
            except StopAsyncIteration:
                break
            if len(gathered) >= most_bytes or not self.body.has_more:
                yield bytes(gathered)
                gathered.clear()
        if gathered:
            yield bytes(gathered)


class IncomingRequest:
    """A request of the other side. `respond`, and then `write` until the end."""

    def __init__(self, channel: Carrier, number: int, opening: Opening, body: IncomingBody) -> None:
        self.channel = channel
        self.opening = opening
        self.body = body
        self.has_response = False
        self.is_complete = False  # the response
        self._number = number

    def respond(self, answer: Answer, *, end: bool = True) -> None:
        """Send the response, all of it or its beginning."""
        if not self.has_response:
            self.has_response, self.is_complete = True, end
            self.channel.send_answer(self._number, self.opening.kind, answer, end=end)

    async def write(self, data: bytes, *, end: bool = False) -> None:
        """More of the response. Waits while the other side is behind; raises ChannelError."""
        self.is_complete = end
        await self.channel.write(self._number, data, end=end)
