"""What a site may ask through its channel, and how much of this site's memory that takes."""

import asyncio
from typing import Any, cast

from cheops.peers.channel_requests import ChannelRequests
from cheops.peers.frames import Opening
from cheops.peers.requests import Peer, PeerResponse, RequestKind
from cheops.peers.service import PeerService
from cheops.peers.tunnels import TunnelServer
from cheops.security.refusals import RefusalLog
from tests.sync.test_channel import MIB, End, play, raw_peer, request_frame, until


class Service:
    """Answers everything with a large body."""

    def __init__(self) -> None:
        self.handled: list[str] = []

    async def handle(self, _peer: Peer, kind: RequestKind, _body: bytes) -> PeerResponse:
        self.handled.append(kind)
        return PeerResponse(b"x" * MIB)

    def record_refusal(self, *_about: object) -> None:
        """Nobody looks."""


def requests(service: Service) -> ChannelRequests:
    async def no_web(*_args: Any) -> None:
        raise AssertionError

    return ChannelRequests(
        cast("PeerService", service), cast("TunnelServer", None), cast("RefusalLog", None), cast("Any", no_web)
    )


def test_few_large_responses_are_made_for_a_site_that_does_not_take_them() -> None:
    """It answers no PING, so nothing of them may be written beyond a few kilobytes."""

    async def scene() -> None:
        service, end = Service(), End("honest")
        end.on_request = requests(service).answer
        async with raw_peer(end) as (channel, send):
            await send(b"".join(request_frame(number, kind="documents") for number in range(1, 201, 2)))
            await until(lambda: len(channel._handlers) == 100 and channel._outbox._bodies)
            for _ in range(100):
                await asyncio.sleep(0)
            assert service.handled == ["documents"] * 4

    asyncio.run(scene())


def test_large_responses_arrive_one_after_the_other() -> None:
    async def scene(a: Any, _b: Any, _one: End, other: End) -> None:
        other.on_request = requests(Service()).answer
        asked = [a.request("documents", timeout_s=30, most_bytes=2 * MIB) for _ in range(10)]
        assert [(status, len(body)) for status, body in await asyncio.gather(*asked)] == [(200, MIB)] * 10

    play(scene)


def test_messages_are_one_way() -> None:
    """As requests with a response, 128 of them at a time could have 64 MiB each."""

    async def scene(a: Any, _b: Any, _one: End, other: End) -> None:
        service = Service()
        other.on_request = requests(service).answer
        async with a.open(Opening(RequestKind.MESSAGES, b"x")) as response:
            assert response.status == 404
        assert service.handled == []

    play(scene)
