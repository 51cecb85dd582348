"""A response that nobody reads must be finished all the same: its connection and its carrier use come to an end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from cheops.backends.http.ids import MetaIdTranslator
from cheops.backends.http.reads import ReadHandler
from cheops.backends.http.translation import buffer_if_small, decompressed, iterate_body, translate_body
from cheops.config.gateway import GatewayConfig
from cheops.errors import CheopsError, ClientError
from cheops.gateway.connection import UpstreamAddress
from cheops.gateway.dispatcher import discard
from cheops.gateway.headers import EFFECT, ForwardingInfo, RequestHead
from cheops.gateway.interfaces import NoGatewayError, Response, SiteDownError, UpstreamError
from cheops.gateway.responses import error_response
from cheops.gateway.routing import Replicate, RetryState, may_try_next_after_error
from cheops.gateway.upstream import (
    DisconnectWatch,
    PreparedBody,
    ResponseTimeout,
    UpstreamClient,
    UpstreamRequest,
    ignore_informational,
    streamed_response,
)

_PARTIAL = b'HTTP/1.1 206 Partial\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{"a"'
_CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
_BROKEN = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nno chunk\r\n"


@dataclass
class Service:
    """Sends the same bytes in response to each request, and keeps the connection open."""

    response: bytes
    client: UpstreamClient = field(default_factory=lambda: UpstreamClient(GatewayConfig()))
    connections: int = 0
    requests: int = 0
    uses: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                writer.write(self.response)
        except (OSError, EOFError):
            pass
        finally:
            self.connections -= 1
            writer.close()

    async def request(self) -> Response:
        head = RequestHead("GET", "/", (("Host", "service"),))
        request = UpstreamRequest(head, PreparedBody(None, 0), ignore_informational, DisconnectWatch())
        address = UpstreamAddress("127.0.0.1", self.port)
        self.uses += 1
        return await streamed_response(await self.client.send(address, request, ResponseTimeout(5)), self._end)

    def _end(self) -> None:
        self.uses -= 1

    async def local(self, *_: Any) -> Response:
        """As `UpstreamServices.local`."""
        return await self.request()

    async def in_use(self) -> int:
        """The connections that are neither closed nor ready for another request."""
        for _ in range(100):
            if self.connections == self.client.pool.idle:
                break
            await asyncio.sleep(0.01)
        return self.connections - self.client.pool.idle


def with_service(response: bytes, test: Callable[[Service], Awaitable[None]]) -> None:
    async def run() -> None:
        service = Service(response)
        server = await asyncio.start_server(service.serve, "127.0.0.1", 0)
        service.port = server.sockets[0].getsockname()[1]
        try:
            await test(service)
            assert (service.uses, await service.in_use()) == (0, 0)
        finally:
            service.client.pool.close()
            server.close()

    asyncio.run(run())


@pytest.mark.parametrize("response", [_PARTIAL, _CHUNKED])
def test_closing_an_unread_body_finishes_the_exchange(response: bytes) -> None:
    async def test(service: Service) -> None:
        for _ in range(3):
            unread = await service.request()
            await discard(unread)
            await discard(unread)  # a second time does no harm

    with_service(response, test)


def test_closing_a_body_half_way_finishes_the_exchange() -> None:
    async def test(service: Service) -> None:
        response = await service.request()
        assert await anext(aiter(cast("AsyncIterator[bytes]", response.body))) == b"{}"
        await discard(response)

    with_service(_CHUNKED, test)


def test_a_body_that_is_read_to_its_end_needs_no_closing() -> None:
    async def test(service: Service) -> None:
        for _ in range(2):
            body = iterate_body((await service.request()).body)
            assert b"".join([piece async for piece in body]) == b'{"a"'
        assert service.connections == 1  # kept for the next request

    with_service(_PARTIAL, test)


def test_closing_an_unread_translation_closes_what_it_would_read() -> None:
    async def test(service: Service) -> None:
        response = await service.request()
        body = translate_body(decompressed(response), MetaIdTranslator(cast("Any", None)))
        await discard(Response(200, (), await buffer_if_small(body, None)))

    with_service(_CHUNKED, test)


def test_a_body_that_is_broken_from_its_first_byte_finishes_the_exchange() -> None:
    async def test(service: Service) -> None:
        with pytest.raises(UpstreamError):
            async for _ in iterate_body((await service.request()).body):
                pass

    with_service(_BROKEN, test)


# -- what the service may have executed ------------------------------------------------------------------


def reads_of(service: Service) -> ReadHandler:
    """The handler of reads, as far as it needs no agent: nothing is replicated."""
    reads = cast("Any", ReadHandler.__new__(ReadHandler))
    reads._services, reads._node, reads._copies = service, _Anything(), _Anything()
    reads.with_local_ids = lambda head: head
    reads._forget_reused_id = lambda _service, _sent, response: _later(response)
    reads.response_ids = lambda _service, _sent: _Anything()
    return cast("ReadHandler", reads)


async def _later(response: Response) -> Response:
    return response


class _Anything:
    def __getattr__(self, _name: str) -> Any:
        return self

    def __getitem__(self, _name: str) -> Any:
        return self


@dataclass
class Incoming:
    head: RequestHead
    size: int = 0
    forwarding: ForwardingInfo = field(default_factory=lambda: ForwardingInfo("site1", "127.0.0.1"))


def is_tried_elsewhere(error: CheopsError, method: str) -> bool:
    retry_state = RetryState(RequestHead(method, "/", ()), can_restart=True, targets_left=1)
    return may_try_next_after_error(error, Replicate(cast("Any", None)), retry_state)


def reports_no_effect(error: CheopsError) -> bool:
    return (EFFECT, "none") in error_response("site1", error).headers


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "response",
    [
        _PARTIAL,
        b"HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\n{}",
    ],
)
def test_a_response_that_cannot_be_translated_may_have_had_an_effect(response: bytes, method: str) -> None:
    async def test(service: Service) -> None:
        head = RequestHead(method, "/images", ())
        with pytest.raises(UpstreamError) as caught:
            await reads_of(service).local("image", head, cast("Any", Incoming(head)))
        assert caught.value.may_have_had_effect
        assert not reports_no_effect(caught.value)
        assert is_tried_elsewhere(caught.value, method) == (method == "GET")
        assert service.requests == (2 if method == "GET" and response is _PARTIAL else 1)

    with_service(response, test)


@pytest.mark.parametrize(
    ("error", "no_effect"),
    [
        (UpstreamError("connection refused", "refused", may_have_had_effect=False), True),
        (UpstreamError("broke off", "broke off", may_have_had_effect=True), False),
        (UpstreamError("not accepted", "not accepted", may_have_had_effect=True, status=503), False),
        (SiteDownError("site2 is down"), True),
        (NoGatewayError("site2 has no gateway"), True),
        (CheopsError("try again later", status=503), True),
        (CheopsError("not implemented", status=501), True),
        (ClientError("not known", status=404), True),
        (CheopsError("a bad response", status=502), False),
        (CheopsError("no response", status=504), False),
        (CheopsError("the disk failed"), False),
    ],
)
def test_no_effect_is_reported_only_if_the_request_may_be_sent_again(error: CheopsError, no_effect: bool) -> None:
    assert reports_no_effect(error) == no_effect
    if error.status in (502, 503, 504):
        assert is_tried_elsewhere(error, "POST") == no_effect
