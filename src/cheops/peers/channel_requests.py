"""Answers the requests that come through channels: to the site (service.py), to its API, and for tunnels (tunnels.py).

A request to the API is one that another site passes on for a client, as `cheops exec` for a resource that its own site
does not have. It runs through the same application as by HTTP, and with the same rights: those of the other site.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from starlette.types import ASGIApp, Message, Scope

from cheops.errors import CheopsError, ClientError
from cheops.peers import links
from cheops.peers.channel import Channel
from cheops.peers.frames import HEAD_BODY_BYTES, Answer, HttpHead
from cheops.peers.requests import AGENT_TUNNEL, FORMS, GATEWAY_TUNNEL, HTTP, RequestKind, error_body
from cheops.peers.service import PeerService
from cheops.peers.streams import Carrier, ChannelError, IncomingRequest, TooLargeError
from cheops.peers.tunnels import TunnelServer
from cheops.security.refusals import RefusalLog

_FILE_BYTES = 256 * 1024  # read at a time
_RETRY_S = 0.5  # while this site can take nothing
# Their responses are made in memory, and stay there until they are taken: few at a time for one site.
_WITH_LARGE_RESPONSE = (RequestKind.DOCUMENTS,)
_MOST_LARGE = 4
_log = logging.getLogger(__name__)


class ChannelRequests:
    """Belongs to one event loop. `web` is the API, with its checks."""

    def __init__(self, service: PeerService, tunnels: TunnelServer, refusal_log: RefusalLog, web: ASGIApp) -> None:
        self._service = service
        self._tunnels = tunnels
        self._refusal_log = refusal_log
        self._web = web
        self._large: WeakKeyDictionary[Carrier, asyncio.Semaphore] = WeakKeyDictionary()  # their turns

    async def take(self, channel: Channel, kind: str, body: bytes) -> None:
        """Messages of a site's engine. Nothing is answered: its engine sends again what this site's does not
        acknowledge. While this site is too busy, or cannot save anything, the sender waits."""
        site = channel.site
        while wait_s := self._service.turn_s(site):
            await asyncio.sleep(wait_s)
        while not channel.is_lost:
            try:
                await self._service.handle(channel.peer, RequestKind(kind), body)
            except CheopsError as error:
                if error.status == HTTPStatus.SERVICE_UNAVAILABLE and not error.definite:
                    await asyncio.sleep(_RETRY_S)
                    continue
                _log.info("messages of %s were not taken: %s", site, error)
                if error.status == HTTPStatus.BAD_REQUEST:
                    self._refusal_log.document(links.INVALID, site, "messages", detail=str(error))
                self._service.record_refusal(error, site, channel.address, kind)
            return

    async def answer(self, request: IncomingRequest) -> None:
        """Raises ChannelError if the other side is gone."""
        channel, kind = request.channel, request.opening.kind
        try:
            if channel.peer.site is not None:
                self._service.take_turn(channel.peer.site)
            if kind in (GATEWAY_TUNNEL, AGENT_TUNNEL):
                await self._tunnels.answer(request)
            elif kind == HTTP:
                await self._pass_on(request, request.opening.http)
            elif kind in _WITH_LARGE_RESPONSE:
                async with self._large.setdefault(channel, asyncio.Semaphore(_MOST_LARGE)):
                    await self._handle(request, RequestKind(kind))
            elif kind in FORMS and kind != RequestKind.MESSAGES:  # those are one-way
                await self._handle(request, RequestKind(kind))
            else:
                raise ClientError("agents have no such request", status=404)
        except CheopsError as error:
            self._service.record_refusal(error, channel.site, channel.address, kind)
            request.respond(Answer(error.status, error_body(error)))

    async def _handle(self, request: IncomingRequest, kind: RequestKind) -> None:
        try:
            body = await request.body.read(FORMS[kind].max_bytes)
        except TooLargeError as error:
            raise ClientError(str(error), status=413) from None
        response = await self._service.handle(request.channel.peer, kind, body)
        if response.file is not None:
            await _send_file(request, response.file)
        elif len(response.body) <= HEAD_BODY_BYTES:
            request.respond(Answer(response.status, response.body))
        else:  # until the other side has taken it, this request goes on
            request.respond(Answer(response.status), end=False)
            await request.write(response.body, end=True)

    async def _pass_on(self, request: IncomingRequest, head: HttpHead | None) -> None:
        if head is None:
            raise ClientError("a request without its head")
        await AsgiExchange(request, head).run(self._web)


async def _send_file(request: IncomingRequest, path: Path) -> None:
    offset = request.opening.offset
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except FileNotFoundError:
        raise ClientError("the file is not here any more", status=404) from None
    with file:
        size = path.stat().st_size
        if offset > size:
            raise ClientError(f"the file has {size:,} bytes", status=416)
        request.respond(Answer(200, size=size), end=False)
        async for piece in _pieces(file, offset):
            await request.write(piece)
        await request.write(b"", end=True)


async def _pieces(file: BinaryIO, offset: int) -> AsyncIterator[bytes]:
    file.seek(offset)
    while piece := await asyncio.to_thread(file.read, _FILE_BYTES):
        yield piece


class AsgiExchange:
    """One request through a channel, as an ASGI application sees it."""

    def __init__(self, request: IncomingRequest, head: HttpHead) -> None:
        self._request = request
        self._head = head
        self._pieces = aiter(request.body)
        self._is_read = False
        self._started: Answer | None = None

    def scope(self) -> Scope:
        channel = self._request.channel
        path, _, query = self._head.path.partition("?")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self._head.method,
            "scheme": "https" if channel.peer.site else "http",
            "path": unquote(path),
            "raw_path": path.encode("ascii"),
            "query_string": query.encode("ascii"),
            "root_path": "",
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in self._head.headers
            ],
            "client": (channel.address, 0),
            "server": None,
            # As the connection itself has it: see api/server.py.
            "state": {"peer": channel.peer.site, "certificate": channel.peer.identity},
        }

    async def run(self, app: ASGIApp) -> None:
        try:
            scope = self.scope()
        except UnicodeEncodeError:
            raise ClientError("a header that is not Latin-1 text") from None
        await app(scope, self._receive, self._send)
        if self._request.has_response and not self._request.is_complete:
            await self._request.write(b"", end=True)

    async def _receive(self) -> Message:
        if self._is_read:
            # Nothing more comes. The handler is cancelled if the other side goes.
            await asyncio.Event().wait()
        try:
            piece = await anext(self._pieces)
        except StopAsyncIteration:
            self._is_read = True
            return {"type": "http.request", "body": b"", "more_body": False}
        except ChannelError:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": piece, "more_body": True}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
            self._started = Answer(message["status"], headers=headers)
        elif message["type"] == "http.response.body":
            more, body = message.get("more_body", False), message.get("body", b"")
            if self._started is not None:
                self._request.respond(self._started, end=False)
                self._started = None
            await self._request.write(body, end=not more)
