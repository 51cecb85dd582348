"""A site that is only a server of channels: it answers as a test says, in a thread of its own."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from threading import Event, Thread
from typing import Any

from cheops.errors import CheopsError
from cheops.peers.channel import Channel
from cheops.peers.requests import CHANNEL_PATH, Peer
from cheops.peers.streams import ChannelError, IncomingRequest
from cheops.peers.upgrade import names_in, response_head

AnswerRequest = Callable[[IncomingRequest], Awaitable[None]]
TakeMessages = Callable[[str, bytes], None]


def _ignore(_kind: str, _body: bytes) -> None:
    """Messages that the test does not read."""


class ChannelServer:
    """Listens at an address until `close`. What is not the begin of a channel gets a 404."""

    def __init__(  # noqa: PLR0913, PLR0917 - where, who, and what it says
        self,
        name: str,
        host: str,
        port: int,
        answer: AnswerRequest,
        take: TakeMessages = _ignore,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = name
        self.channels: set[Channel] = set()
        self._answer = answer
        self._take = take
        self._where = (host, port)
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._listens = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._listens.wait(60)

    def close(self) -> None:
        if self._loop.is_running():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(60)

    def cut(self) -> None:
        """End all connections, as a network does."""

        def cut_all() -> None:
            for channel in list(self.channels):
                channel.abort("cut")

        self._loop.call_soon_threadsafe(cut_all)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.set_exception_handler(lambda *_: None)  # honest agents may end a connection at any time
        server = self._loop.run_until_complete(
            self._loop.create_server(lambda: _Begin(self), *self._where, ssl=self._context)
        )
        self._listens.set()
        self._loop.run_forever()
        server.close()
        for channel in list(self.channels):
            channel.abort("closed")
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    # -- as the owner of channels --------------------------------------------------------------------------------

    async def answer(self, request: IncomingRequest) -> None:
        await self._answer(request)

    async def take(self, _channel: Channel, kind: str, body: bytes) -> None:
        self._take(kind, body)

    def may_post(self, channel: Channel) -> None: ...

    def refused(self, channel: Channel, error: CheopsError) -> None: ...

    def closing(self, channel: Channel, why: str) -> None: ...

    def closed(self, channel: Channel) -> None:
        self.channels.discard(channel)


class _Begin(asyncio.Protocol):
    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._head = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" not in self._head:
            return
        line, *rest = self._head.decode("latin-1").split("\r\n")
        if line.split(" ")[1] != CHANNEL_PATH:
            self._transport.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            self._transport.close()
            return
        opener, _, _via = names_in(dict(one.split(": ", 1) for one in rest if ": " in one))
        channel = Channel(opener, Peer(), self._server, is_opener=False)
        self._server.channels.add(channel)
        self._transport.write(response_head(self._server.name))
        self._transport.set_protocol(channel)
        channel.connection_made(self._transport)


async def send_slowly(request: IncomingRequest, piece: bytes, pause_s: float) -> None:
    """Until nobody wants it any more."""
    try:
        while True:
            await request.write(piece)
            await asyncio.sleep(pause_s)
    except ChannelError:
        return
